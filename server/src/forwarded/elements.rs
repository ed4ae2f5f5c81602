//! The elements of one line of `Forwarded`: who wrote down what.
//!
//! ```text
//! Forwarded         = 1#forwarded-element
//! forwarded-element = [ forwarded-pair ] *( ";" [ forwarded-pair ] )
//! forwarded-pair    = token "=" ( token / quoted-string )
//! ```
//!
//! **Source**: RFC 7239 §4. White space around the separators, which proxies write, is allowed.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::http::grammar::{is_field_text, is_token_byte, trim_optional_space};
use crate::limits::PROXY_HOPS_MAX;

/// What one proxy wrote, unquoted; parameters of other names are left out.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Element<'line> {
    pub(super) client: Option<Cow<'line, [u8]>>,
    pub(super) proto: Option<Cow<'line, [u8]>>,
    pub(super) host: Option<Cow<'line, [u8]>>,
}

/// The last [`PROXY_HOPS_MAX`] elements of a line, empty ones included; `None`: it is malformed.
pub(super) fn of(line: &[u8]) -> Option<VecDeque<Element<'_>>> {
    let mut elements = VecDeque::new();
    let mut rest = line;
    loop {
        let (element, behind) = element(rest)?;
        if elements.len() >= PROXY_HOPS_MAX {
            elements.pop_front();
        }
        elements.push_back(element);
        match behind.split_first() {
            Some((b',', behind)) => rest = behind,
            Some(_) => return None,
            None => return Some(elements),
        }
    }
}

/// One element and what follows it.
fn element(text: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let mut element = Element::default();
    let mut rest = text;
    loop {
        rest = trim_optional_space(rest);
        if !matches!(rest.first(), None | Some(b',' | b';')) {
            let (name, behind) = token(rest)?;
            let (value, behind) = value(behind.strip_prefix(b"=")?)?;
            element.set(name, value)?;
            rest = trim_optional_space(behind);
        }
        match rest.split_first() {
            Some((b';', behind)) => rest = behind,
            Some(_) | None => return Some((element, rest)),
        }
    }
}

impl<'line> Element<'line> {
    /// `None`: the parameter stands there already, which RFC 7239 §4 forbids.
    fn set(&mut self, name: &[u8], value: Cow<'line, [u8]>) -> Option<()> {
        let place = if name.eq_ignore_ascii_case(b"for") {
            &mut self.client
        } else if name.eq_ignore_ascii_case(b"proto") {
            &mut self.proto
        } else if name.eq_ignore_ascii_case(b"host") {
            &mut self.host
        } else {
            return Some(());
        };
        place.replace(value).is_none().then_some(())
    }
}

/// A token and what follows it.
fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(text.len());
    text.split_at_checked(end).filter(|(token, _)| !token.is_empty())
}

/// A token or an unquoted string, and what follows it.
fn value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    match text {
        [b'"', quoted @ ..] => quoted_string(quoted),
        _ => token(text).map(|(value, behind)| (Cow::Borrowed(value), behind)),
    }
}

/// What stands before the closing quote, without its escapes. **Source**: RFC 9110 §5.6.4.
fn quoted_string(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let end = text.iter().position(|&byte| matches!(byte, b'"' | b'\\'))?;
    let (plain, rest) = text.split_at_checked(end)?;
    if let [b'"', behind @ ..] = rest {
        return is_field_text(plain).then_some((Cow::Borrowed(plain), behind));
    }
    let mut unescaped = plain.to_vec();
    let mut rest = rest;
    loop {
        match rest {
            [b'"', behind @ ..] => {
                return is_field_text(&unescaped).then_some((Cow::Owned(unescaped), behind));
            }
            [b'\\', byte, behind @ ..] | [byte, behind @ ..] => {
                unescaped.push(*byte);
                rest = behind;
            }
            [] => return None,
        }
    }
}
