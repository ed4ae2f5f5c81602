//! Finds the application: the module, the attribute, and whether it can be served.

use hoopsnake_server::config::{AppSpec, HookSpec};
use pyo3::exceptions::{PyAttributeError, PyModuleNotFoundError};
use pyo3::intern;
use pyo3::prelude::*;

/// An application that can be called.
#[derive(Debug)]
pub(crate) struct Loaded<'py> {
    pub(crate) callable: Bound<'py, PyAny>,
    /// `MODULE:ATTR` as it was found.
    pub(crate) name: String,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// The application's code raised: its own traceback says where.
    Theirs(PyErr),
    /// What was named does not exist or is not what it should be.
    Ours(String),
}

impl LoadError {
    /// What was raised.
    pub(crate) fn theirs(&self) -> Option<&PyErr> {
        match self {
            Self::Theirs(error) => Some(error),
            Self::Ours(_) => None,
        }
    }
}

impl From<PyErr> for LoadError {
    fn from(error: PyErr) -> Self {
        Self::Theirs(error)
    }
}

/// Imports and looks up. `sys.path` is ready.
///
/// # Errors
/// See [`LoadError`].
pub(crate) fn load<'py>(py: Python<'py>, spec: &AppSpec) -> Result<Loaded<'py>, LoadError> {
    let module = import(py, &spec.module)?;
    let (found, name) = match &spec.attribute {
        Some(attribute) => {
            let found = look_up(&module, &spec.module, attribute)?;
            (found, format!("{}:{attribute}", spec.module))
        }
        None => discover(py, &module, &spec.module)?,
    };
    let (callable, name) =
        if spec.factory { (found.call0()?, format!("{name}()")) } else { (found, name) };
    check(py, &callable, &name)?;
    Ok(Loaded { callable, name })
}

/// Imports and looks up a hook.
///
/// # Errors
/// See [`LoadError`].
pub(crate) fn hook<'py>(py: Python<'py>, spec: &HookSpec) -> Result<Bound<'py, PyAny>, LoadError> {
    let module = import(py, &spec.module)?;
    let found = look_up(&module, &spec.module, &spec.function)?;
    if found.is_callable() {
        return Ok(found);
    }
    let kind = found.get_type().name()?;
    Err(LoadError::Ours(format!("{spec} is a {kind}: it cannot be called")))
}

/// Prints a traceback the way the interpreter would, without ending the process for `SystemExit`, and
/// without the frames of the import system that come before the application's.
pub(crate) fn print_traceback(py: Python<'_>, error: &PyErr) {
    let mut traceback = error.traceback(py).map(Bound::into_any);
    while let Some(outermost) = &traceback
        && is_of_import_system(outermost).unwrap_or(false)
    {
        traceback = outermost.getattr("tb_next").ok().filter(|next| !next.is_none());
    }
    // An exception takes any traceback or None.
    let _ = error.value(py).call_method1("with_traceback", (traceback,));
    let printed = py
        .import("traceback")
        .and_then(|traceback| traceback.call_method1("print_exception", (error.value(py),)));
    if printed.is_err() {
        eprintln!("{error}");
    }
}

fn is_of_import_system(traceback: &Bound<'_, PyAny>) -> PyResult<bool> {
    let code = traceback.getattr("tb_frame")?.getattr("f_code")?;
    let file: String = code.getattr("co_filename")?.extract()?;
    Ok(file.starts_with("<frozen importlib"))
}

fn import<'py>(py: Python<'py>, name: &str) -> Result<Bound<'py, PyModule>, LoadError> {
    py.import(name).map_err(|error| match missing_module(py, &error) {
        // The module itself or a package above it; anything else is an import inside of it.
        Some(missing) if name == missing || name.starts_with(&format!("{missing}.")) => {
            LoadError::Ours(format!(
                "there is no module {missing:?} in --app-dir or anywhere else on sys.path"
            ))
        }
        Some(_) | None => LoadError::Theirs(error),
    })
}

