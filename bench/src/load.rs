//! The `load` command: a keep-alive client that checks every response.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::{ArgGroup, Args};

use crate::Failure;
use crate::arguments::{CONNECTIONS_MAX, ExchangeArguments, parse_seconds};
use crate::clock::Stopwatch;
use crate::connection::Run;
use crate::pace::{Limit, Pace};
use crate::report::Report;
use crate::session::Session;
use crate::tally::Tally;

/// Options of `load`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limit").args(["requests", "seconds"]).required(true))]
pub(crate) struct LoadArguments {
    #[command(flatten)]
    exchange: ExchangeArguments,
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
    /// Requests on the way at once on each connection.
    #[arg(long, value_name = "DEPTH", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=PIPELINE_MAX))]
    pipeline: u32,
    /// Seconds until an unanswered request is an error and its connection is closed.
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// Print a line after each N requests.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    progress_every: u64,
}

/// Above any server's reach on one core, and it keeps the arithmetic of due times exact.
const RATE_MAX: u64 = 10_000_000;
const PIPELINE_MAX: i64 = 1024;

/// Runs `load` and prints its report; the exit code says whether every answer was right.
///
/// **Errors**: the run could not be made at all.
pub(crate) fn run(arguments: LoadArguments) -> Result<ExitCode, Failure> {
    let limit = match (arguments.requests, arguments.seconds) {
        (Some(requests), _) => Limit::Requests(requests),
        (None, Some(time)) => Limit::Time(time),
        (None, None) => return Err(Failure::usage("--requests or --seconds is needed".to_owned())),
    };
    let target = arguments.exchange.target()?;
    let session = Session::open(arguments.connections)?;
    let stopwatch = Stopwatch::start();
    let run = Rc::new(Run {
        target,
        pipeline: arguments.pipeline,
        status: arguments.exchange.expect_status,
        body: arguments.exchange.expectation(),
        stopwatch,
        warm_up_nanos: 0,
        pace: Pace::new(stopwatch, limit, arguments.rate),
        tally: Tally::new(arguments.progress_every),
        order: None,
    });
    session.drive(&run, arguments.connections, arguments.timeout)?;
    let report = Report::new(&run, arguments.connections, arguments.rate);
    report.print();
    arguments.exchange.write_json(&report)?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
