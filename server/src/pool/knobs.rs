//! The pool's knobs: environment variables for measurements and for tests that switch a rule off.
//!
//! They are not options: an operator needs none of them, and what each does may change with the
//! pool. A value that is not understood is named, with what is used instead.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::limits::WAKE_AGE;

/// What every knob's name begins with.
const PREFIX: &str = "HOOPSNAKE_POOL_";

/// What `_WAKE_AGE_US` may be. **Unit**: microseconds.
const WAKE_AGE_US: RangeInclusive<u64> = 1..=10_000_000;

/// What `_SPIN_US` may be. **Unit**: microseconds. **Why**: a longer spin is a busy core.
const SPIN_US: RangeInclusive<u64> = 0..=1_000;

/// The knobs as a worker uses them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Knobs {
    /// `_TURN`: threads hand the interpreter lock on after a millisecond.
    pub turn: bool,
    /// `_TURN_KEEP`: within that millisecond a thread takes queued jobs without letting go of it.
    pub turn_keep: bool,
    /// `_ELASTIC`: one idle thread spins at the most, and a job wakes nobody while a thread is awake.
    pub elastic: bool,
    /// `_PARALLEL`: every job wakes a parked thread; `None`: where there is no interpreter lock.
    pub parallel: Option<bool>,
    /// `_WAKE_AGE_US`: how long a ring may hold a job without moving before a sibling is woken.
    pub wake_age: Duration,
    /// `_SPIN_US`: how long an idle thread looks at the ring before it parks; `None`: not at all, or
    /// as every thread does that is not elastic.
    pub spin: Option<Duration>,
    /// `_DEBUG`: times are taken, and a table of them is printed when the worker ends.
    pub debug: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            turn: true,
            turn_keep: true,
            elastic: true,
            parallel: None,
            wake_age: WAKE_AGE,
            spin: None,
            debug: false,
        }
    }
}

/// A variable that is set: what it says, and what comes of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnobSet {
    /// Of the variable.
    pub name: String,
    /// As found.
    pub value: String,
    /// What was expected and what is used instead; `None`: the value is used.
    pub complaint: Option<String>,
}

impl std::fmt::Display for KnobSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.value)?;
        match &self.complaint {
            Some(complaint) => write!(f, ": {complaint}"),
            None => Ok(()),
        }
    }
}

impl Knobs {
    /// Reads the environment of this process. The second part: every knob that is set, by name.
    #[must_use]
    pub fn from_environment() -> (Self, Vec<KnobSet>) {
        Self::read(std::env::vars_os())
    }

    fn read(variables: impl Iterator<Item = (OsString, OsString)>) -> (Self, Vec<KnobSet>) {
        let mut knobs = Self::default();
        let mut set: Vec<KnobSet> = variables
            .filter_map(|(name, value)| {
                let name = name.to_str()?.strip_prefix(PREFIX)?.to_owned();
                let value = value.to_string_lossy().into_owned();
                let complaint = knobs.set(&name, &value).err();
                Some(KnobSet { name: format!("{PREFIX}{name}"), value, complaint })
            })
            .collect();
        set.sort_by(|one, other| one.name.cmp(&other.name));
        (knobs, set)
    }

    /// The error says what was expected and what is used instead.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "TURN" => switch(value, &mut self.turn),
            "TURN_KEEP" => switch(value, &mut self.turn_keep),
            "ELASTIC" => switch(value, &mut self.elastic),
            "DEBUG" => switch(value, &mut self.debug),
            "PARALLEL" => {
                let mut parallel = false;
                let known = switch(value, &mut parallel);
                if known.is_ok() {
                    self.parallel = Some(parallel);
                }
                known.map_err(|_| "expected 0 or 1; the interpreter decides".to_owned())
            }
            "WAKE_AGE_US" => microseconds(value, WAKE_AGE_US, &mut self.wake_age),
            "SPIN_US" => {
                let mut spin = Duration::ZERO;
                let known = microseconds(value, SPIN_US, &mut spin);
                if known.is_ok() {
                    self.spin = Some(spin);
                }
                known
                    .map_err(|_| "expected whole microseconds from 0 to 1000; it is not set".into())
            }
            _ => Err(format!(
                "there is no such knob; there are {PREFIX}TURN, _TURN_KEEP, _ELASTIC, _PARALLEL, \
                 _WAKE_AGE_US, _SPIN_US and _DEBUG"
            )),
        }
    }
}

