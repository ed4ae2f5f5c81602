//! One `io_uring` as the ring implementation of `Io` needs it: set up, push, enter, reap.

use std::collections::VecDeque;
use std::ffi::c_long;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, cqueue, squeue};

use crate::limits::{RECV_BUFFER_COUNT, RECV_BUFFER_COUNT_SMALL};
use crate::sys::buf_ring::{BufferRing, GROUP};
use crate::sys::held::Note;

/// How large a ring is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RingSize {
    /// Entries of the submission queue, a power of two.
    pub submission_count: u32,
    /// Entries of the completion queue, a power of two.
    pub completion_count: u32,
    /// Receive buffers, a power of two.
    pub buffer_count: u16,
}

impl RingSize {
    /// A ring of this size; what is not a power of two is refused by the kernel.
    #[must_use]
    pub const fn new(submission_count: u32, completion_count: u32, buffer_count: u16) -> Self {
        Self { submission_count, completion_count, buffer_count }
    }

    /// What the kernel locks for it, rounded up to pages each. **Unit**: bytes.
    #[must_use]
    pub const fn locked_bytes(self) -> u64 {
        const fn pages(bytes: u64) -> u64 {
            bytes.div_ceil(4096) * 4096
        }
        let queues = 16 * self.completion_count as u64 + 4 * self.submission_count as u64 + 256;
        pages(queues)
            + pages(64 * self.submission_count as u64)
            + pages(16 * self.buffer_count as u64)
    }
}

/// The sizes that are tried in this order when locked memory is short. **Source**: URING.md 6.2.
pub const LADDER: [RingSize; 3] = [
    RingSize::new(512, 4096, RECV_BUFFER_COUNT),
    RingSize::new(256, 2048, RECV_BUFFER_COUNT_SMALL),
    RingSize::new(128, 512, RECV_BUFFER_COUNT_SMALL),
];

/// `IORING_REGISTER_RING_FDS` and its reverse; the crate remembers a registration only in a borrow
/// of the ring, so ours is made by hand.
const REGISTER_RING_FDS: c_long = 20;
const UNREGISTER_RING_FDS: c_long = 21;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingDescriptorUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitArgument {
    signal_mask: u64,
    signal_mask_bytes: u32,
    min_wait_us: u32,
    timeout: u64,
}

/// `struct __kernel_timespec`.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanoseconds: i64,
}

/// The ring. It stays on the thread that made it (I5): not `Send`.
pub(crate) struct Uring {
    /// Before the ring: see `held`.
    _note: Note,
    ring: IoUring,
    /// Index of the registered ring descriptor, where the kernel has that.
    registered: Option<u32>,
    wait_flags: EnterFlags,
    /// Entries that found the submission queue full and the kernel unwilling; they go first.
    backlog: VecDeque<squeue::Entry>,
    /// Completions were left in the queue by the last `reap`.
    has_more: bool,
    enter_count: u64,
    on_one_thread: PhantomData<*mut ()>,
}

