//! Load generator and measurements: the command line.

#![forbid(unsafe_code)]

mod arguments;
mod body;
mod clock;
mod connection;
mod load;
mod order;
mod pace;
mod probe;
mod report;
mod response;
mod session;
mod tally;
mod target;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Clients that check what they measure.
#[derive(Debug, Parser)]
#[command(name = "hoopsnake-bench", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Sends requests over keep-alive connections and checks every response.
    Load(load::LoadArguments),
    /// Judges the order in which a server answers: who was passed over, and how often.
    Probe(probe::ProbeArguments),
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Load(arguments) => load::run(arguments),
        Command::Probe(arguments) => probe::run(arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("hoopsnake-bench: {}", failure.sentence);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Why a command could not do its work at all; errors of the peer are counted, not returned.
#[derive(Debug)]
struct Failure {
    /// 2 usage, 1 could not run, 78 this machine cannot run it (PRODUCTION.md section 1).
    exit_code: u8,
    /// What, with which value, and what to do next.
    sentence: String,
}

impl Failure {
    fn usage(sentence: String) -> Self {
        Self { exit_code: 2, sentence }
    }

    fn start(sentence: String) -> Self {
        Self { exit_code: 1, sentence }
    }

    fn machine(sentence: String) -> Self {
        Self { exit_code: 78, sentence }
    }
}
