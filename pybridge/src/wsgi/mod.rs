//! WSGI (PEP 3333) on pool threads.
//!
//! | file | |
//! |---|---|
//! | `call` | one request, from the job to the last byte and `close()` |
//! | `environ`, `fields`, `input`, `errors` | what the application is given |
//! | `port`, `file_wrapper` | what it calls |
//! | `response` | the legal order of the steps of an answer; knows no Python |
//! | `garbage` | Python bytes that the reactor sends, and their way back |
//! | `running`, `report` | what is going on, what went wrong |

mod call;
mod environ;
mod errors;
mod fields;
mod file_wrapper;
mod garbage;
mod input;
mod port;
mod report;
mod response;
pub(crate) mod running;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hoopsnake_server::exchange::{Job, SyncLane};
use hoopsnake_server::pool::{Next, Runner, ThreadIndex};
use hoopsnake_server::stacks::Threads;
use pyo3::prelude::*;

use self::call::Worker;
use self::garbage::Garbage;
use self::running::Running;
use crate::attach::Attached;
use crate::{capi, forked};

/// What an application is told about the server, and how its requests are treated.
#[derive(Debug)]
pub(crate) struct WsgiOptions {
    /// `wsgi.multithread`: more than one pool thread.
    pub(crate) multithread: bool,
    /// `wsgi.multiprocess`: more than one worker.
    pub(crate) multiprocess: bool,
    /// The `Server` field where the application sets none; `None` sends none.
    pub(crate) server_name: Option<Vec<u8>>,
    /// `SCRIPT_NAME`: empty, or a path without a slash at its end.
    pub(crate) root_path: String,
    /// One per `ListenerIndex`, in that order.
    pub(crate) listeners: Vec<ListenerEnviron>,
    /// The access log wants to know when the application was called and when it was done.
    pub(crate) timed: bool,
    /// With `--request-timeout`: a request may be answered before a thread takes it.
    pub(crate) expires: bool,
}

/// What the environ says about where a request arrived.
#[derive(Clone, Debug)]
pub(crate) struct ListenerEnviron {
    /// `SERVER_NAME`; never empty (PEP 3333).
    pub(crate) server_name: String,
    /// `SERVER_PORT`; never empty (PEP 3333).
    pub(crate) server_port: String,
    /// `wsgi.url_scheme`.
    pub(crate) url_scheme: String,
}

/// One application, shared by all pool threads.
#[derive(Debug)]
pub(crate) struct Application {
    callable: Py<PyAny>,
    /// The context that the application was imported in; each request runs in a copy (RULES 5).
    base_context: Py<PyAny>,
    /// Without the server's name, which is shared with each response.
    options: WsgiOptions,
    server_name: Option<Arc<[u8]>>,
    garbage: Arc<Garbage>,
    running: Arc<Running>,
}

impl Application {
    /// The base context is a copy of the one that this is called in.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(
        py: Python<'_>,
        callable: Bound<'_, PyAny>,
        mut options: WsgiOptions,
    ) -> PyResult<Arc<Self>> {
        let main_ident =
            py.import("threading")?.call_method0("main_thread")?.getattr("ident")?.extract()?;
        Ok(Arc::new(Self {
            callable: callable.unbind(),
            base_context: capi::copy_current_context(py)?.unbind(),
            server_name: options.server_name.take().map(Arc::from),
            options,
            garbage: Arc::new(Garbage::default()),
            running: Arc::new(Running::new(main_ident)),
        }))
    }

    /// How many Python objects wait for an attached thread to drop them. The reactor puts
    /// `Job::Reclaim` on an idle lane while it is not zero.
    pub(crate) fn garbage_counter(&self) -> Arc<AtomicUsize> {
        self.garbage.counter()
    }

    /// The pool's threads, for whoever asks without the interpreter lock.
    pub(crate) fn threads(&self) -> Arc<dyn Threads> {
        Arc::clone(&self.running) as Arc<dyn Threads>
    }

    /// The requests that are inside the application right now, as request lines.
    pub(crate) fn running(&self) -> Vec<(ThreadIndex, String)> {
        self.running.list()
    }
}

/// Body of a pool thread, which Python made (RULES 3): attached when called, returns at the pill.
///
/// # Errors
/// Out of memory before the first request.
pub(crate) fn pool_thread_main(
    py: Python<'_>,
    application: &Application,
    lane: &SyncLane,
    index: ThreadIndex,
) -> PyResult<()> {
    let mut worker = Worker::new(py, application, lane, index)?;
    let mut runner = Runner::new(lane, index, Attached(py));
    loop {
        match runner.next_job() {
            Next::Job(Job::Request { exchange, body }) => {
                worker.run(py, exchange, body);
                // Forked while its response was iterated or closed.
                forked::end_if_child(py, None);
            }
            Next::Job(Job::Reclaim) => {}
            Next::Stop => return Ok(()),
        }
        application.garbage.reclaim(py);
    }
}

/// What `threading.Thread(target=…)` calls: [`pool_thread_main`] with its arguments.
#[pyclass(name = "PoolThread", module = "hoopsnake._hoopsnake", frozen)]
#[derive(Debug)]
pub(crate) struct PoolThread {
    application: Arc<Application>,
    lane: Arc<SyncLane>,
    index: ThreadIndex,
}

impl PoolThread {
    /// The body of thread `index` of `lane`.
    pub(crate) fn new(
        application: Arc<Application>,
        lane: Arc<SyncLane>,
        index: ThreadIndex,
    ) -> Self {
        Self { application, lane, index }
    }
}

#[pymethods]
impl PoolThread {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        pool_thread_main(py, &self.application, &self.lane, self.index)
    }
}
