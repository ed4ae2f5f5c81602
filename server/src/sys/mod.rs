//! What needs `unsafe` or a raw system call, and nothing else.
//!
//! Every block cites the invariant it rests on:
//!
//! * **I1** A buffer given to the kernel is owned by the custody table until the operation's final
//!   completion, and its address does not change in between (`Bytes` and boxes are stable).
//! * **I2** A descriptor given to the kernel is open until the operation's final completion.
//! * **I3** The buffer ring's memory is mapped until the ring that it is registered with is gone.
//! * **I4** Kernel output is input: an index, a length or a token from a completion is checked before use.
//! * **I5** Only the thread that made the ring uses it.
//! * **I6** A signal handler does nothing but count and `write` to a descriptor that is never closed; in
//!   a process that did not install it, it takes the default effect.
//! * **I7** A pointer passed to a system call that returns before it is used again points into a live
//!   local of the size that the call is told.
//! * **I8** A mapping is made and unmapped by its one owner, and every access stays inside it.
//! * **I9** A descriptor number from the kernel that nobody else knows becomes an `OwnedFd` at once.
//! * **I10** A child of `fork` in a process with threads calls only what is async-signal-safe.

#![expect(unsafe_code, reason = "the only module of this crate that has any")]

mod accept;
pub(crate) mod buf_ring;
pub mod epoll;
pub(crate) mod file;
#[cfg(not(loom))]
pub mod futex;
pub mod held;
pub mod probe;
#[cfg(test)]
mod probe_hazards;
pub mod process;
pub mod ring;
#[cfg(test)]
mod ring_hazards;
pub mod shm;
pub mod signals;
pub mod socket;
mod uring;
