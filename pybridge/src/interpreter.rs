//! Which interpreter this is, and whether the module was built for it.

use hoopsnake_server::config::Interpreter;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// The version and the ABI flags that decide the layout of objects, such as `3.13` or `3.14t`.
const BUILT_FOR: &str = env!("HOOPSNAKE_BUILT_FOR");

/// Refuses an interpreter with another layout of objects: there the module would read memory at
/// wrong offsets instead of failing.
///
/// # Errors
/// `ImportError` that names both and the way out.
pub(crate) fn check_built_for(py: Python<'_>) -> PyResult<()> {
    let version = py.version_info();
    let flags: String = py.import("sys")?.getattr("abiflags")?.extract()?;
    let mut running = format!("{}.{}", version.major, version.minor);
    running.extend(flags.chars().filter(|flag| matches!(flag, 't' | 'd')));
    if running == BUILT_FOR {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "hoopsnake was built for Python {BUILT_FOR} and this is Python {running}: install it into \
         this interpreter with `python -m pip install --force-reinstall hoopsnake`"
    )))
}

/// What defaults depend on.
///
/// # Errors
/// `sys` is not what it should be.
pub(crate) fn describe(py: Python<'_>) -> PyResult<Interpreter> {
    let version = py.version_info();
    let free_threaded = match py.import("sys")?.getattr_opt("_is_gil_enabled")? {
        Some(is_enabled) => !is_enabled.call0()?.is_truthy()?,
        None => false,
    };
    let version = format!("{}.{}.{}", version.major, version.minor, version.patch);
    Ok(Interpreter { version, free_threaded })
}
