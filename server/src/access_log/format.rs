//! `--access-log-format '%…'`: text and atoms, understood once at start.
//!
//! The atoms are gunicorn's and a few of our own; see [`ATOMS`]. They are spelled as gunicorn does,
//! `%(h)s` and `%({Name}i)s`, or as Apache does, `%h` and `%{Name}i`.

use super::text::Quoting;

/// A format that has been understood.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Format {
    pub(super) pieces: Vec<Piece>,
}

/// A part of a line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Piece {
    /// As it stands.
    Text(String),
    /// What differs from line to line.
    Atom(Atom, Quoting),
}

/// What stands for a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Atom {
    Remote,
    RemotePort,
    /// Always `-`: nobody asks identd.
    Ident,
    User,
    Time,
    RequestLine,
    Method,
    Target,
    Path,
    Query,
    Protocol,
    Status,
    Bytes,
    BytesOrDash,
    Seconds,
    Milliseconds,
    Microseconds,
    DecimalSeconds,
    ProcessInAngles,
    Queue,
    Run,
    Write,
    Total,
    Aborted,
    RequestId,
    Worker,
    Process,
    /// The lower-case name.
    RequestField(Vec<u8>),
    /// The lower-case name.
    ResponseField(Vec<u8>),
}

/// Atoms that are one word. A word of one letter may also be spelled as Apache does.
const WORDS: [(&str, Atom); 25] = [
    ("h", Atom::Remote),
    ("l", Atom::Ident),
    ("u", Atom::User),
    ("t", Atom::Time),
    ("r", Atom::RequestLine),
    ("m", Atom::Method),
    ("U", Atom::Path),
    ("q", Atom::Query),
    ("H", Atom::Protocol),
    ("s", Atom::Status),
    ("B", Atom::Bytes),
    ("b", Atom::BytesOrDash),
    ("T", Atom::Seconds),
    ("M", Atom::Milliseconds),
    ("D", Atom::Microseconds),
    ("L", Atom::DecimalSeconds),
    ("p", Atom::ProcessInAngles),
    ("queue", Atom::Queue),
    ("app", Atom::Run),
    ("write", Atom::Write),
    ("total", Atom::Total),
    ("aborted", Atom::Aborted),
    ("id", Atom::RequestId),
    ("worker", Atom::Worker),
    ("pid", Atom::Process),
];

/// The two words that are fields of the request.
const FIELD_WORDS: [(&str, &[u8]); 2] = [("f", b"referer"), ("a", b"user-agent")];

/// Variables of the environ that are known without Python.
const VARIABLES: [(&str, Atom); 7] = [
    ("REQUEST_METHOD", Atom::Method),
    ("REQUEST_URI", Atom::Target),
    ("RAW_URI", Atom::Target),
    ("QUERY_STRING", Atom::Query),
    ("SERVER_PROTOCOL", Atom::Protocol),
    ("REMOTE_ADDR", Atom::Remote),
    ("REMOTE_PORT", Atom::RemotePort),
];

/// For messages: every atom there is.
const ATOMS: &str = "h l u t r m U q H s B b f a T M D L p, {Name}i, {Name}o, {VARIABLE}e, queue app \
                     write total aborted id worker pid";

impl Format {
    /// Understands a format. The error completes "expected …".
    ///
    /// # Errors
    /// An atom that there is not, named with those that there are; a control character; no atom.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: text, pieces: Vec::new(), is_quoted: false };
        parser.run()?;
        let has_atom = parser.pieces.iter().any(|piece| matches!(piece, Piece::Atom(..)));
        if !has_atom {
            return Err("combined, json, or a format with atoms such as '%(h)s %(r)s %(s)s'".into());
        }
        Ok(Self { pieces: parser.pieces })
    }

    /// Whether a field of the response is in it.
    pub(super) fn wants_response(&self) -> bool {
        let is_field = |piece: &Piece| matches!(piece, Piece::Atom(Atom::ResponseField(_), _));
        self.pieces.iter().any(is_field)
    }
}

struct Parser<'text> {
    rest: &'text str,
    pieces: Vec<Piece>,
    /// An odd number of quotes came before.
    is_quoted: bool,
}

impl<'text> Parser<'text> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(letter) = self.take() {
            match letter {
                '%' => self.atom()?,
                control if control.is_control() && control != '\t' => {
                    return Err("a format on one line, without control characters".into());
                }
                other => self.push_text(other),
            }
        }
        Ok(())
    }

    /// What follows a percent sign.
    fn atom(&mut self) -> Result<(), String> {
        let start = self.rest;
        let found = match self.take() {
            Some('%') => {
                self.push_text('%');
                return Ok(());
            }
            Some('(') => self.until(')').and_then(|name| {
                // Python's conversions that every atom of gunicorn's takes or a number does.
                matches!(self.take(), Some('s' | 'd')).then(|| named(name)).flatten()
            }),
            Some('{') => self.until('}').and_then(|name| braced(name, self.take()?)),
            // Apache's "of the last request": there is but one.
            Some('>') if self.rest.starts_with('s') => self.take().and(word("s")),
            Some(letter) => word(&start[..letter.len_utf8()]),
            None => None,
        };
        let spelled = &start[..start.len() - self.rest.len()];
        let atom = found.ok_or_else(|| refusal(spelled))?;
        let quoting = if self.is_quoted { Quoting::Quoted } else { Quoting::Bare };
        self.pieces.push(Piece::Atom(atom, quoting));
        Ok(())
    }

    fn take(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    fn until(&mut self, end: char) -> Option<&'text str> {
        let (before, after) = self.rest.split_once(end)?;
        self.rest = after;
        Some(before)
    }

    fn push_text(&mut self, letter: char) {
        self.is_quoted ^= letter == '"';
        if let Some(Piece::Text(text)) = self.pieces.last_mut() {
            text.push(letter);
        } else {
            self.pieces.push(Piece::Text(letter.into()));
        }
    }
}

