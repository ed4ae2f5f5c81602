//! What a peer can do wrong, and what it is told. The connection never outlives a violation.

use std::borrow::Cow;
use std::fmt;

macro_rules! violations {
    (
        plain { $($(#[$plain_doc:meta])* $plain:ident: $plain_status:literal,
            $plain_section:literal, $plain_text:literal;)* }
        limited { $($(#[$limited_doc:meta])* $limited:ident: $limited_status:literal,
            $limited_section:literal, $before:literal, $after:literal;)* }
    ) => {
        /// One row per rule that a peer can break.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Violation {
            $($(#[$plain_doc])* $plain,)*
            $($(#[$limited_doc])* $limited {
                /// The bound that was crossed.
                max: u64,
            },)*
        }

        impl Violation {
            /// Every row, for tests and documents; the bounds are examples.
            pub const ROWS: &[Self] =
                &[$(Self::$plain,)* $(Self::$limited { max: 1 },)*];

            /// The status code of the answer.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self {
                    $(Self::$plain => $plain_status,)*
                    $(Self::$limited { .. } => $limited_status,)*
                }
            }

            /// The rule, by its place in the specification.
            #[must_use]
            pub const fn section(self) -> &'static str {
                match self {
                    $(Self::$plain => $plain_section,)*
                    $(Self::$limited { .. } => $limited_section,)*
                }
            }

            /// What was wrong, for the client: one clause, and the limit where one was crossed.
            #[must_use]
            pub fn detail(self) -> Cow<'static, str> {
                match self {
                    $(Self::$plain => Cow::Borrowed($plain_text),)*
                    $(Self::$limited { max } => Cow::Owned(format!("{}{max}{}", $before, $after)),)*
                }
            }

            /// The row's name in this source, for logs and test vectors.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$plain => stringify!($plain),)*
                    $(Self::$limited { .. } => stringify!($limited),)*
                }
            }
        }
    };
}

violations! {
    plain {
        /// No `method SP target SP HTTP/x.y`.
        MalformedRequestLine: 400, "RFC 9112 §3", "the request line is malformed";
        /// A line that ends in LF alone.
        BareLineFeed: 400, "RFC 9112 §2.2", "a line ends in LF without CR";
        /// CR without LF.
        BareCarriageReturn: 400, "RFC 9112 §2.2", "a CR is not followed by LF";
        /// More empty lines before the request line than is robust.
        TooManyEmptyLines: 400, "RFC 9112 §2.2", "too many empty lines before the request line";
        /// Longer than any method there is.
        MethodTooLong: 501, "RFC 9112 §3", "the method is too long";
        /// `CONNECT`: this server is no proxy.
        ConnectMethod: 501, "RFC 9110 §9.3.6", "CONNECT is not implemented: this is no proxy";
        /// Control bytes or white space in the target.
        InvalidTarget: 400, "RFC 9112 §3.2", "the request target has invalid bytes";
        /// `#` in the target.
        TargetFragment: 400, "RFC 9112 §3.2", "the request target has a fragment";
        /// None of the four forms, or one that the method does not allow.
        TargetForm: 400, "RFC 9112 §3.2", "the form of the request target is not allowed here";
        /// An absolute form whose authority is no host.
        TargetAuthority: 400, "RFC 9110 §4.2.1", "the authority of the request target is invalid";
        /// `user@` in an absolute form.
        TargetUserinfo: 400, "RFC 9110 §4.2.4", "the request target has userinfo";
        /// Not HTTP/1.x.
        UnsupportedVersion: 505, "RFC 9110 §15.6.6", "only HTTP/1.1 and HTTP/1.0 are spoken here";
        /// A field line that begins with white space.
        ObsoleteFold: 400, "RFC 9112 §5.2", "a field line begins with white space (obs-fold)";
        /// White space between a field's name and its colon.
        SpaceBeforeColon: 400, "RFC 9112 §5.1", "white space before the colon of a field";
        /// A field name that is no token, or none at all.
        InvalidFieldName: 400, "RFC 9110 §5.1", "a field name is invalid";
        /// A control byte in a field value.
        InvalidFieldValue: 400, "RFC 9110 §5.5", "a field value has control bytes";
        /// HTTP/1.1 without a Host field.
        HostMissing: 400, "RFC 9112 §3.2", "the Host field is missing";
        /// Two Host fields.
        HostRepeated: 400, "RFC 9112 §3.2", "the Host field is repeated";
        /// A Host field that is no host and port.
        HostInvalid: 400, "RFC 9112 §3.2", "the Host field is invalid";
        /// A Content-Length that is not digits alone, or does not fit 64 bits.
        ContentLengthInvalid: 400, "RFC 9112 §6.3", "the Content-Length field is invalid";
        /// Two Content-Length fields, equal or not.
        ContentLengthRepeated: 400, "RFC 9112 §6.3", "the Content-Length field is repeated";
        /// Both fields that delimit a body.
        LengthAndCoding: 400, "RFC 9112 §6.3", "Transfer-Encoding and Content-Length together";
        /// Transfer-Encoding did not exist in HTTP/1.0.
        CodingInHttp10: 400, "RFC 9112 §6.1", "Transfer-Encoding in an HTTP/1.0 request";
        /// An empty list element.
        CodingInvalid: 400, "RFC 9112 §6.1", "the Transfer-Encoding field is invalid";
        /// The end of the body cannot be found.
        ChunkedNotFinal: 400, "RFC 9112 §6.3", "chunked is not the final transfer coding";
        /// `chunked, chunked`.
        ChunkedRepeated: 400, "RFC 9112 §6.1", "the chunked transfer coding is repeated";
        /// A coding before `chunked` that is not known.
        CodingUnknown: 501, "RFC 9112 §6.1", "only the chunked transfer coding is implemented";
        /// Something other than `100-continue`.
        UnknownExpectation: 417, "RFC 9110 §10.1.1", "only 100-continue can be expected";
        /// No hexadecimal number of 1 to 16 digits, or something other than an extension after it.
        ChunkSizeInvalid: 400, "RFC 9112 §7.1", "a chunk size is invalid";
        /// No `;name`, `;name=token` or `;name="quoted string"`.
        ChunkExtensionInvalid: 400, "RFC 9112 §7.1.1", "a chunk extension is invalid";
        /// More or fewer bytes than the chunk size said.
        ChunkEndInvalid: 400, "RFC 9112 §7.1", "a chunk does not end in CR LF";
        /// A trailer line that is no field.
        TrailerInvalid: 400, "RFC 9112 §7.1.2", "a trailer field is invalid";
        /// The head did not come in time.
        HeaderTimeout: 408, "RFC 9110 §15.5.9",
            "the head did not arrive in time (--header-timeout)";
        /// The body made no progress.
        BodyTimeout: 408, "RFC 9110 §15.5.9", "the body did not arrive in time (--body-timeout)";
    }
    limited {
        /// **Unit**: bytes, CR LF not counted.
        RequestLineTooLong: 414, "RFC 9112 §3", "the request line is longer than ", " bytes";
        /// **Unit**: bytes.
        HeadTooLarge: 431, "RFC 6585 §5", "the head is larger than ", " bytes";
        /// **Unit**: fields.
        TooManyFields: 431, "RFC 6585 §5", "the head has more than ", " fields";
        /// **Unit**: bytes, CR LF not counted.
        ChunkLineTooLong: 400, "RFC 9112 §7.1.1", "a chunk size line is longer than ", " bytes";
        /// **Unit**: bytes.
        TrailersTooLarge: 431, "RFC 6585 §5", "the trailer section is larger than ", " bytes";
        /// **Unit**: bytes.
        BodyTooLarge: 413, "RFC 9110 §15.5.14", "the body is larger than ", " bytes (--max-body)";
    }
}