fn switch(value: &str, into: &mut bool) -> Result<(), String> {
    *into = match value {
        "0" => false,
        "1" => true,
        _ => return Err(format!("expected 0 or 1; {} is used", u8::from(*into))),
    };
    Ok(())
}

fn microseconds(
    value: &str,
    range: RangeInclusive<u64>,
    into: &mut Duration,
) -> Result<(), String> {
    match value.parse() {
        Ok(number) if range.contains(&number) => {
            *into = Duration::from_micros(number);
            Ok(())
        }
        _ => Err(format!(
            "expected whole microseconds from {} to {}; {} is used",
            range.start(),
            range.end(),
            into.as_micros()
        )),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Knobs, Vec<String>) {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let (knobs, set) = Knobs::read(variables);
        (knobs, set.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_is_not_set_is_the_default_and_other_variables_are_nobodys_business() {
        let (knobs, set) = read(&[("HOOPSNAKE_THREADS", "4"), ("HOME", "/")]);
        assert_eq!(knobs, Knobs::default());
        assert!(set.is_empty());
    }

    #[test]
    fn every_knob_can_be_set() {
        let (knobs, set) = read(&[
            ("HOOPSNAKE_POOL_TURN", "0"),
            ("HOOPSNAKE_POOL_TURN_KEEP", "0"),
            ("HOOPSNAKE_POOL_ELASTIC", "0"),
            ("HOOPSNAKE_POOL_PARALLEL", "1"),
            ("HOOPSNAKE_POOL_WAKE_AGE_US", "500"),
            ("HOOPSNAKE_POOL_SPIN_US", "10"),
            ("HOOPSNAKE_POOL_DEBUG", "1"),
        ]);
        let wanted = Knobs {
            turn: false,
            turn_keep: false,
            elastic: false,
            parallel: Some(true),
            wake_age: Duration::from_micros(500),
            spin: Some(Duration::from_micros(10)),
            debug: true,
        };
        assert_eq!(knobs, wanted);
        assert_eq!(set.len(), 7);
        assert!(set.iter().all(|shown| !shown.contains(": ")));
    }

    #[test]
    fn a_value_that_is_not_understood_is_named_with_what_is_used_instead() {
        let (knobs, set) = read(&[
            ("HOOPSNAKE_POOL_TURN", "off"),
            ("HOOPSNAKE_POOL_PARALLEL", ""),
            ("HOOPSNAKE_POOL_WAKE_AGE_US", "0"),
            ("HOOPSNAKE_POOL_SPIN_US", "10us"),
            ("HOOPSNAKE_POOL_SPINS", "1"),
        ]);
        assert_eq!(knobs, Knobs::default());
        assert_eq!(
            set[..4],
            [
                "HOOPSNAKE_POOL_PARALLEL=: expected 0 or 1; the interpreter decides",
                "HOOPSNAKE_POOL_SPINS=1: there is no such knob; there are HOOPSNAKE_POOL_TURN, \
                 _TURN_KEEP, _ELASTIC, _PARALLEL, _WAKE_AGE_US, _SPIN_US and _DEBUG",
                "HOOPSNAKE_POOL_SPIN_US=10us: expected whole microseconds from 0 to 1000; it is not set",
                "HOOPSNAKE_POOL_TURN=off: expected 0 or 1; 1 is used",
            ]
        );
        assert!(set[4].ends_with("from 1 to 10000000; 200 is used"));
    }
}
