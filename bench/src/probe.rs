//! The `probe` command: is a server's queue served in order?

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::Failure;
use crate::arguments::{CONNECTIONS_MAX, ExchangeArguments, parse_seconds};
use crate::clock::Stopwatch;
use crate::connection::Run;
use crate::order::{Order, Verdict};
use crate::pace::{Limit, Pace};
use crate::report::Report;
use crate::session::Session;
use crate::tally::Tally;

/// Options of `probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArguments {
    #[command(flatten)]
    exchange: ExchangeArguments,
    /// Keep-alive connections, each with one request on the way.
    #[arg(long, short, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections: u32,
    /// Seconds that are judged.
    #[arg(long, short, value_name = "S", default_value = "8", value_parser = parse_seconds)]
    seconds: Duration,
    /// Seconds before them whose answers are checked but not judged. A request that was sent in them
    /// and is answered later is judged.
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    warm_up: Duration,
    /// Seconds until an unanswered request is an error; longer than a starved one waits.
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    timeout: Duration,
    /// The verdict that ends with 0; any other ends with 1.
    #[arg(long, value_enum, default_value_t = Expected::InOrder)]
    expect: Expected,
}

/// A verdict that a run may be expected to have.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Expected {
    /// At most five long waits, and nobody passed over by more than a thousand.
    InOrder,
    /// More than that.
    OutOfOrder,
    /// Either: the figures are recorded.
    Any,
}

/// What one run of `probe` found.
#[derive(Debug, Serialize)]
struct ProbeReport {
    #[serde(flatten)]
    report: Report,
    order: Verdict,
    /// Time of the lock that a request takes, where one view runs at a time: the run by its answers.
    gil_share_ms: Option<f64>,
    expected: Expected,
    as_expected: bool,
}

/// A turn's slice. A share of this or more makes one job a slice, which starves nobody by itself.
const SLICE_MS: f64 = 1.0;

/// Runs `probe` and prints its report; the exit code says whether the verdict was the expected one
/// and every answer right.
///
/// **Errors**: the run could not be made at all.
pub(crate) fn run(arguments: ProbeArguments) -> Result<ExitCode, Failure> {
    let target = arguments.exchange.target()?;
    let session = Session::open(arguments.connections)?;
    let order = Rc::new(Order::default());
    let stopwatch = Stopwatch::start();
    let run = Rc::new(Run {
        target,
        pipeline: 1,
        status: arguments.exchange.expect_status,
        body: arguments.exchange.expectation(),
        stopwatch,
        // An hour of nanoseconds fits: parse_seconds bounds it.
        warm_up_nanos: u64::try_from(arguments.warm_up.as_nanos()).unwrap_or(u64::MAX),
        pace: Pace::new(stopwatch, Limit::Time(arguments.warm_up + arguments.seconds), None),
        tally: Tally::new(0),
        order: Some(Rc::clone(&order)),
    });
    session.drive(&run, arguments.connections, arguments.timeout)?;
    let report = Report::new(&run, arguments.connections, None);
    let report = ProbeReport::new(report, order.judge(), arguments.expect);
    report.print();
    arguments.exchange.write_json(&report)?;
    Ok(if report.as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Expected {
    fn is(self, verdict: Verdict) -> bool {
        match self {
            Self::InOrder => verdict.in_order,
            Self::OutOfOrder => !verdict.in_order,
            Self::Any => true,
        }
    }
}

impl ProbeReport {
    fn new(report: Report, order: Verdict, expected: Expected) -> Self {
        Self {
            gil_share_ms: report.seconds_per_request().map(|seconds| seconds * 1000.0),
            as_expected: report.is_clean() && expected.is(order),
            report,
            order,
            expected,
        }
    }

    fn print(&self) {
        self.report.print();
        println!(
            "order      {}: {} long waits, most passed over {}",
            if self.order.in_order { "in order" } else { "OUT OF ORDER" },
            self.order.long_waits,
            self.order.most_passed_over
        );
        if self.order.unanswered > 0 {
            println!("unanswered {} at the end of the run", self.order.unanswered);
        }
        if let Some(share) = self.gil_share_ms {
            println!("lock       {share:.3} ms a request, of a slice of {SLICE_MS:.0} ms");
        }
        if !self.as_expected {
            let wrong = if self.report.is_clean() { "the order" } else { "an answer" };
            println!("FAILED     {wrong} is not the expected one");
        }
    }
}
