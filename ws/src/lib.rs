//! RFC 6455: the opening handshake, and the place of the frame machine that its own change brings.
#![no_std]
#![forbid(unsafe_code)]
