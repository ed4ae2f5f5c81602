//! The environ of a request (PEP 3333, "environ Variables"): a copy of a template, then what differs.
//!
//! Stated for requests that other servers treat differently:
//!
//! | request | `PATH_INFO` | `QUERY_STRING` |
//! |---|---|---|
//! | `OPTIONS *` | empty, since a path is empty or begins with a slash | empty |
//! | `GET http://h:1/a?b` | `/a`, and `HTTP_HOST` is `h:1`, whatever `Host` says | `b` |
//! | `//a//b` | `//a//b` | |
//! | `/a%2Fb`, `/%00`, `/%zz` | `/a/b`, `/\x00`, `/%zz` | |
//! | `/%C3%A4`, `/ä`, `/%FF` | the bytes as latin-1, whether they are UTF-8 or not | |
//!
//! `RAW_URI` and `REQUEST_URI` are the target as it was sent, always. What trusted proxies tell about
//! the client and the URL stands in place of what the connection says (`hoopsnake_server::forwarded`).

use std::net::IpAddr;

use hoopsnake_server::exchange::Exchange;
use hoopsnake_server::forwarded::{Client, Origin, Scheme};
use hoopsnake_server::http::{RequestFraming, Version};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::errors::ErrorStream;
use super::fields::FieldTable;
use super::file_wrapper::FileWrapper;
use super::{ListenerEnviron, WsgiOptions};
use crate::{capi, convert};

/// Entries that a template's table has had: one more than fills a table of 32 places, so that it has
/// 64 and a copy takes some twenty header fields before it must grow.
const TEMPLATE_ENTRY_COUNT: usize = 22;

/// Hosts whose text is remembered per thread. **Why**: behind a balancer there are few, and a port
/// is quicker made than found.
const HOST_COUNT: usize = 64;

/// Makes environs; owned by one thread.
#[derive(Debug)]
pub(super) struct EnvironFactory {
    /// By `ListenerIndex`.
    templates: Box<[Py<PyDict>]>,
    fields: FieldTable,
    hosts: Box<[Option<HostName>]>,
    /// `SCRIPT_NAME` as bytes.
    root_path: Vec<u8>,
}

#[derive(Debug)]
struct HostName {
    ip: IpAddr,
    text: Py<PyString>,
}

impl EnvironFactory {
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        py: Python<'_>,
        options: &WsgiOptions,
        errors: &Bound<'_, ErrorStream>,
    ) -> PyResult<Self> {
        let template = |listener| Ok(template(py, options, listener, errors)?.unbind());
        Ok(Self {
            templates: options.listeners.iter().map(template).collect::<PyResult<_>>()?,
            fields: FieldTable::new(),
            hosts: std::iter::repeat_with(|| None).take(HOST_COUNT).collect(),
            root_path: options.root_path.as_bytes().to_vec(),
        })
    }

    /// The environ of one request, whose body has `body_bytes` bytes and is read from `input`.
    ///
    /// # Errors
    /// Out of memory, or a listener that the options did not name.
    pub(super) fn make<'py>(
        &mut self,
        py: Python<'py>,
        exchange: &Exchange,
        input: &Bound<'py, PyAny>,
        body_bytes: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let template = self.templates.get(exchange.listener.0).ok_or_else(|| {
            pyo3::exceptions::PySystemError::new_err("bug: a request from an unknown listener")
        })?;
        let environ = template.bind(py).copy()?;
        let head = &exchange.head;
        environ.set_item(intern!(py, "wsgi.input"), input)?;
        match head.method() {
            // In the template.
            b"GET" => {}
            method => environ.set_item(intern!(py, "REQUEST_METHOD"), method_name(py, method)?)?,
        }
        if head.version() == Version::Http10 {
            environ.set_item(intern!(py, "SERVER_PROTOCOL"), intern!(py, "HTTP/1.0"))?;
        }
        self.set_target(&environ, exchange)?;
        self.set_client(&environ, exchange.client())?;
        match head.framing() {
            RequestFraming::None => {}
            RequestFraming::Length(_) | RequestFraming::Chunked => {
                let length = convert::decimal(py, body_bytes)?;
                environ.set_item(intern!(py, "CONTENT_LENGTH"), length)?;
            }
        }
        let fields = head.fields().map(|field| (field.name, field.value));
        self.fields.set_all(&environ, fields, head.authority())?;
        if let Some(origin) = &exchange.origin {
            set_origin(&environ, origin)?;
        }
        if let Some(id) = &exchange.request_id {
            // Over what the client sent, unless a trusted proxy did and it is the same.
            let id = capi::latin1_string(py, id.as_bytes())?;
            environ.set_item(intern!(py, "HTTP_X_REQUEST_ID"), id)?;
        }
        Ok(environ)
    }

    fn set_target(&self, environ: &Bound<'_, PyDict>, exchange: &Exchange) -> PyResult<()> {
        let py = environ.py();
        let (target, path) = (exchange.head.target(), exchange.head.path());
        let sent = capi::latin1_string(py, target)?;
        environ.set_item(intern!(py, "REQUEST_URI"), &sent)?;
        environ.set_item(intern!(py, "RAW_URI"), &sent)?;
        let query = exchange.head.query();
        if !query.is_empty() {
            environ.set_item(intern!(py, "QUERY_STRING"), capi::latin1_string(py, query)?)?;
        }
        if path == b"*" {
            return environ.set_item(intern!(py, "PATH_INFO"), intern!(py, ""));
        }
        let key = intern!(py, "PATH_INFO");
        if !self.root_path.is_empty() {
            let decoded = convert::percent_decoded(path);
            let inside = path_below(&self.root_path, &decoded).unwrap_or(&decoded);
            return environ.set_item(key, capi::latin1_string(py, inside)?);
        }
        if path == target && !path.contains(&b'%') {
            return environ.set_item(key, sent);
        }
        environ.set_item(key, convert::decoded_path(py, path)?)
    }

    fn set_client(&mut self, environ: &Bound<'_, PyDict>, client: Client) -> PyResult<()> {
        let Client::Inet { ip, port } = client else { return Ok(()) };
        let py = environ.py();
        let place = &mut self.hosts[place_of(ip)];
        let host = match place {
            Some(known) if known.ip == ip => known,
            Some(_) | None => {
                let text = ip.to_string();
                let text = capi::latin1_string(py, text.as_bytes())?.unbind();
                place.insert(HostName { ip, text })
            }
        };
        environ.set_item(intern!(py, "REMOTE_ADDR"), &host.text)?;
        // A proxy rarely says from which port its client came.
        let port = convert::decimal(py, u64::from(port.unwrap_or(0)))?;
        environ.set_item(intern!(py, "REMOTE_PORT"), port)
    }
}

