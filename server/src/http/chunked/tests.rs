//! The decoder alone: every rule, every split.

use super::*;

type Outcome = Result<(Vec<u8>, usize, bool), Violation>;

/// Feeds `pieces`; gives the body, how many bytes are left, and whether the end was seen.
fn decode(pieces: &[&[u8]]) -> Outcome {
    let mut input = BytesMut::new();
    let mut body = Vec::new();
    let mut decoder = ChunkedDecoder::START;
    let mut ended = false;
    for piece in pieces {
        input.extend_from_slice(piece);
        while !ended {
            match decoder.step(&mut input)? {
                ChunkedStep::Incomplete(next) => {
                    decoder = next;
                    break;
                }
                ChunkedStep::Piece(piece, next) => {
                    assert!(!piece.is_empty());
                    body.extend_from_slice(&piece);
                    decoder = next;
                }
                ChunkedStep::End => ended = true,
            }
        }
    }
    Ok((body, input.len(), ended))
}

fn body(text: &[u8]) -> Outcome {
    let whole = decode(&[text]);
    for split in 0..text.len() {
        let (before, after) = text.split_at(split);
        assert_eq!(decode(&[before, after]), whole, "{} split at {split}", text.escape_ascii());
    }
    let bytes: Vec<_> = text.chunks(1).collect();
    assert_eq!(decode(&bytes), whole, "{} byte by byte", text.escape_ascii());
    whole
}

#[test]
fn good_bodies() {
    let longest_extension = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(CHUNK_LINE_BYTES_MAX - 2));
    for (text, expected, rest) in [
        ("0\r\n\r\n", "", 0),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", 0),
        ("5\r\nhello\r\n06\r\n world\r\n000\r\n\r\nGET", "hello world", 3),
        ("A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789", 0),
        ("0000000000000001\r\nx\r\n0\r\n\r\n", "x", 0),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", 0),
        ("1;a=b;c=\"d e\"\r\nx\r\n0;last\r\n\r\n", "x", 0),
        ("1 ;\ta\r\nx\r\n0 \t; a\r\n\r\n", "x", 0),
        ("1;a=\"é\\\"\\\\;\"\t;b = c\r\nx\r\n0\r\n\r\n", "x", 0),
        ("0\r\nA: b\r\nC:\r\n\r\nrest", "", 4),
        (&longest_extension, "x", 0),
    ] {
        let expected = Ok((expected.as_bytes().to_vec(), rest, true));
        assert_eq!(body(text.as_bytes()), expected, "{text:?}");
    }
}

#[test]
fn unfinished_bodies() {
    for (text, body_bytes, rest) in [
        ("", "", 0),
        ("5", "", 1),
        ("5\r", "", 2),
        ("5\r\n", "", 0),
        ("5\r\nhel", "hel", 0),
        ("5\r\nhello\r", "hello", 1),
        ("5\r\nhello\r\n0\r\n", "hello", 0),
        ("0\r\nA: b\r\n\r", "", 1),
        ("ffffffffffffffff\r\nx", "x", 0),
    ] {
        let expected = Ok((body_bytes.as_bytes().to_vec(), rest, false));
        assert_eq!(body(text.as_bytes()), expected, "{text:?}");
    }
}

