//! The chunked coding (RFC 9112 §7.1): decoder states and the encoder's two lines.