impl Uring {
    /// Makes a ring and its buffers of the first size that the kernel has memory for.
    ///
    /// # Errors
    /// The kernel's reason for refusing the last size, or any reason but `ENOMEM`.
    pub(crate) fn new(sizes: &[RingSize]) -> io::Result<(Self, BufferRing, RingSize)> {
        let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
        for size in sizes {
            match Self::with_size(*size) {
                Ok((ring, buffers)) => return Ok((ring, buffers, *size)),
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    fn with_size(size: RingSize) -> io::Result<(Self, BufferRing)> {
        // NO_SQARRAY came with 6.6; EINVAL may be its refusal or any other flag's.
        let ring = match Self::build(size, true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Self::build(size, false),
            built => built,
        }?;
        let needed = ring.params();
        if !needed.is_feature_ext_arg() || !needed.is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let wait_flags =
            if needed.is_feature_no_iowait() { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
        let mut ring = Self {
            _note: Note::of(&ring),
            ring,
            registered: None,
            wait_flags,
            backlog: VecDeque::new(),
            has_more: false,
            enter_count: 0,
            on_one_thread: PhantomData,
        };
        let buffers = BufferRing::new(size.buffer_count)?;
        // SAFETY: I3: the buffer ring is mapped until `unregister_buffers` or the end of this ring.
        unsafe {
            ring.ring.submitter().register_buf_ring_with_flags(
                buffers.address(),
                buffers.count(),
                GROUP,
                0,
            )
        }?;
        ring.register_descriptor();
        Ok((ring, buffers))
    }

    fn build(size: RingSize, no_sqarray: bool) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(size.completion_count);
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        builder.build(size.submission_count)
    }

    /// Saves a descriptor lookup at each enter. A thread has 16 such places; without one the
    /// descriptor itself is used.
    fn register_descriptor(&mut self) {
        let descriptor = self.ring.as_raw_fd();
        let mut update =
            RingDescriptorUpdate { offset: u32::MAX, reserved: 0, data: descriptor as u64 };
        // SAFETY: I7: one live update of the kernel's layout.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                descriptor,
                REGISTER_RING_FDS,
                &raw mut update,
                1,
            )
        };
        self.registered = (result == 1).then_some(update.offset);
    }

    fn unregister_descriptor(&mut self) {
        let Some(offset) = self.registered.take() else { return };
        let update = RingDescriptorUpdate { offset, reserved: 0, data: 0 };
        // SAFETY: I7: one live update of the kernel's layout.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                UNREGISTER_RING_FDS,
                &raw const update,
                1,
            )
        };
    }

    /// Queues an operation; the kernel gets it at the next `enter`, or now if the queue is full.
    ///
    /// # Safety
    /// I1, I2: what the entry points at and its descriptor stay until its final completion.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: I1, I2: passed on by our caller.
        if self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry);
        self.submit_backlog();
    }

    /// Moves the backlog to the queue, making room by submitting as long as the kernel takes any.
    #[cold]
    fn submit_backlog(&mut self) {
        loop {
            let mut queue = self.ring.submission();
            while let Some(entry) = self.backlog.front() {
                // SAFETY: I1, I2: promised when the entry was pushed.
                if unsafe { queue.push(entry) }.is_err() {
                    break;
                }
                self.backlog.pop_front();
            }
            let queued = queue.len();
            drop(queue);
            if self.backlog.is_empty() {
                return;
            }
            let submitted = self.system_call(queued, 0, EnterFlags::empty(), None);
            if !submitted.is_ok_and(|count| count > 0) {
                // Stays in the backlog: the next wait tries again.
                return;
            }
        }
    }

    /// Submits what is queued, runs the kernel's deferred work and, if `block`, waits for a
    /// completion or the timeout (`None`: none).
    ///
    /// # Errors
    /// The ring is unusable. `EINTR`, `ETIME`, `EBUSY` and `EAGAIN` are not errors.
    pub(crate) fn enter(&mut self, block: bool, timeout: Option<Duration>) -> io::Result<()> {
        if !self.backlog.is_empty() {
            self.submit_backlog();
        }
        let queued = self.ring.submission().len();
        let block = block && !self.has_more && self.backlog.is_empty();
        // Without GETEVENTS nothing completes on a ring with DEFER_TASKRUN.
        let mut flags = EnterFlags::GETEVENTS;
        if block {
            flags |= self.wait_flags;
        }
        let result = self.system_call(queued, u32::from(block), flags, timeout.filter(|_| block));
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => Ok(()),
            Err((Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    fn system_call(
        &mut self,
        to_submit: usize,
        want: u32,
        flags: EnterFlags,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.enter_count += 1;
        let timespec = timeout.map(|timeout| KernelTimespec {
            seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: i64::from(timeout.subsec_nanos()),
        });
        let address = timespec
            .as_ref()
            .map_or(0, |timespec| std::ptr::from_ref(timespec).expose_provenance() as u64);
        let argument =
            WaitArgument { signal_mask: 0, signal_mask_bytes: 0, min_wait_us: 0, timeout: address };
        let (descriptor, flags) = match self.registered {
            Some(index) => (c_long::from(index), flags | EnterFlags::REGISTERED_RING),
            None => (c_long::from(self.ring.as_raw_fd()), flags),
        };
        // SAFETY: I5, I7: this thread's ring; argument and timespec are live locals, and what the
        // submitted entries point at was promised when they were pushed.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                descriptor,
                to_submit as libc::c_uint,
                want,
                (flags | EnterFlags::EXT_ARG).bits(),
                &raw const argument,
                size_of::<WaitArgument>(),
            )
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    /// Takes up to `limit` completions. The queue's head is published before this returns: an enter
    /// before that would find "events pending" and not wait. Returns how many were taken.
    #[inline]
    pub(crate) fn reap(&mut self, into: &mut Vec<cqueue::Entry>, limit: usize) -> usize {
        let before = into.len();
        let mut queue = self.ring.completion();
        into.extend(queue.by_ref().take(limit));
        self.has_more = !queue.is_empty();
        into.len() - before
    }

    /// Completions that the kernel had to throw away. Must stay zero (NODROP).
    pub(crate) fn dropped_count(&mut self) -> u32 {
        self.ring.completion().overflow()
    }

    /// How often the kernel was entered.
    pub(crate) fn enter_count(&self) -> u64 {
        self.enter_count
    }

    /// After the last completion: the kernel lets go of the buffer ring and of the ring itself.
    pub(crate) fn release(&mut self) {
        // Refused only if it was not registered.
        let _ = self.ring.submitter().unregister_buf_ring(GROUP);
        self.unregister_descriptor();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_needs_what_the_page_says() {
        let bytes = LADDER.map(RingSize::locked_bytes);
        assert_eq!(bytes, [118_784, 57_344, 24_576]);
    }
}
