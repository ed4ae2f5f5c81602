//! Who owns what from submit to the final completion: checked, and without a kernel, so that every
//! order of completions can be tried.

use super::io::Outgoing;
use super::token::Token;

/// Connections by token. A token is looked up, never trusted: a slot that has been given to another
/// connection has another generation.
#[derive(Debug)]
pub(crate) struct Table<C> {
    slots: Vec<Option<(Token, C)>>,
}

impl<C> Table<C> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// Takes a connection in.
    ///
    /// **Panics** if the slot is taken: its last connection has not been reported closed, and the
    /// kernel may still hold what belongs to it.
    pub(crate) fn insert(&mut self, token: Token, connection: C) {
        let index = token.slot_index();
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        let taken = self.slots[index].replace((token, connection));
        assert!(taken.is_none(), "bug: slot {index} was reused before it was reported closed");
    }

    #[inline]
    pub(crate) fn find(&self, token: Token) -> Option<&C> {
        match self.slots.get(token.slot_index()) {
            Some(Some((owner, connection))) if *owner == token => Some(connection),
            Some(_) | None => None,
        }
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, token: Token) -> Option<&mut C> {
        match self.slots.get_mut(token.slot_index()) {
            Some(Some((owner, connection))) if *owner == token => Some(connection),
            Some(_) | None => None,
        }
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<C> {
        self.find(token)?;
        self.slots[token.slot_index()].take().map(|(_, connection)| connection)
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.slots.iter().flatten().map(|(token, _)| *token).collect()
    }
}

/// The part of a send that the kernel had not taken when `send` returned. It owns the bytes until
/// the operation's final completion.
#[derive(Debug)]
pub(crate) struct Remainder {
    outgoing: Outgoing,
    /// Bytes of `outgoing` that the kernel has; less than its length until done.
    position: usize,
    /// Bytes of them that it took after `send` returned.
    taken_since: usize,
}

impl Remainder {
    pub(crate) fn new(outgoing: Outgoing, taken: usize) -> Self {
        debug_assert!(taken < outgoing.len(), "nothing would remain");
        Self { outgoing, position: taken, taken_since: 0 }
    }

    /// What is left of head and body.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let head = &self.outgoing.head[..];
        let body = &self.outgoing.body[..];
        if self.position < head.len() {
            [&head[self.position..], body]
        } else {
            [&[], &body[self.position - head.len()..]]
        }
    }

    /// The first part that is not empty, and whether bytes follow it at once.
    pub(crate) fn next_part(&self) -> (&[u8], bool) {
        match self.parts() {
            [[], body] => (body, self.outgoing.more),
            [head, body] => (head, self.outgoing.more || !body.is_empty()),
        }
    }

    /// Whether bytes follow the last of this send at once.
    pub(crate) fn more(&self) -> bool {
        self.outgoing.more
    }

    /// The kernel took `bytes` more; a number beyond what it was given counts as all of it.
    pub(crate) fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.outgoing.len() - self.position);
        self.position += bytes;
        self.taken_since += bytes;
    }

    /// What was taken so far counts as taken before `send` returned.
    pub(crate) fn forget_taken(&mut self) {
        self.taken_since = 0;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.position == self.outgoing.len()
    }

    pub(crate) fn taken_since(&self) -> usize {
        self.taken_since
    }
}

/// How a connection is given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// The peer sees FIN.
    Close,
    /// The peer sees RST.
    Reset,
}

/// The receive operation of one connection: what was asked, and what the kernel holds.
///
/// | state    | start    | stop     | cut short | no buffers | cancelled | over |
/// |----------|----------|----------|-----------|------------|-----------|------|
/// | Idle     | Armed    | Idle     | –         | –          | –         | –    |
/// | Armed    | Armed    | Stopping | Armed     | Starved    | Armed     | Over |
/// | Stopping | Resuming | Stopping | Idle      | Idle       | Idle      | Over |
/// | Resuming | Resuming | Stopping | Armed     | Starved    | Armed     | Over |
/// | Starved  | Starved  | Idle     | –         | –          | –         | –    |
/// | Over     | Over     | Over     | –         | –          | –         | –    |
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reading {
    /// Nothing asked, nothing in flight.
    Idle,
    /// In flight.
    Armed,
    /// In flight and a cancel is on its way.
    Stopping,
    /// As `Stopping`, but reading is wanted again once the cancelled operation is gone.
    Resuming,
    /// Wanted, but not in flight: the buffers had run out.
    Starved,
    /// End of stream or an error: never again.
    Over,
}