fn missing_module(py: Python<'_>, error: &PyErr) -> Option<String> {
    if !error.is_instance_of::<PyModuleNotFoundError>(py) {
        return None;
    }
    error.value(py).getattr(intern!(py, "name")).ok()?.extract().ok()
}

/// The attribute, dots followed.
fn look_up<'py>(
    module: &Bound<'py, PyModule>,
    module_name: &str,
    attribute: &str,
) -> Result<Bound<'py, PyAny>, LoadError> {
    let mut found = module.clone().into_any();
    for part in attribute.split('.') {
        found = found.getattr(part).map_err(|error| {
            if error.is_instance_of::<PyAttributeError>(module.py()) {
                let near = similar(&found, part).unwrap_or_default();
                LoadError::Ours(format!("module {module_name:?} has no attribute {part:?}{near}"))
            } else {
                LoadError::Theirs(error)
            }
        })?;
    }
    Ok(found)
}

fn similar(object: &Bound<'_, PyAny>, name: &str) -> Option<String> {
    let names = object.dir().ok()?;
    let difflib = object.py().import("difflib").ok()?;
    let near = difflib.call_method1("get_close_matches", (name, names, 1)).ok()?;
    let near: Vec<String> = near.extract().ok()?;
    near.first().map(|near| format!("; did you mean {near:?}?"))
}

/// A bare module: `MODULE.wsgi:application`, `MODULE:application`, `MODULE:app`.
fn discover<'py>(
    py: Python<'py>,
    module: &Bound<'py, PyModule>,
    name: &str,
) -> Result<(Bound<'py, PyAny>, String), LoadError> {
    let is_package = module.hasattr("__path__")?;
    let has = |submodule: &str| -> PyResult<bool> {
        if !is_package {
            return Ok(false);
        }
        let find_spec = py.import("importlib.util")?.getattr("find_spec")?;
        Ok(!find_spec.call1((format!("{name}.{submodule}"),))?.is_none())
    };
    if has("wsgi")? {
        let wsgi_name = format!("{name}.wsgi");
        let wsgi = import(py, &wsgi_name)?;
        let found = look_up(&wsgi, &wsgi_name, "application")?;
        return Ok((found, format!("{wsgi_name}:application")));
    }
    for attribute in ["application", "app"] {
        if let Some(found) = module.getattr_opt(attribute)? {
            return Ok((found, format!("{name}:{attribute}")));
        }
    }
    if has("asgi")? {
        return Err(LoadError::Ours(format!(
            "{name:?} has an asgi module and no wsgi module; this version serves WSGI only"
        )));
    }
    Err(LoadError::Ours(format!(
        "module {name:?} has neither `application` nor `app`, and there is no module \
         \"{name}.wsgi\"; name the attribute: {name}:ATTR"
    )))
}

/// Refuses what would fail at the first request.
fn check(py: Python<'_>, callable: &Bound<'_, PyAny>, name: &str) -> Result<(), LoadError> {
    if !callable.is_callable() {
        let kind = callable.get_type().name()?;
        return Err(LoadError::Ours(format!(
            "{name} is a {kind}, not an application: it cannot be called"
        )));
    }
    let inspect = py.import("inspect")?;
    let is_coroutine = |object: &Bound<'_, PyAny>| -> PyResult<bool> {
        inspect.call_method1("iscoroutinefunction", (object,))?.is_truthy()
    };
    let called = callable.get_type().getattr("__call__")?;
    if is_coroutine(callable)? || is_coroutine(&called)? {
        return Err(LoadError::Ours(format!(
            "{name} is an ASGI application; this version serves WSGI only"
        )));
    }
    // Builtins and some extension types have no signature: there is nothing to check then.
    let Ok(signature) = inspect.call_method1("signature", (callable,)) else { return Ok(()) };
    if signature.call_method1("bind", (py.None(), py.None())).is_ok() {
        return Ok(());
    }
    let hint = if signature.call_method0("bind").is_ok() && !name.ends_with("()") {
        format!("; if it makes the application, write {name}()")
    } else {
        String::new()
    };
    Err(LoadError::Ours(format!(
        "{name} cannot be called with (environ, start_response), as WSGI does{hint}"
    )))
}
