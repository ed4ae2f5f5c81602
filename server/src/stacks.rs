//! The stacks of the application's threads, got without the interpreter lock (RULES 6).
//!
//! The interpreter's `faulthandler` handles a signal of ours by writing every thread's stack to a
//! pipe. The reactor raises the signal and reads the pipe, whatever holds the lock meanwhile; neither
//! end ever blocks.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::exchange::Exchange;
use crate::limits::STACKS_BYTES_MAX;
use crate::sync::Arc;
use crate::sys::held::Held;
use crate::sys::signals::Handled;

/// From `SIGRTMIN`, as documented in `docs/deployment.md`.
const SIGNAL_OFFSET: libc::c_int = 7;

/// The signal that asks for stacks.
#[must_use]
pub fn signal() -> libc::c_int {
    libc::SIGRTMIN() + SIGNAL_OFFSET
}

/// The same for a sentence.
#[must_use]
pub fn signal_name() -> String {
    format!("signal {} (SIGRTMIN+{SIGNAL_OFFSET})", signal())
}

/// A thread of the application as the bridge knows it.
#[derive(Clone, Debug)]
pub struct Thread {
    /// As `threading.get_ident()` and `faulthandler` give it.
    pub ident: u64,
    /// As `threading` calls it.
    pub name: String,
    /// What it runs.
    pub exchange: Option<Arc<Exchange>>,
}

/// Who knows the threads. Asked on the reactor's thread: does not wait for one of them.
pub trait Threads: std::fmt::Debug + Send + Sync {
    /// Those with a name, at this moment.
    fn list(&self) -> Vec<Thread>;
}

/// The pipe and who writes to it.
#[derive(Debug)]
pub struct StackSource {
    reader: Held,
    writer: Held,
    threads: Arc<dyn Threads>,
    handled: Option<Handled>,
}

/// Why there will be no stacks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoStacks {
    /// The signal has another handler than ours: to raise it may end the process.
    TakenOver,
    /// The kernel refused it.
    NotRaised,
}

impl StackSource {
    /// Makes the pipe. Nothing writes to it before [`Self::arm`].
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn open(threads: Arc<dyn Threads>) -> io::Result<Self> {
        let flags = rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC;
        let (reader, writer) = rustix::pipe::pipe_with(flags)?;
        // Beyond its size a dump is cut. The kernel may refuse: users have a quota.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, STACKS_BYTES_MAX);
        Ok(Self { reader: Held::new(reader), writer: Held::new(writer), threads, handled: None })
    }

    /// Where the signal's handler is to write.
    #[must_use]
    pub fn writer(&self) -> RawFd {
        self.writer.as_raw_fd()
    }

    /// The handler is installed now; any other is not ours.
    ///
    /// # Errors
    /// The kernel does not know the signal.
    pub fn arm(&mut self) -> io::Result<()> {
        self.handled = Some(Handled::find(signal())?);
        Ok(())
    }

    /// Asks for a dump, and says what the threads do at this moment.
    pub(crate) fn ask(&mut self) -> Result<Vec<Thread>, NoStacks> {
        let handled = self.handled.ok_or(NoStacks::TakenOver)?;
        // What somebody else asked for by hand is not of this moment.
        self.read(&mut Vec::new());
        match handled.raise() {
            Ok(true) => Ok(self.threads.list()),
            Ok(false) => Err(NoStacks::TakenOver),
            Err(error) => {
                tracing::debug!(%error, signal = signal(), "the signal cannot be raised");
                Err(NoStacks::NotRaised)
            }
        }
    }

