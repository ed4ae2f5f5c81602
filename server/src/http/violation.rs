//! What a peer can do wrong, and what it is told.

/// One row per rule that a peer can break.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Violation {
    /// The head is not one.
    Malformed,
}

impl Violation {
    /// The status code of the answer.
    #[must_use]
    pub fn status(self) -> u16 {
        400
    }
}
