//! Runs the connections of a run to their end: ring, descriptors, deadlines.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Failure;
use crate::connection::{Connection, Run};
use crate::tally::ErrorKind;
use crate::watch::{self, StuckConnect, Watch};

/// What a run needs before its clock starts: descriptors and a ring.
pub(crate) struct Session {
    runtime: tokio_uring::Runtime,
}

impl Session {
    /// **Errors**: the descriptors are not allowed, or there is no ring.
    pub(crate) fn open(connections: u32) -> Result<Self, Failure> {
        allow_descriptors(connections)?;
        Ok(Self { runtime: runtime(connections)? })
    }

    /// Runs all connections to their end.
    ///
    /// **Errors**: the run could not be made; what went wrong in it is in its tally.
    pub(crate) fn drive(
        &self,
        run: &Rc<Run>,
        connections: u32,
        timeout: Duration,
    ) -> Result<(), Failure> {
        self.runtime.block_on(drive(run, connections, timeout))
    }
}

/// A connect that never ends gives the run up.
async fn drive(run: &Rc<Run>, connections: u32, timeout: Duration) -> Result<(), Failure> {
    let watches: Vec<Rc<Watch>> = (0..connections).map(|_| Rc::default()).collect();
    let tasks: Vec<_> = watches
        .iter()
        .map(|watch| Connection::new(Rc::clone(run), Rc::clone(watch)).drive())
        .map(tokio_uring::spawn)
        .collect();
    let finished = async {
        run.pace.release().await.map_err(|error| {
            Failure::start(format!("--rate: the kernel refuses a timer: {error}"))
        })?;
        for task in tasks {
            task.await.map_err(|error| Failure::start(format!("a connection ended: {error}")))?;
        }
        Ok(())
    };
    let gave_up = async {
        let StuckConnect = watch::keep(&watches, run.stopwatch, timeout).await;
        let words = || format!("no answer to a connect within {} s", timeout.as_secs_f64());
        run.tally.mishap(ErrorKind::Connect, words);
        Ok(())
    };
    either(finished, gave_up).await
}

async fn either<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> T {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(output),
        Poll::Pending => second.as_mut().poll(context),
    })
    .await
}

/// A ring with room for one read and one write of every connection.
fn runtime(connections: u32) -> Result<tokio_uring::Runtime, Failure> {
    const SUBMISSIONS_MIN: u32 = 64;
    const SUBMISSIONS_MAX: u32 = 4096;
    let operations = connections.saturating_mul(2).next_power_of_two();
    let submissions = operations.clamp(SUBMISSIONS_MIN, SUBMISSIONS_MAX);
    let mut builder = tokio_uring::builder();
    builder.entries(submissions);
    tokio_uring::Runtime::new(&builder).map_err(|error| {
        Failure::machine(format!(
            "io_uring is not available here (a ring of {submissions} entries: {error}); allow \
             io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
             profile, set kernel.io_uring_disabled=0, raise RLIMIT_MEMLOCK, or measure with wrk"
        ))
    })
}

/// Raises the soft limit of descriptors when the connections need it.
fn allow_descriptors(connections: u32) -> Result<(), Failure> {
    /// Standard streams, ring, epoll, eventfd, timer, the JSON file.
    const OTHER_DESCRIPTORS: u64 = 32;
    let needed = u64::from(connections) + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum }).map_err(
        |error| {
            Failure::machine(format!(
                "--connections {connections} needs {needed} descriptors, the hard limit is {}: \
                 {error}; raise it with ulimit -Hn",
                limit.maximum.map_or("unlimited".to_owned(), |maximum| maximum.to_string())
            ))
        },
    )
}
