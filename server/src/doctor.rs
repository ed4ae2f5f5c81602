//! `hoopsnake doctor` without Python: the configuration with the origin of each value, and what the
//! kernel offers.

use std::fmt::Write as _;

use rustix::process::{Resource, getrlimit};

use crate::access_log::AccessLog;
use crate::config::{Config, Typed, usable_cpu_count};
use crate::error::Fault;
use crate::machine;
use crate::pool::Knobs;
use crate::supervisor::{Listeners, PidFile};
use crate::sys::probe;

/// A titled list of names and values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Section {
    /// The title.
    pub title: &'static str,
    /// Names (may be empty) and what there is to say.
    pub rows: Vec<(String, String)>,
}

/// The sections as text.
#[must_use]
pub fn render(sections: &[Section]) -> String {
    let mut text = format!("hoopsnake {}\n", env!("CARGO_PKG_VERSION"));
    for section in sections {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{}", section.title);
        let width = section.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &section.rows {
            let line = format!("  {name:<width$}  {value}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

/// Every option: its value as typed and where it came from.
#[must_use]
pub fn configuration(typed: &Typed) -> Section {
    let width = typed
        .settings
        .iter()
        .filter_map(|setting| setting.value.as_deref().map(str::len))
        .max()
        .unwrap_or(0);
    let rows = typed.settings.iter().map(|setting| {
        let value = setting.value.as_deref().unwrap_or("-");
        (setting.name.clone(), format!("{value:<width$}  {}", setting.origin))
    });
    Section { title: "Configuration", rows: rows.collect() }
}

/// The pool's knobs that are set; they are for measurements, so one that is left over should be seen.
#[must_use]
pub fn pool_knobs() -> Option<Section> {
    let (_, set) = Knobs::from_environment();
    let rows: Vec<_> = set.iter().map(|knob| (String::new(), knob.to_string())).collect();
    (!rows.is_empty()).then_some(Section { title: "Knobs of the pool", rows })
}

/// What the kernel offers, and why the server could not use it.
#[must_use]
pub fn kernel(config: &Config) -> (Section, Option<Fault>) {
    let mut rows = vec![("release".to_owned(), machine::kernel_release())];
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let ring = probe::self_test();
    row("io_uring", ring.map_or_else(|refused| refused.to_string(), |_| "works".to_owned()));
    row("io_uring_disabled", first_line("/proc/sys/kernel/io_uring_disabled"));
    let chosen = machine::choose_io(config);
    let io = match &chosen {
        Ok((io, _)) => format!("{io:?}").to_lowercase(),
        Err(_) => "none: see below".to_owned(),
    };
    row("io", io);
    row("seccomp", seccomp());
    row("MEMLOCK", limit(Resource::Memlock, " bytes"));
    row("NOFILE", limit(Resource::Nofile, " (soft is raised to hard)"));
    row("CPUs", format!("{} usable (affinity and cgroup quota counted)", usable_cpu_count()));
    row("somaxconn", first_line("/proc/sys/net/core/somaxconn"));
    row("workers", format!("{} of {} threads", config.worker_count, config.thread_count));
    let spool = machine::spool_problem(&config.spool_dir);
    let spool = spool.map_or_else(|| "can hold bodies".to_owned(), |error| error.to_string());
    row("spool-dir", format!("{}: {spool}", config.spool_dir.display()));
    (Section { title: "Machine", rows }, chosen.err())
}

/// Tries to bind what the server would bind, and lets go of it.
///
/// # Errors
/// What the server would say.
pub fn listening(config: &Config) -> Result<(), Fault> {
    Listeners::open(config)?.remove_paths();
    Ok(())
}

/// Tries the files that the server would write to, and leaves nothing behind.
///
/// # Errors
/// What the server would say.
pub fn files(config: &Config) -> Result<(), Fault> {
    if let Some(path) = &config.pid_file {
        PidFile::create(path)?.remove();
    }
    AccessLog::check(&config.log)
        .map_err(|error| Fault::start(format!("{} cannot be opened: {error}", config.log.access)))
}

/// What the server would do besides, and nobody tried.
#[must_use]
pub fn unchecked(config: &Config) -> Section {
    let mut rows = vec![(
        String::new(),
        "workers: none was forked, no thread was started and no request was answered".to_owned(),
    )];
    if config.user.is_some() || config.group.is_some() {
        let text =
            "user and group: they exist, and everything above was done without becoming them";
        rows.push((String::new(), text.to_owned()));
    }
    let hooks = &config.hooks;
    if hooks.start.is_some() || hooks.ready.is_some() || hooks.exit.is_some() {
        rows.push((String::new(), "hooks: none was looked up or called".to_owned()));
    }
    Section { title: "Not checked", rows }
}

fn limit(resource: Resource, unit: &str) -> String {
    let limit = getrlimit(resource);
    let show = |value: Option<u64>| value.map_or("unlimited".to_owned(), |value| value.to_string());
    format!("soft {}, hard {}{unit}", show(limit.current), show(limit.maximum))
}

fn seccomp() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("0") => "none".to_owned(),
        Some("1") => "strict".to_owned(),
        Some("2") => "a filter is installed, as container runtimes do".to_owned(),
        Some(other) => other.to_owned(),
        None => "unknown".to_owned(),
    }
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().map_or_else(|| "not there".to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_stand_in_columns() {
        let rows = vec![("a".to_owned(), "1".to_owned()), ("long".to_owned(), "2".to_owned())];
        let text = render(&[Section { title: "T", rows }]);
        assert!(text.ends_with("\n\nT\n  a     1\n  long  2\n"), "{text}");
    }
}
