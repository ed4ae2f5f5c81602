//! The extension module: names exported, nothing else.

mod attach;
mod capi;
mod command;
mod convert;
mod doctor;
mod ending;
mod forked;
mod hooks;
mod import;
mod interpreter;
mod names;
mod pulse;
mod python_log;
mod run;
mod stacks;
mod template;
mod traceback;
mod vigil;
mod worker;
mod wsgi;

use pyo3::prelude::*;

/// The native half of the package `hoopsnake`.
#[pymodule(gil_used = false)]
fn _hoopsnake(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::check_built_for(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(command::main, module)?)?;
    Ok(())
}
