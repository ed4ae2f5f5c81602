//! The server of Hoopsnake without Python: reactor, HTTP/1.1, pool scheduling, supervisor.
//!
//! Arrows point one way: `pybridge → server → ws`. Inside, `http` is sans-io and forbids unsafe code,
//! `sys` holds every unsafe block, and `reactor` joins the two.

pub mod access;
pub mod access_log;
pub mod arena;
pub mod board;
pub mod clock;
pub mod config;
pub mod doctor;
pub mod error;
pub mod exchange;
pub mod forwarded;
pub mod http;
pub mod limits;
pub mod log;
pub mod machine;
pub mod pool;
pub mod pulse;
pub mod reactor;
pub mod request_id;
pub mod spool;
pub mod stacks;
pub mod supervisor;
mod sync;
pub mod sys;
pub mod trust;
pub mod worker;