#[test]
fn broken_bodies() {
    let line_too_long = format!("1;{}\r\n", "e".repeat(CHUNK_LINE_BYTES_MAX - 1));
    let line_without_end = format!("1;{}", "e".repeat(CHUNK_LINE_BYTES_MAX));
    let too_long = Violation::ChunkLineTooLong { max: CHUNK_LINE_BYTES_MAX as u64 };
    for (text, violation) in [
        ("\r\n", Violation::ChunkSizeInvalid),
        ("\n", Violation::ChunkSizeInvalid),
        (" 5\r\n", Violation::ChunkSizeInvalid),
        ("+5\r\n", Violation::ChunkSizeInvalid),
        ("-5\r\n", Violation::ChunkSizeInvalid),
        ("0x5\r\n", Violation::ChunkSizeInvalid),
        ("g\r\n", Violation::ChunkSizeInvalid),
        ("5_0\r\n", Violation::ChunkSizeInvalid),
        ("5 5\r\n", Violation::ChunkSizeInvalid),
        ("5 \r\n", Violation::ChunkSizeInvalid),
        ("5\r\r\n", Violation::ChunkSizeInvalid),
        ("5\x0b\r\n", Violation::ChunkSizeInvalid),
        ("00000000000000001\r\n", Violation::ChunkSizeInvalid),
        ("10000000000000000\r\n", Violation::ChunkSizeInvalid),
        ("5\nhello", Violation::BareLineFeed),
        ("5;a\nhello", Violation::BareLineFeed),
        ("5;\r\n", Violation::ChunkExtensionInvalid),
        ("5;a;\r\n", Violation::ChunkExtensionInvalid),
        ("5;a \r\n", Violation::ChunkExtensionInvalid),
        ("5;a b\r\n", Violation::ChunkExtensionInvalid),
        ("5;a=\r\n", Violation::ChunkExtensionInvalid),
        ("5;=b\r\n", Violation::ChunkExtensionInvalid),
        ("5;a=\"b\r\n", Violation::ChunkExtensionInvalid),
        ("5;a=\"b\\\"\r\n", Violation::ChunkExtensionInvalid),
        ("5;a=\"b\\\r\n", Violation::ChunkExtensionInvalid),
        ("5;a=\"\x0b\"\r\n", Violation::ChunkExtensionInvalid),
        ("5;é\r\n", Violation::ChunkExtensionInvalid),
        ("5;\x0b\r\n", Violation::ChunkExtensionInvalid),
        ("5;a\0\r\n", Violation::ChunkExtensionInvalid),
        ("5;a\r\r\n", Violation::ChunkExtensionInvalid),
        ("5;a\x7f\r\n", Violation::ChunkExtensionInvalid),
        ("5\r\nhello0\r\n", Violation::ChunkEndInvalid),
        ("5\r\nhello\n", Violation::ChunkEndInvalid),
        ("5\r\nhello\rX", Violation::ChunkEndInvalid),
        ("5\r\nhell\r\n0\r\n", Violation::ChunkEndInvalid),
        ("0\r\n\n", Violation::BareLineFeed),
        ("0\r\nA: b\n", Violation::BareLineFeed),
        ("0\r\nA\r\n", Violation::TrailerInvalid),
        ("0\r\nA : b\r\n", Violation::TrailerInvalid),
        ("0\r\n A: b\r\n", Violation::TrailerInvalid),
        ("0\r\nA: \x0b\r\n", Violation::TrailerInvalid),
        ("0\r\nA: \r\r\n", Violation::TrailerInvalid),
        ("0\r\nGET / HTTP/1.1\r\n", Violation::TrailerInvalid),
        (&line_too_long, too_long),
        (&line_without_end, too_long),
    ] {
        assert_eq!(body(text.as_bytes()), Err(violation), "{text:?}");
    }
}

#[test]
fn trailers_are_bounded() {
    let too_large = Err(Violation::TrailersTooLarge { max: TRAILER_BYTES_MAX as u64 });
    let line = format!("A: {}\r\n", "b".repeat(TRAILER_BYTES_MAX / 2 - 6));
    assert_eq!(line.len() * 2, TRAILER_BYTES_MAX - 2);
    let exact = format!("0\r\n{line}{line}\r\n");
    assert_eq!(decode(&[exact.as_bytes()]), Ok((Vec::new(), 0, true)));
    let one_more = format!("0\r\n{line}A{line}\r\n");
    let bytes: Vec<_> = one_more.as_bytes().chunks(1).collect();
    assert_eq!(decode(&[one_more.as_bytes()]), too_large);
    assert_eq!(decode(&bytes), too_large);
    let endless = format!("0\r\n{}", "A".repeat(TRAILER_BYTES_MAX + 1));
    assert_eq!(body(&endless.as_bytes()[..40]).map(|(_, rest, _)| rest), Ok(37));
    assert_eq!(decode(&[endless.as_bytes()]), too_large);
}

#[test]
fn a_piece_is_not_copied() {
    let mut input = BytesMut::from(&b"5\r\nhello\r\n"[..]);
    let place = input[3..].as_ptr();
    let Ok(ChunkedStep::Piece(piece, _)) = ChunkedDecoder::START.step(&mut input) else {
        panic!("there is a piece");
    };
    assert_eq!(piece.as_ptr(), place);
}
