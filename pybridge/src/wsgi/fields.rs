//! Header fields of a request as keys of the environ: which key a field has, remembered per thread.
//!
//! A client sends the same names, and often the same values, with every request. Both are kept as
//! Python strings in a table of fixed size, so the usual field costs a comparison and no allocation.

use std::hash::{BuildHasher, RandomState};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::capi;

/// Pairs of places; a name may stand in either place of its pair. A power of two.
const PAIR_COUNT: usize = 256;
/// Longer names are not remembered. **Unit**: bytes.
const NAME_BYTES_MAX: usize = 64;
/// Longer values are not remembered. **Unit**: bytes.
const VALUE_BYTES_MAX: usize = 160;

/// Keys that one thread interns. **Unit**: keys.
const INTERNED_COUNT_MAX: usize = 256;

/// What a field becomes. **Source**: RFC 3875 §4.1, PEP 3333.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// Nothing: the body's length is told by `CONTENT_LENGTH`, its coding is already removed, `Proxy`
    /// would pose as the variable `HTTP_PROXY`, and a name with an underscore as another field.
    Dropped,
    /// Its key; a second field of the name is joined with a comma (RFC 9110 §5.2).
    Listed,
    /// Its key; more than one is joined as a cookie string is (RFC 9113 §8.2.3).
    Cookie,
    /// Its key, but an absolute-form target's authority comes first (RFC 9112 §3.2.2).
    Host,
}

impl Kind {
    fn of(name: &[u8]) -> Self {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if name.contains(&b'_') || is("proxy") || is("content-length") || is("transfer-encoding") {
            Self::Dropped
        } else if is("cookie") {
            Self::Cookie
        } else if is("host") {
            Self::Host
        } else {
            Self::Listed
        }
    }
}

/// The key of a field's name: `HTTP_` and the name in upper case with `_` for `-`.
fn key_bytes(name: &[u8]) -> Vec<u8> {
    if name.eq_ignore_ascii_case(b"content-type") {
        return b"CONTENT_TYPE".to_vec();
    }
    let upper =
        name.iter().map(|&byte| if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() });
    b"HTTP_".iter().copied().chain(upper).collect()
}

#[derive(Debug)]
struct Known {
    /// As sent.
    name: Box<[u8]>,
    kind: Kind,
    key: Py<PyString>,
    /// The last value, unless it may be a secret.
    value: Option<Py<PyString>>,
}

/// Remembers names and values; owned by one thread.
#[derive(Debug)]
pub(super) struct FieldTable {
    places: Box<[Option<Known>]>,
    /// How many more keys may be interned. Python 3.12 keeps an interned string for ever, so names
    /// that a client makes up must run into a bound.
    interned_left: usize,
    seed: u64,
}

impl FieldTable {
    pub(super) fn new() -> Self {
        let places = std::iter::repeat_with(|| None).take(PAIR_COUNT * 2).collect();
        // Random, so that a client cannot know which names share a pair; odd, so that it is a bijection.
        let seed = RandomState::new().hash_one(PAIR_COUNT) | 1;
        Self { places, interned_left: INTERNED_COUNT_MAX, seed }
    }

