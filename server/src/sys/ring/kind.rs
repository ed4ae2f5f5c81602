//! What a completion belongs to: the kind of operation in its `user_data`.

use crate::reactor::token::Token;

/// What an operation is: the top 8 bits of its `user_data`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Kind {
    Accept = 1,
    Recv,
    Send,
    Writable,
    Wake,
    /// A cancel of the kind that is its number less 16.
    CancelAccept = 17,
    CancelRecv,
    CancelSend,
    CancelWritable,
    CancelWake,
}

impl Kind {
    pub(super) const fn of(user_data: u64) -> Option<Self> {
        Some(match user_data >> 56 {
            1 => Self::Accept,
            2 => Self::Recv,
            3 => Self::Send,
            4 => Self::Writable,
            5 => Self::Wake,
            17 => Self::CancelAccept,
            18 => Self::CancelRecv,
            19 => Self::CancelSend,
            20 => Self::CancelWritable,
            21 => Self::CancelWake,
            _ => return None,
        })
    }

    pub(super) const fn user_data(self, token: Token) -> u64 {
        (self as u64) << 56 | token.bits()
    }

    pub(super) const fn cancel(self) -> Self {
        match self {
            Self::Accept | Self::CancelAccept => Self::CancelAccept,
            Self::Recv | Self::CancelRecv => Self::CancelRecv,
            Self::Send | Self::CancelSend => Self::CancelSend,
            Self::Writable | Self::CancelWritable => Self::CancelWritable,
            Self::Wake | Self::CancelWake => Self::CancelWake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_survives_the_trip_through_user_data() {
        let kinds = [Kind::Accept, Kind::Recv, Kind::Send, Kind::Writable, Kind::Wake];
        for kind in kinds.into_iter().flat_map(|kind| [kind, kind.cancel()]) {
            let token = Token::new(u32::MAX, 0x00ff_ffff);
            assert_eq!(Kind::of(kind.user_data(token)), Some(kind));
            assert_eq!(Token::from_bits(kind.user_data(token)), token);
        }
        assert_eq!(Kind::of(0), None);
        assert_eq!(Kind::of(u64::MAX), None);
    }
}
