//! The result of a run, as lines and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::clock::cpu_time;
use crate::connection::Run;

/// What one run of `load` found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    connections: u32,
    pipeline: u32,
    /// Requests a second of the open loop.
    rate: Option<u64>,
    /// Requests with the expected answer.
    requests: u64,
    /// Requests without it.
    failed: u64,
    /// Requests that were never sent.
    unsent: u64,
    errors: BTreeMap<&'static str, u64>,
    first_errors: BTreeMap<&'static str, String>,
    /// Of the run without its warm-up, until the last answer.
    seconds: f64,
    requests_per_second: f64,
    /// CPU time of this client over the time of the whole run: near 1 it is the limit itself.
    client_busy: f64,
    received_bytes: u64,
    connects: u64,
    latency_us: Latency,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    mean: f64,
}

impl Report {
    /// Reads the counts of a run that has just ended.
    pub(crate) fn new(run: &Run, connections: u32, rate: Option<u64>) -> Self {
        let tally = &run.tally;
        let errors = tally.errors();
        let elapsed = run.stopwatch.elapsed();
        let warm_up = Duration::from_nanos(run.warm_up_nanos);
        let seconds = elapsed.saturating_sub(warm_up).as_secs_f64();
        Self {
            connections,
            pipeline: run.pipeline,
            rate,
            requests: tally.answered(),
            failed: tally.failed(),
            unsent: run.pace.unsent(),
            errors: errors.iter().map(|(kind, error)| (kind.name(), error.count)).collect(),
            first_errors: errors.into_iter().map(|(kind, e)| (kind.name(), e.first)).collect(),
            seconds,
            requests_per_second: tally.answered() as f64 / seconds,
            client_busy: cpu_time().as_secs_f64() / elapsed.as_secs_f64(),
            received_bytes: tally.received_bytes(),
            connects: tally.connects(),
            latency_us: tally.with_latencies(|histogram| {
                let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
                Latency {
                    p50: at(0.5),
                    p90: at(0.9),
                    p99: at(0.99),
                    p999: at(0.999),
                    max: histogram.max() as f64 / 1000.0,
                    mean: histogram.mean() / 1000.0,
                }
            }),
        }
    }

    /// Whether every request was sent and got the expected answer, and nothing else went wrong.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed == 0 && self.unsent == 0 && self.errors.is_empty() && self.requests > 0
    }

    /// Seconds of the run for each right answer; none were answered at the same time by a server
    /// that runs one view at a time.
    pub(crate) fn seconds_per_request(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.seconds / self.requests as f64)
    }

    /// Prints the lines that a person reads.
    pub(crate) fn print(&self) {
        println!("requests   {} in {:.2} s", self.requests, self.seconds);
        println!("errors     {}", self.errors.values().sum::<u64>());
        for (kind, count) in &self.errors {
            println!("  {kind:<10}{count}, first: {}", self.first_errors[kind]);
        }
        if self.unsent > 0 {
            println!("unsent     {}", self.unsent);
        }
        println!("rate       {:.0} req/s", self.requests_per_second);
        println!(
            "latency    p50 {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs, max {:.0} µs",
            self.latency_us.p50, self.latency_us.p99, self.latency_us.p999, self.latency_us.max
        );
        println!("client     {:.0} % of a CPU", self.client_busy * 100.0);
        println!("received   {} bytes", self.received_bytes);
        println!("connects   {} for {} connections", self.connects, self.connections);
    }
}