impl Violation {
    /// The violation of a bound that is counted in memory.
    pub(super) fn limit(row: fn(u64) -> Self, max: usize) -> Self {
        row(u64::try_from(max).unwrap_or(u64::MAX))
    }
}

/// One sentence for the log.
impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (detail, status, section) = (self.detail(), self.status(), self.section());
        write!(formatter, "request refused with {status}: {detail} ({section})")
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_row_is_unique_and_complete() {
        let mut details = HashSet::new();
        for &row in Violation::ROWS {
            assert!(details.insert(row.detail()), "{row:?}: its text is used twice");
            assert!(row.section().starts_with("RFC ") && row.section().contains('§'), "{row:?}");
            assert!(row.detail().bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{row:?}");
            assert_ne!(super::super::encode::reason_phrase(row.status()), "Unknown", "{row:?}");
        }
    }

    #[test]
    fn statuses_other_than_400() {
        let others: Vec<_> = Violation::ROWS
            .iter()
            .filter(|row| row.status() != 400)
            .map(|row| (row.name(), row.status()))
            .collect();
        assert_eq!(
            others,
            [
                ("MethodTooLong", 501),
                ("ConnectMethod", 501),
                ("UnsupportedVersion", 505),
                ("CodingUnknown", 501),
                ("UnknownExpectation", 417),
                ("HeaderTimeout", 408),
                ("BodyTimeout", 408),
                ("RequestLineTooLong", 414),
                ("HeadTooLarge", 431),
                ("TooManyFields", 431),
                ("TrailersTooLarge", 431),
                ("BodyTooLarge", 413),
            ]
        );
    }

    #[test]
    fn the_log_names_status_rule_and_limit() {
        assert_eq!(
            Violation::HeadTooLarge { max: 65_536 }.to_string(),
            "request refused with 431: the head is larger than 65536 bytes (RFC 6585 §5)"
        );
        assert!(Violation::BodyTooLarge { max: 7 }.detail().contains("7 bytes (--max-body)"));
    }
}