/// What stands between the parentheses of gunicorn's spelling.
fn named(name: &str) -> Option<Atom> {
    match name.strip_prefix('{') {
        Some(rest) => {
            let (name, kind) = rest.split_once('}')?;
            let mut letters = kind.chars();
            braced(name, letters.next()?).filter(|_| letters.next().is_none())
        }
        None => word(name),
    }
}

fn word(name: &str) -> Option<Atom> {
    let of_field = |(_, field): &(&str, &[u8])| Atom::RequestField(field.to_vec());
    let found = WORDS.iter().find(|(word, _)| *word == name).map(|(_, atom)| atom.clone());
    found.or_else(|| FIELD_WORDS.iter().find(|(word, _)| *word == name).map(of_field))
}

fn braced(name: &str, kind: char) -> Option<Atom> {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    let lower = name.to_ascii_lowercase().into_bytes();
    match kind {
        _ if !is_name => None,
        'i' => Some(Atom::RequestField(lower)),
        'o' => Some(Atom::ResponseField(lower)),
        'e' => variable(&name.to_ascii_uppercase()),
        _ => None,
    }
}

fn variable(name: &str) -> Option<Atom> {
    let field = match name {
        "CONTENT_TYPE" | "CONTENT_LENGTH" => Some(name),
        _ => name.strip_prefix("HTTP_"),
    };
    if let Some(field) = field {
        return Some(Atom::RequestField(field.to_ascii_lowercase().replace('_', "-").into_bytes()));
    }
    VARIABLES.iter().find(|(variable, _)| *variable == name).map(|(_, atom)| atom.clone())
}

#[cold]
fn refusal(spelled: &str) -> String {
    let shown: String = spelled.chars().take(64).collect();
    let hint = if spelled.trim_end_matches(')').ends_with("}e") || spelled.contains("}e)") {
        ": the variables known without the application are REQUEST_METHOD REQUEST_URI RAW_URI \
         QUERY_STRING SERVER_PROTOCOL REMOTE_ADDR REMOTE_PORT CONTENT_TYPE CONTENT_LENGTH and HTTP_…"
    } else {
        ""
    };
    format!(
        "combined, json, or a format of known atoms, and \"%{shown}\" is none{hint}; there are \
         {ATOMS}, written %(h)s or %h, and %% for a percent sign"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atoms(text: &str) -> Vec<Atom> {
        let atom = |piece| match piece {
            Piece::Atom(atom, _) => Some(atom),
            Piece::Text(_) => None,
        };
        Format::parse(text).unwrap().pieces.into_iter().filter_map(atom).collect()
    }

    #[test]
    fn both_spellings_mean_the_same() {
        for (word, atom) in WORDS.iter().filter(|(word, _)| word.len() == 1) {
            assert_eq!(atoms(&format!("%({word})s%{word}")), [atom.clone(), atom.clone()]);
        }
        assert_eq!(atoms("%({X-A}i)s%{x-a}i"), atoms("%({x-A}i)s%({HTTP_X_A}e)s"));
        assert_eq!(atoms("%({X-A}o)s"), [Atom::ResponseField(b"x-a".to_vec())]);
        assert_eq!(atoms("%a%(a)s"), atoms("%{User-Agent}i%({user-agent}i)s"));
        assert_eq!(atoms("%>s%(D)d"), [Atom::Status, Atom::Microseconds]);
        assert_eq!(atoms("%(queue)s%(id)s"), [Atom::Queue, Atom::RequestId]);
    }

    #[test]
    fn text_is_kept_and_a_quote_opens_and_closes() {
        let format = Format::parse("100%% \"%h\" é %h").unwrap();
        let text = |text: &str| Piece::Text(text.to_owned());
        let quoted = Piece::Atom(Atom::Remote, Quoting::Quoted);
        let bare = Piece::Atom(Atom::Remote, Quoting::Bare);
        assert_eq!(format.pieces, [text("100% \""), quoted, text("\" é "), bare]);
        assert!(!format.wants_response() && Format::parse("%{a}o").unwrap().wants_response());
    }

    #[test]
    fn a_wrong_atom_is_named() {
        for (wrong, named) in [
            ("%h %(x)s", "%(x)s"),
            ("%z", "%z"),
            ("%h %", "%"),
            ("%(h", "%("),
            ("%(h)", "%(h)"),
            ("%(h)f", "%(h)f"),
            ("%{a}z", "%{a}z"),
            ("%{}i", "%{}i"),
            ("%({a}ii)s", "%({a}ii)s"),
            ("%({wsgi.input}e)s", "%({wsgi.input}e)s"),
            ("%é", "%é"),
        ] {
            let error = Format::parse(wrong).unwrap_err();
            assert!(error.contains(&format!("\"{named}\" is none")), "{error}");
        }
        assert!(Format::parse("%({PATH_INFO}e)s").unwrap_err().contains("REMOTE_ADDR"));
        assert!(Format::parse("combine").unwrap_err().contains("combined, json"));
        assert!(Format::parse("%h\n").unwrap_err().contains("one line"));
    }
}