    /// Takes what the handler has written by now, up to `STACKS_BYTES_MAX` in all.
    pub(crate) fn read(&mut self, text: &mut Vec<u8>) {
        let mut buffer = [0; 4096];
        while text.len() < STACKS_BYTES_MAX {
            match rustix::io::read(&self.reader, &mut buffer) {
                Ok(count @ 1..) => text.extend_from_slice(&buffer[..count]),
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// The stack of one thread.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Section {
    pub(crate) ident: u64,
    /// A line a frame, the most recent call first.
    pub(crate) frames: String,
}

/// Takes a dump of `faulthandler` apart. Threads without a frame of Python's (such as the one that
/// takes the interpreter lock's pulse) are left out.
pub(crate) fn sections(dump: &[u8]) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in String::from_utf8_lossy(dump).lines() {
        let heading = line.strip_prefix("Current ").unwrap_or(line).to_ascii_lowercase();
        if let Some(rest) = heading.strip_prefix("thread 0x") {
            let digits = rest.split(|letter: char| !letter.is_ascii_hexdigit()).next();
            let ident = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            sections.push(Section { ident: ident.unwrap_or_default(), frames: String::new() });
        } else if let Some(section) = sections.last_mut()
            && !line.trim().is_empty()
        {
            section.frames.push_str(line);
            section.frames.push('\n');
        }
    }
    sections.retain(|section| section.frames.contains("File "));
    sections
}

impl Section {
    /// A pool's thread that waits for its next request: below nothing but `threading`.
    fn is_idle(&self, thread: Option<&Thread>) -> bool {
        let innermost = self.frames.lines().next().unwrap_or_default();
        thread.is_some_and(|thread| thread.exchange.is_none())
            && innermost.contains("threading.py\"")
            && innermost.ends_with(" in run")
    }
}

/// All sections with the names of their threads and what they run; idle ones in one line.
pub(crate) fn describe(sections: &[Section], threads: &[Thread]) -> String {
    let mut text = String::new();
    let mut idle = Vec::new();
    for section in sections {
        let thread = threads.iter().find(|thread| thread.ident == section.ident);
        match thread {
            Some(thread) if section.is_idle(Some(thread)) => {
                idle.push(thread.name.as_str());
                continue;
            }
            Some(Thread { name, exchange: Some(exchange), .. }) => {
                text.push_str(&format!("{name} runs {}:\n", exchange.request_line()));
            }
            Some(Thread { name, exchange: None, .. }) => text.push_str(&format!("{name}:\n")),
            None => text.push_str(&format!("thread {:#x}:\n", section.ident)),
        }
        text.push_str(&section.frames);
    }
    if !idle.is_empty() {
        text.push_str(&format!("without a request: {}\n", idle.join(", ")));
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DUMP: &[u8] = b"Thread 0x00007f0000000003 (most recent call first):\n  \
        <no Python frame>\n\n\
        Thread 0x00007f0000000002 [hoopsnake-pool-1] (most recent call first):\n  \
        File \"/lib/python3.13/threading.py\", line 992 in run\n  \
        File \"/lib/python3.13/threading.py\", line 1041 in _bootstrap_inner\n\n\
        Thread 0x00007f0000000001 (most recent call first):\n  \
        File \"/srv/views.py\", line 7 in hold\n  \
        File \"/lib/python3.13/threading.py\", line 992 in run\n\n\
        Current thread 0x00007f0000000000 (most recent call first):\n  \
        File \"<frozen runpy>\", line 88 in _run_code\n";

    fn thread(ident: u64, name: &str) -> Thread {
        Thread { ident, name: name.to_owned(), exchange: None }
    }

    #[test]
    fn a_dump_is_taken_apart_and_every_stack_gets_its_threads_name() {
        let sections = sections(DUMP);
        let idents: Vec<u64> = sections.iter().map(|section| section.ident).collect();
        assert_eq!(idents, [0x7f00_0000_0002, 0x7f00_0000_0001, 0x7f00_0000_0000]);
        let threads = [thread(0x7f00_0000_0002, "pool-1"), thread(0x7f00_0000_0000, "MainThread")];
        assert_eq!(
            describe(&sections, &threads),
            "thread 0x7f0000000001:\n  File \"/srv/views.py\", line 7 in hold\n  \
             File \"/lib/python3.13/threading.py\", line 992 in run\n\
             MainThread:\n  File \"<frozen runpy>\", line 88 in _run_code\n\
             without a request: pool-1"
        );
    }

    #[test]
    fn a_dump_that_is_cut_anywhere_is_taken_as_far_as_it_goes() {
        for length in 0..=DUMP.len() {
            let found = sections(&DUMP[..length]);
            assert!(found.len() <= 3, "{length}");
            describe(&found, &[thread(0x7f00_0000_0001, "pool-0")]);
        }
    }

    #[derive(Debug)]
    struct Nobody;

    impl Threads for Nobody {
        fn list(&self) -> Vec<Thread> {
            Vec::new()
        }
    }

    /// Without its handler the signal would end the process.
    #[test]
    fn nothing_is_raised_when_the_handler_is_not_the_one_that_was_installed() {
        let mut source = StackSource::open(Arc::new(Nobody)).expect("a pipe");
        assert_eq!(source.ask().err(), Some(NoStacks::TakenOver));
        source.handled = Handled::find(signal()).ok().map(Handled::of_another);
        assert_eq!(source.ask().err(), Some(NoStacks::TakenOver));
    }
}
