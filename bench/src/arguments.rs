//! Options that every client has: where to, what to send, what to expect, where to write.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::Failure;
use crate::body::Expectation;
use crate::target::{Header, Target};

/// The request and the answer it must get.
#[derive(Debug, Args)]
pub(crate) struct ExchangeArguments {
    /// Where to: http://HOST[:PORT][/PATH].
    url: String,
    /// A request header; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = Header::parse)]
    headers: Vec<Header>,
    /// The status every answer must have.
    #[arg(long, value_name = "STATUS", default_value_t = 200)]
    pub(crate) expect_status: u16,
    /// The body every answer must have.
    #[arg(long, value_name = "TEXT", conflicts_with = "expect_length")]
    expect_body: Option<String>,
    /// The number of body bytes every answer must have.
    #[arg(long, value_name = "BYTES")]
    expect_length: Option<u64>,
    /// Also write the result to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The ports of one client address are about 28 000 by default and 64 511 at most.
pub(crate) const CONNECTIONS_MAX: i64 = 60_000;
const SECONDS_MAX: f64 = 3600.0;

impl ExchangeArguments {
    /// Resolves the URL and renders the request.
    ///
    /// **Errors**: the URL is not understood, or its host has no address.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        Target::resolve(&self.url, &self.headers).map_err(Failure::usage)
    }

    /// What every body must be.
    pub(crate) fn expectation(&self) -> Expectation {
        match (&self.expect_body, self.expect_length) {
            (Some(text), _) => Expectation::Bytes(text.clone().into_bytes()),
            (None, Some(length)) => Expectation::Length(length),
            (None, None) => Expectation::Anything,
        }
    }

    /// Writes the result where `--json` says, if it does.
    ///
    /// **Errors**: the file cannot be written.
    pub(crate) fn write_json(&self, report: &impl Serialize) -> Result<(), Failure> {
        self.json.as_deref().map_or(Ok(()), |path| write_json(path, report))
    }
}

fn write_json(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Failure::start(format!("--json: {error}")))?;
    std::fs::write(path, text + "\n")
        .map_err(|error| Failure::start(format!("--json {}: {error}", path.display())))
}

/// Reads seconds, over 0 and at most an hour; used by clap.
///
/// **Errors**: not a number, or out of range.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Ok(_) => Err(format!("must be over 0 and at most {SECONDS_MAX} seconds")),
        Err(error) => Err(error.to_string()),
    }
}
