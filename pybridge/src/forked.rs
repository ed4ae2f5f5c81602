//! Children that the application forks: they keep nothing of the worker, and never serve.

use std::cell::Cell;

use hoopsnake_server::sys::held;
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;

use crate::stacks;

thread_local! {
    /// The fork under way makes a worker, which is to keep what there is.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// A fork in here is none of the application's.
pub(crate) fn as_ours<T>(fork: impl FnOnce() -> T) -> T {
    let before = IS_OURS.replace(true);
    let result = fork();
    IS_OURS.set(before);
    result
}

/// Registers what every `os.fork()` of this process and of those that it forks does in the child (`multiprocessing` forks by it).
///
/// # Errors
/// `os` is not what it should be.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("after_in_child", wrap_pyfunction!(let_go, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&arguments))?;
    Ok(())
}

#[pyfunction]
fn let_go(py: Python<'_>) {
    if IS_OURS.get() {
        return;
    }
    held::let_go_in_child();
    stacks::close_in_child(py);
}

/// After the application returned: in a forked child that came back out of a view, a hook, a handler
/// or the import, ends the child. Its answer would be a second one to the same request, and it would
/// wait for jobs that never come. `raised` is what the application raised, `SystemExit` for one.
pub(crate) fn end_if_child(py: Python<'_>, raised: Option<&PyErr>) {
    if held::is_forked_child() {
        end(py, raised);
    }
}

#[cold]
fn end(py: Python<'_>, raised: Option<&PyErr>) {
    let code = match raised {
        Some(error) if error.is_instance_of::<PySystemExit>(py) => exit_code(py, error),
        Some(error) => {
            error.display(py);
            1
        }
        None => {
            // The log's thread is not in this process.
            eprintln!(
                "hoopsnake: process {} was forked by the application and returned from it; it ends \
                 here. \
                 End such a child with os._exit()",
                std::process::id()
            );
            1
        }
    };
    for stream in ["stdout", "stderr"] {
        // Closed or broken: there is nothing to save.
        let _ = py.import("sys").and_then(|sys| sys.getattr(stream)?.call_method0("flush"));
    }
    let _ = py.import("os").and_then(|os| os.call_method1("_exit", (code,)));
    std::process::abort()
}

fn exit_code(py: Python<'_>, error: &PyErr) -> i32 {
    match error.value(py).getattr("code") {
        Ok(code) if code.is_none() => 0,
        Ok(code) => code.extract().unwrap_or(1),
        Err(_) => 1,
    }
}
