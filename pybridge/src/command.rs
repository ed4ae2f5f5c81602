//! The command: arguments in, exit code out.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::Path;

use hoopsnake_server::config::{self, Config, Interpreter, Request, Typed, Verb};
use hoopsnake_server::error::Fault;
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::fs::{Mode, OFlags};

use crate::{doctor, interpreter, run};

/// stderr.
const STANDARD_STREAM_LAST: i32 = 2;

/// Runs `hoopsnake` with these arguments (without the program's name) and returns its exit code. A
/// worker's process never returns.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    fill_standard_streams()?;
    // Files are looked for where the command was started, whatever --chdir says.
    let typed = match config::parse(&arguments, Path::new(".")) {
        Ok(Request::Options(typed)) => typed,
        Ok(Request::Print(text)) => {
            print(py, text.trim_end())?;
            return Ok(0);
        }
        Err(fault) => return Ok(report(&fault)),
    };
    let interpreter = interpreter::describe(py)?;
    match typed.verb {
        Verb::Limits => {
            print(py, config::limits_table().trim_end())?;
            Ok(0)
        }
        Verb::Doctor => doctor::report(py, &typed, &interpreter),
        Verb::Serve => Ok(match serve(py, &arguments, &typed, &interpreter) {
            Ok(code) => code,
            Err(fault) => report(&fault),
        }),
    }
}

fn serve(
    py: Python<'_>,
    arguments: &[OsString],
    typed: &Typed,
    interpreter: &Interpreter,
) -> Result<u8, Fault> {
    let config = Config::from_typed(typed, interpreter)?;
    // Before --chdir: a rolling restart reads the files where the start found them.
    let directory = StartDirectory::open()?;
    let mut reload = || directory.with(|| read(arguments, interpreter));
    run::serve(py, config, interpreter, &mut reload)
}

/// The configuration as it would be at a start now.
fn read(arguments: &[OsString], interpreter: &Interpreter) -> Result<Config, Fault> {
    match config::parse(arguments, Path::new("."))? {
        Request::Options(typed) => Config::from_typed(&typed, interpreter),
        Request::Print(_) => Err(Fault::usage("the arguments ask for a text and not for a server")),
    }
}

/// Where the command was started.
#[derive(Debug)]
struct StartDirectory(OwnedFd);

impl StartDirectory {
    fn open() -> Result<Self, Fault> {
        open_directory().map(Self).map_err(|error| {
            Fault::start(format!("the current directory cannot be opened: {error}"))
        })
    }

    /// Does something there. The process has one thread.
    fn with<T>(&self, act: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let lost =
            |error| Fault::start(format!("the current directory cannot be changed: {error}"));
        let back = open_directory().map_err(lost)?;
        rustix::process::fchdir(&self.0).map_err(|error| lost(error.into()))?;
        let done = act();
        rustix::process::fchdir(&back).map_err(|error| lost(error.into()))?;
        done
    }
}

fn open_directory() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(".", flags, Mode::empty())?)
}

/// A standard stream that is closed (`<&-`, some daemons' ways) would give its number to the next file
/// that is opened, a listener for one, and whoever redirects the stream would take that away.
fn fill_standard_streams() -> io::Result<()> {
    loop {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
        // The kernel gives the lowest number that is free.
        if null.as_raw_fd() > STANDARD_STREAM_LAST {
            return Ok(());
        }
        // Open for the process's life, and for those that it starts.
        let _ = null.into_raw_fd();
    }
}

/// One sentence on stderr; returns the exit code.
fn report(fault: &Fault) -> u8 {
    eprintln!("hoopsnake: error: {fault}");
    fault.exit_code()
}

/// Through Python's stdout, so that what a program around us printed comes first. A reader that has
/// seen enough (`| head`) is no error.
pub(crate) fn print(py: Python<'_>, text: &str) -> PyResult<()> {
    let flush = PyDict::new(py);
    flush.set_item("flush", true)?;
    match py.import("builtins")?.getattr("print")?.call((text,), Some(&flush)) {
        Err(error) if error.is_instance_of::<PyBrokenPipeError>(py) => discard_stdout(py),
        printed => printed.map(drop),
    }
}

/// Python flushes once more at its end, and would complain there.
fn discard_stdout(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    let stdout = py.import("sys")?.getattr("stdout")?.call_method0("fileno")?;
    let null = os.call_method1("open", (os.getattr("devnull")?, os.getattr("O_WRONLY")?))?;
    os.call_method1("dup2", (&null, stdout))?;
    os.call_method1("close", (null,))?;
    Ok(())
}