/// What trusted proxies told about the URL, over what the connection says.
fn set_origin(environ: &Bound<'_, PyDict>, origin: &Origin) -> PyResult<()> {
    let py = environ.py();
    match origin.scheme {
        Some(Scheme::Https) => {
            environ.set_item(intern!(py, "wsgi.url_scheme"), intern!(py, "https"))?;
            // "If SSL is in use, the server or gateway should also provide as many of the Apache SSL
            // environment variables as are applicable": PEP 3333.
            environ.set_item(intern!(py, "HTTPS"), intern!(py, "on"))?;
        }
        Some(Scheme::Http) => {
            environ.set_item(intern!(py, "wsgi.url_scheme"), intern!(py, "http"))?;
        }
        None => {}
    }
    if let Some(host) = &origin.host {
        environ.set_item(intern!(py, "HTTP_HOST"), capi::latin1_string(py, host)?)?;
    }
    if let Some(port) = origin.port {
        environ.set_item(intern!(py, "SERVER_PORT"), convert::decimal(py, u64::from(port))?)?;
    }
    Ok(())
}

/// Neighbours in a network differ in their last bytes.
fn place_of(ip: IpAddr) -> usize {
    let last = match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    usize::from(last) % HOST_COUNT
}

/// What is left of `path` below the root, at a segment's end; `None` if it is not below it, which is
/// how a proxy that has removed the prefix itself sends it.
fn path_below<'path>(root_path: &[u8], path: &'path [u8]) -> Option<&'path [u8]> {
    let rest = path.strip_prefix(root_path)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn method_name<'py>(py: Python<'py>, method: &[u8]) -> PyResult<Bound<'py, PyString>> {
    Ok(match method {
        b"POST" => intern!(py, "POST").clone(),
        b"PUT" => intern!(py, "PUT").clone(),
        b"PATCH" => intern!(py, "PATCH").clone(),
        b"DELETE" => intern!(py, "DELETE").clone(),
        b"HEAD" => intern!(py, "HEAD").clone(),
        b"OPTIONS" => intern!(py, "OPTIONS").clone(),
        other => capi::latin1_string(py, other)?,
    })
}

fn template<'py>(
    py: Python<'py>,
    options: &WsgiOptions,
    listener: &ListenerEnviron,
    errors: &Bound<'py, ErrorStream>,
) -> PyResult<Bound<'py, PyDict>> {
    let environ = PyDict::new(py);
    let texts = [
        (intern!(py, "REQUEST_METHOD"), "GET"),
        (intern!(py, "SCRIPT_NAME"), &*options.root_path),
        (intern!(py, "PATH_INFO"), "/"),
        (intern!(py, "QUERY_STRING"), ""),
        (intern!(py, "RAW_URI"), "/"),
        (intern!(py, "REQUEST_URI"), "/"),
        (intern!(py, "SERVER_PROTOCOL"), "HTTP/1.1"),
        (intern!(py, "SERVER_NAME"), &*listener.server_name),
        (intern!(py, "SERVER_PORT"), &*listener.server_port),
        (intern!(py, "SERVER_SOFTWARE"), concat!("hoopsnake/", env!("CARGO_PKG_VERSION"))),
        (intern!(py, "REMOTE_ADDR"), ""),
        (intern!(py, "REMOTE_PORT"), ""),
        (intern!(py, "wsgi.url_scheme"), &*listener.url_scheme),
    ];
    for (key, value) in texts {
        if value.is_ascii() {
            // The application's own constant is then the same object.
            environ.set_item(key, PyString::intern(py, value))?;
        } else {
            // A native string is bytes: an option given as UTF-8 is passed as its bytes.
            environ.set_item(key, capi::latin1_string(py, value.as_bytes())?)?;
        }
    }
    environ.set_item(intern!(py, "wsgi.version"), (1, 0))?;
    environ.set_item(intern!(py, "wsgi.input"), py.None())?;
    environ.set_item(intern!(py, "wsgi.errors"), errors)?;
    environ.set_item(intern!(py, "wsgi.multithread"), options.multithread)?;
    environ.set_item(intern!(py, "wsgi.multiprocess"), options.multiprocess)?;
    environ.set_item(intern!(py, "wsgi.run_once"), false)?;
    environ.set_item(intern!(py, "wsgi.file_wrapper"), py.get_type::<FileWrapper>())?;
    environ.set_item(intern!(py, "wsgi.input_terminated"), true)?;
    for number in environ.len()..TEMPLATE_ENTRY_COUNT {
        // A key of another type than `str` would make every later look-up slower.
        let key = format!("hoopsnake.place.{number}");
        environ.set_item(&key, number)?;
        environ.del_item(&key)?;
    }
    Ok(environ)
}
