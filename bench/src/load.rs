//! The `load` command: a keep-alive client that checks every response.

use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use clap::{ArgGroup, Args};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Failure;
use crate::body::Expectation;
use crate::clock::Stopwatch;
use crate::connection::{Connection, Run};
use crate::pace::{Limit, Pace};
use crate::report::Report;
use crate::tally::{ErrorKind, Tally};
use crate::target::{Header, Target};
use crate::watch::{self, StuckConnect, Watch};

/// Options of `load`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limit").args(["requests", "seconds"]).required(true))]
pub(crate) struct LoadArguments {
    /// Where to: http://HOST[:PORT][/PATH].
    url: String,
    /// Keep-alive connections.
    #[arg(long, short, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections: u32,
    /// Stop after this many requests.
    #[arg(long, short = 'n', value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long, short, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Send at this many requests a second, whether or not the server keeps up; latency then counts
    /// from the moment a request was due.
    #[arg(long, value_name = "R", conflicts_with = "pipeline",
          value_parser = clap::value_parser!(u64).range(1..=RATE_MAX))]
    rate: Option<u64>,
    /// A request header; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = Header::parse)]
    headers: Vec<Header>,
    /// Requests on the way at once on each connection.
    #[arg(long, value_name = "DEPTH", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=PIPELINE_MAX))]
    pipeline: u32,
    /// The status every answer must have.
    #[arg(long, value_name = "STATUS", default_value_t = 200)]
    expect_status: u16,
    /// The body every answer must have.
    #[arg(long, value_name = "TEXT", conflicts_with = "expect_length")]
    expect_body: Option<String>,
    /// The number of body bytes every answer must have.
    #[arg(long, value_name = "BYTES")]
    expect_length: Option<u64>,
    /// Seconds until an unanswered request is an error and its connection is closed.
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// Print a line after each N requests.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    progress_every: u64,
    /// Also write the result to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The ports of one client address are about 28 000 by default and 64 511 at most.
const CONNECTIONS_MAX: i64 = 60_000;
/// Above any server's reach on one core, and it keeps the arithmetic of due times exact.
const RATE_MAX: u64 = 10_000_000;
const PIPELINE_MAX: i64 = 1024;
const SECONDS_MAX: f64 = 3600.0;

/// Runs `load` and prints its report; the exit code says whether every answer was right.
///
/// **Errors**: the run could not be made at all.
pub(crate) fn run(arguments: LoadArguments) -> Result<ExitCode, Failure> {
    let target = Target::resolve(&arguments.url, &arguments.headers).map_err(Failure::usage)?;
    allow_descriptors(arguments.connections)?;
    let runtime = runtime(arguments.connections)?;
    let stopwatch = Stopwatch::start();
    let limit = match (arguments.requests, arguments.seconds) {
        (Some(requests), _) => Limit::Requests(requests),
        (None, Some(time)) => Limit::Time(time),
        (None, None) => return Err(Failure::usage("--requests or --seconds is needed".to_owned())),
    };
    let run = Rc::new(Run {
        target,
        pipeline: arguments.pipeline,
        status: arguments.expect_status,
        body: match (arguments.expect_body, arguments.expect_length) {
            (Some(text), _) => Expectation::Bytes(text.into_bytes()),
            (None, Some(length)) => Expectation::Length(length),
            (None, None) => Expectation::Anything,
        },
        stopwatch,
        pace: Pace::new(stopwatch, limit, arguments.rate),
        tally: Tally::new(arguments.progress_every),
    });
    runtime.block_on(drive(&run, arguments.connections, arguments.timeout))?;
    let report = Report::new(&run, arguments.connections, arguments.rate, stopwatch.elapsed());
    report.print();
    if let Some(path) = &arguments.json {
        write_json(path, &report)?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all connections to their end; a connect that never ends gives the run up.
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

fn write_json(path: &PathBuf, report: &Report) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Failure::start(format!("--json: {error}")))?;
    std::fs::write(path, text + "\n")
        .map_err(|error| Failure::start(format!("--json {}: {error}", path.display())))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Ok(_) => Err(format!("must be over 0 and at most {SECONDS_MAX} seconds")),
        Err(error) => Err(error.to_string()),
    }
}