/// What a receive operation's final completion said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecvEnd {
    /// The operation ended although the stream did not (a full completion queue, a signal).
    CutShort,
    /// No buffer was free.
    NoBuffers,
    /// A cancel reached it.
    Cancelled,
    /// The stream ended, well or badly.
    Over,
}

/// What to do after it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecvNext {
    /// Nothing is wanted.
    Rest,
    /// Submit another.
    Rearm,
    /// Submit another when buffers are back.
    Starve,
}

impl Reading {
    /// True: submit a receive.
    pub(crate) fn start(&mut self) -> bool {
        match self {
            Self::Idle => {
                *self = Self::Armed;
                true
            }
            Self::Stopping => {
                *self = Self::Resuming;
                false
            }
            Self::Armed | Self::Resuming | Self::Starved | Self::Over => false,
        }
    }

    /// True: submit a cancel.
    pub(crate) fn stop(&mut self) -> bool {
        match self {
            Self::Armed => {
                *self = Self::Stopping;
                true
            }
            Self::Resuming => {
                *self = Self::Stopping;
                false
            }
            Self::Starved => {
                *self = Self::Idle;
                false
            }
            Self::Idle | Self::Stopping | Self::Over => false,
        }
    }

    /// Buffers are back. True: submit a receive.
    pub(crate) fn feed(&mut self) -> bool {
        let starved = *self == Self::Starved;
        if starved {
            *self = Self::Armed;
        }
        starved
    }

    /// The operation's final completion arrived.
    pub(crate) fn ended(&mut self, end: RecvEnd) -> RecvNext {
        let wanted = match self {
            Self::Armed | Self::Resuming => true,
            Self::Stopping => false,
            // Nothing was in flight: a completion that answers nothing changes nothing.
            Self::Idle | Self::Starved | Self::Over => return RecvNext::Rest,
        };
        let (state, next) = match (end, wanted) {
            (RecvEnd::Over, true | false) => (Self::Over, RecvNext::Rest),
            (RecvEnd::CutShort | RecvEnd::NoBuffers | RecvEnd::Cancelled, false) => {
                (Self::Idle, RecvNext::Rest)
            }
            (RecvEnd::CutShort | RecvEnd::Cancelled, true) => (Self::Armed, RecvNext::Rearm),
            (RecvEnd::NoBuffers, true) => (Self::Starved, RecvNext::Starve),
        };
        *self = state;
        next
    }

