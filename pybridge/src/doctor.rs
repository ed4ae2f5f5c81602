//! `hoopsnake doctor`: what the interpreter offers and whether the application can be imported; the
//! configuration and the kernel are the server's part.

use hoopsnake_server::config::{Config, Interpreter, Typed};
use hoopsnake_server::doctor::{self, Section};
use hoopsnake_server::error::Fault;
use pyo3::prelude::*;

use crate::command::print;
use crate::import::{self, LoadError};
use crate::{python_log, run, worker};

/// Prints the report and returns the exit code that serving would give.
///
/// # Errors
/// stdout cannot be written.
pub(crate) fn report(py: Python<'_>, typed: &Typed, interpreter: &Interpreter) -> PyResult<u8> {
    let code;
    let mut sections = vec![doctor::configuration(typed)];
    match Config::from_typed(typed, interpreter) {
        Err(fault) => {
            sections.push(failed("Error", &fault));
            code = fault.exit_code();
            sections.push(python(py, interpreter)?);
        }
        Ok(config) => {
            // In the order of the server, which ends at the first fault; here all are told.
            let mut faults = Vec::new();
            faults.extend(run::change_directory(&config).err());
            faults.extend(run::identity(py, &config).err());
            let (kernel, fault) = doctor::kernel(&config);
            faults.extend(fault);
            faults.extend(doctor::listening(&config).err());
            faults.extend(doctor::files(&config).err());
            sections.push(kernel);
            sections.extend(doctor::pool_knobs());
            sections.push(python(py, interpreter)?);
            sections.extend(faults.iter().map(|fault| failed("Error", fault)));
            let (application, app_code) = application(py, &config)?;
            sections.push(application);
            sections.push(doctor::unchecked(&config));
            code = faults.first().map_or(app_code, Fault::exit_code);
        }
    }
    print(py, doctor::render(&sections).trim_end())?;
    print(py, &format!("\nThe server would {}.", outcome(code)))?;
    Ok(code)
}

fn outcome(code: u8) -> String {
    if code == 0 { "start".to_owned() } else { format!("end with exit code {code}") }
}

fn failed(title: &'static str, fault: &Fault) -> Section {
    Section { title, rows: vec![(String::new(), fault.to_string())] }
}

fn python(py: Python<'_>, interpreter: &Interpreter) -> PyResult<Section> {
    let sys = py.import("sys")?;
    let text = |name: &str| -> PyResult<String> { sys.getattr(name)?.extract() };
    let gil = if interpreter.free_threaded { "no (threads run in parallel)" } else { "yes" };
    let module = py.import("hoopsnake._hoopsnake")?.getattr("__file__")?.extract()?;
    Ok(Section {
        title: "Interpreter",
        rows: vec![
            ("version".to_owned(), interpreter.version.clone()),
            ("GIL".to_owned(), gil.to_owned()),
            ("executable".to_owned(), text("executable")?),
            ("prefix".to_owned(), text("prefix")?),
            ("module".to_owned(), module),
        ],
    })
}

/// Imports the application in this process.
fn application(py: Python<'_>, config: &Config) -> PyResult<(Section, u8)> {
    let Some(spec) = &config.app else {
        let rows = vec![(String::new(), "not named; `hoopsnake doctor APP` imports it".to_owned())];
        return Ok((Section { title: "Application", rows }, 0));
    };
    worker::enter(py, config)?;
    if let Err(reason) = python_log::configure(py, &config.log)? {
        return Ok((Section { title: "Application", rows: vec![(String::new(), reason)] }, 1));
    }
    let (text, code) = match import::load(py, spec) {
        Ok(loaded) => (format!("{} can be imported", loaded.name), 0),
        Err(LoadError::Ours(sentence)) => (sentence, 1),
        Err(LoadError::Theirs(error)) => {
            import::print_traceback(py, &error);
            (format!("{} cannot be imported: {error}", spec.module), 1)
        }
    };
    Ok((Section { title: "Application", rows: vec![(String::new(), text)] }, code))
}