    /// The pair of a name, the same for every spelling of it: `|0x20` folds the case of letters, and
    /// what else it folds only shares a pair.
    fn pair_of(&self, name: &[u8]) -> usize {
        let mix = |hash: u64, word: u64| {
            (hash.rotate_left(23) ^ (word | 0x2020_2020_2020_2020)).wrapping_mul(self.seed)
        };
        let (words, rest) = name.as_chunks::<8>();
        let start = self.seed ^ name.len() as u64;
        let hash = words.iter().fold(start, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        let last = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let hash = mix(hash, last);
        (hash >> 48) as usize % PAIR_COUNT
    }

    /// Sets the keys of all fields of a request in `environ`, which has none of them yet.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn set_all<'head>(
        &mut self,
        environ: &Bound<'_, PyDict>,
        fields: impl Iterator<Item = (&'head [u8], &'head [u8])>,
        authority: Option<&[u8]>,
    ) -> PyResult<()> {
        let py = environ.py();
        // Pairs met in this request: only a name whose pair was met can be a repetition.
        let mut met = [0_u64; PAIR_COUNT / 64];
        for (name, value) in fields {
            let pair = self.pair_of(name);
            let bit = 1_u64 << (pair % 64);
            let repeated = met[pair / 64] & bit != 0;
            met[pair / 64] |= bit;
            let mut fresh = None;
            let known = self.known(py, pair, name, &mut fresh)?;
            match known.kind {
                Kind::Dropped => {}
                Kind::Host if authority.is_some() => {}
                Kind::Listed | Kind::Cookie | Kind::Host => {
                    let earlier = if repeated { environ.get_item(&known.key)? } else { None };
                    let value = match earlier {
                        Some(earlier) => joined(&earlier, known.kind, value)?,
                        None => known.value_string(py, value)?,
                    };
                    environ.set_item(&known.key, value)?;
                }
            }
        }
        if let Some(authority) = authority {
            let key = pyo3::intern!(py, "HTTP_HOST");
            environ.set_item(key, capi::latin1_string(py, authority)?)?;
        }
        Ok(())
    }

    fn known<'table>(
        &'table mut self,
        py: Python<'_>,
        pair: usize,
        name: &[u8],
        fresh: &'table mut Option<Known>,
    ) -> PyResult<&'table mut Known> {
        let holds =
            |place: &Option<Known>| place.as_ref().is_some_and(|known| *known.name == *name);
        let (first, second) = (pair * 2, pair * 2 + 1);
        let place = if holds(&self.places[first]) {
            &mut self.places[first]
        } else if holds(&self.places[second]) {
            &mut self.places[second]
        } else if name.len() > NAME_BYTES_MAX {
            *fresh = Some(Known::new(py, name, false)?);
            fresh
        } else {
            // The first place is for what came first and stays; a stream of new names changes the
            // second place only.
            let place = if self.places[first].is_none() { first } else { second };
            let interned = self.interned_left > 0;
            self.interned_left -= usize::from(interned);
            self.places[place] = Some(Known::new(py, name, interned)?);
            &mut self.places[place]
        };
        place.as_mut().ok_or_else(|| pyo3::exceptions::PySystemError::new_err("bug: no field"))
    }
}

impl Known {
    fn new(py: Python<'_>, name: &[u8], interned: bool) -> PyResult<Self> {
        let key = key_bytes(name);
        let key = match std::str::from_utf8(&key) {
            // Interned: the application's own constant is then the same object.
            Ok(key) if interned => PyString::intern(py, key),
            Ok(_) | Err(_) => capi::latin1_string(py, &key)?,
        };
        Ok(Self { name: name.into(), kind: Kind::of(name), key: key.unbind(), value: None })
    }

    fn value_string<'py>(
        &mut self,
        py: Python<'py>,
        value: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        if let Some(last) = &self.value {
            let last = last.bind(py);
            if capi::latin1_bytes(last) == Some(value) {
                return Ok(last.clone());
            }
        }
        let made = capi::latin1_string(py, value)?;
        if value.len() <= VALUE_BYTES_MAX && !self.may_be_secret() {
            self.value = Some(made.clone().unbind());
        }
        Ok(made)
    }

    fn may_be_secret(&self) -> bool {
        self.kind == Kind::Cookie || self.name.eq_ignore_ascii_case(b"authorization")
    }
}

fn joined<'py>(
    earlier: &Bound<'py, PyAny>,
    kind: Kind,
    value: &[u8],
) -> PyResult<Bound<'py, PyString>> {
    let earlier = earlier.cast::<PyString>()?;
    let mut bytes = capi::latin1_bytes(earlier).unwrap_or_default().to_vec();
    bytes.extend_from_slice(match kind {
        Kind::Cookie => b"; ",
        Kind::Dropped | Kind::Listed | Kind::Host => b",",
    });
    bytes.extend_from_slice(value);
    capi::latin1_string(earlier.py(), &bytes)
}