    pub(crate) fn is_in_flight(self) -> bool {
        match self {
            Self::Armed | Self::Stopping | Self::Resuming => true,
            Self::Idle | Self::Starved | Self::Over => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const STATES: [Reading; 6] = [
        Reading::Idle,
        Reading::Armed,
        Reading::Stopping,
        Reading::Resuming,
        Reading::Starved,
        Reading::Over,
    ];

    /// Builds the table by trying every pair and compares it with the one in the documentation.
    #[test]
    fn the_documented_table_of_reading_is_the_code() {
        let mut built = String::new();
        for state in STATES {
            let mut row = vec![format!("{state:?}")];
            let after = |act: &dyn Fn(&mut Reading)| {
                let mut reading = state;
                act(&mut reading);
                format!("{reading:?}")
            };
            row.push(after(&|reading| _ = reading.start()));
            row.push(after(&|reading| _ = reading.stop()));
            for end in [RecvEnd::CutShort, RecvEnd::NoBuffers, RecvEnd::Cancelled, RecvEnd::Over] {
                if state.is_in_flight() {
                    row.push(after(&|reading| _ = reading.ended(end)));
                } else {
                    row.push("–".to_owned());
                    let mut reading = state;
                    assert_eq!(reading.ended(end), RecvNext::Rest);
                    assert_eq!(reading, state, "an answer to nothing changed {state:?}");
                }
            }
            built.push_str(&row.join(" "));
            built.push('\n');
        }
        let documented: String = include_str!("custody.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("/// | "))
            .filter(|line| STATES.iter().any(|state| line.starts_with(&format!("{state:?} "))))
            .map(|line| {
                let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
                cells.join(" ").trim().to_owned() + "\n"
            })
            .collect();
        assert_eq!(built, documented);
    }

    /// Hazard 13: whatever a cancel says, and in whatever order, only the operation's own final
    /// completion ends it, and it ends it once.
    #[test]
    fn hazard_13_only_the_operations_own_completion_ends_it() {
        for end in [RecvEnd::CutShort, RecvEnd::NoBuffers, RecvEnd::Cancelled, RecvEnd::Over] {
            let mut reading = Reading::Idle;
            assert!(reading.start());
            assert!(reading.stop());
            assert!(reading.is_in_flight(), "a cancel that was sent ends nothing");
            assert_eq!(reading.ended(end), RecvNext::Rest);
            assert!(!reading.is_in_flight());
            assert_eq!(reading.ended(RecvEnd::Cancelled), RecvNext::Rest);
            assert!(!reading.is_in_flight());
        }
    }

    #[test]
    fn a_table_finds_nothing_under_an_old_generation() {
        let mut table = Table::new();
        let first = Token::new(3, 7);
        table.insert(first, "first");
        assert_eq!(table.find(first), Some(&"first"));
        assert_eq!(table.find(first.successor()), None);
        assert_eq!(table.find(Token::new(2, 7)), None);
        assert_eq!(table.find(Token::new(4_000_000, 7)), None);
        assert_eq!(table.remove(first.successor()), None);
        assert_eq!(table.remove(first), Some("first"));
        assert!(table.tokens().is_empty());
        table.insert(first.successor(), "second");
        assert_eq!(table.find_mut(first), None);
        assert_eq!(table.tokens(), [first.successor()]);
    }

    #[test]
    #[should_panic(expected = "slot 1 was reused before it was reported closed")]
    fn hazard_02_a_slot_in_use_cannot_be_taken() {
        let mut table = Table::new();
        table.insert(Token::new(1, 0), ());
        table.insert(Token::new(1, 1), ());
    }

    #[test]
    fn a_remainder_gives_every_byte_once_at_every_split() {
        let head = Bytes::from_static(b"head");
        let body = Bytes::from_static(b"body!");
        for taken in 0..head.len() + body.len() {
            for step in 1..=head.len() + body.len() {
                let outgoing = Outgoing { head: head.clone(), body: body.clone(), more: false };
                let mut remainder = Remainder::new(outgoing, taken);
                let mut seen = Vec::new();
                while !remainder.is_done() {
                    let (part, more) = remainder.next_part();
                    assert_eq!(more, part.len() < remainder.parts().concat().len());
                    let count = part.len().min(step);
                    seen.extend_from_slice(&part[..count]);
                    remainder.advance(count);
                }
                assert_eq!(seen, b"headbody!"[taken..]);
                assert_eq!(remainder.taken_since(), 9 - taken);
            }
        }
    }

    #[test]
    fn a_kernel_that_claims_too_much_is_not_believed() {
        let outgoing = Outgoing { head: Bytes::from_static(b"abc"), ..Outgoing::default() };
        let mut remainder = Remainder::new(outgoing, 1);
        remainder.advance(usize::MAX);
        assert!(remainder.is_done());
        assert_eq!(remainder.taken_since(), 2);
    }

    /// Hazard 1: the bytes live as long as the remainder, and no longer.
    #[test]
    fn hazard_01_bytes_live_until_the_remainder_goes() {
        struct Owner(std::sync::Arc<()>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                assert_eq!(std::sync::Arc::strong_count(&self.0), 2);
                b"owned"
            }
        }
        let alive = std::sync::Arc::new(());
        let body = Bytes::from_owner(Owner(alive.clone()));
        let remainder = Remainder::new(Outgoing { body, ..Outgoing::default() }, 0);
        let address = remainder.next_part().0.as_ptr();
        let mut table = Table::new();
        table.insert(Token::new(0, 0), remainder);
        for index in 1..100 {
            let head = Bytes::from_static(b"other");
            table.insert(
                Token::new(index, 0),
                Remainder::new(Outgoing { head, ..Outgoing::default() }, 0),
            );
        }
        let held = table.find(Token::new(0, 0)).map(|remainder| remainder.next_part().0.as_ptr());
        assert_eq!(held, Some(address), "the bytes moved with the table");
        assert_eq!(std::sync::Arc::strong_count(&alive), 2);
        drop(table.remove(Token::new(0, 0)));
        assert_eq!(std::sync::Arc::strong_count(&alive), 1);
    }
}
