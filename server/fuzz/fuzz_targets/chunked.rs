//! The chunked decoder: cuts do not matter, and what we encode comes back.
#![no_main]

use bytes::BytesMut;
use hoopsnake_server::http::Violation;
use hoopsnake_server::http::chunked::{ChunkedDecoder, ChunkedStep};
use hoopsnake_server::http::encode::{LAST_CHUNK, push_chunk_line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&size, text)) = data.split_first() else { return };
    let size = usize::from(size % 64) + 1;
    assert_eq!(decode([text].into_iter()), decode(text.chunks(size)));
    let mut encoded = Vec::new();
    for chunk in text.chunks(size) {
        push_chunk_line(&mut encoded, chunk.len());
        encoded.extend_from_slice(chunk);
        encoded.extend_from_slice(b"\r\n");
    }
    encoded.extend_from_slice(LAST_CHUNK);
    assert_eq!(decode(encoded.chunks(7)), Ok((text.to_vec(), true)));
});

fn decode<'text>(pieces: impl Iterator<Item = &'text [u8]>) -> Result<(Vec<u8>, bool), Violation> {
    let mut input = BytesMut::new();
    let mut body = Vec::new();
    let mut decoder = ChunkedDecoder::START;
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
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
                ChunkedStep::End => return Ok((body, true)),
            }
        }
    }
    Ok((body, false))
}
