//! What ends the command before it serves: whose fault it is and the exit code that says so.

use std::fmt;

/// Whose fault it is. **Source**: PRODUCTION.md §1, the exit codes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// A flag, a variable or a key of a file cannot be meant.
    Usage,
    /// The server could not start: a port in use, an application that cannot be imported.
    Start,
    /// The configuration is sound and this machine cannot run it.
    Machine,
}

/// One sentence for the operator: the thing, the value, the limit and the next step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// Whose fault.
    pub kind: FaultKind,
    /// For the operator.
    pub sentence: String,
}

impl Fault {
    /// The command line, the environment or a file is wrong.
    #[must_use]
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self { kind: FaultKind::Usage, sentence: sentence.into() }
    }

    /// The start failed.
    #[must_use]
    pub fn start(sentence: impl Into<String>) -> Self {
        Self { kind: FaultKind::Start, sentence: sentence.into() }
    }

    /// This machine cannot do it.
    #[must_use]
    pub fn machine(sentence: impl Into<String>) -> Self {
        Self { kind: FaultKind::Machine, sentence: sentence.into() }
    }

    /// What the process exits with: 2 usage, 1 start, 78 machine (`EX_CONFIG` of sysexits.h).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FaultKind::Usage => 2,
            FaultKind::Start => 1,
            FaultKind::Machine => 78,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sentence)
    }
}

impl std::error::Error for Fault {}
