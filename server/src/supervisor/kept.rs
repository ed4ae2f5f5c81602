//! Options that a rolling restart cannot change: sockets are bound once, and the supervisor is what it
//! was started as.

use crate::config::Config;

/// The new configuration with the old values of what cannot change, and the names of those that differ.
pub(super) fn keep(old: &Config, mut new: Config) -> (Config, Vec<&'static str>) {
    let mut kept = Vec::new();
    macro_rules! keep {
        ($($name:literal: $($field:ident).+;)*) => {
            $(if old.$($field).+ != new.$($field).+ {
                kept.push($name);
                new.$($field).+.clone_from(&old.$($field).+);
            })*
        };
    }
    keep! {
        "bind": binds;
        "backlog": backlog;
        "uds-mode": uds_mode;
        "admin": admin;
        "single-process": single_process;
        "user": user;
        "group": group;
        "pid-file": pid_file;
        "chdir": chdir;
        "proc-name": process_name;
        "io": io;
        "log-level": log.level;
        "log-format": log.format;
    }
    (new, kept)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Interpreter, Request, parse};

    fn config(words: &[&str]) -> Config {
        let words: Vec<_> = words.iter().map(Into::into).collect();
        let directory = Path::new("/nonexistent");
        let Ok(Request::Options(typed)) = parse(&words, directory) else { panic!("options") };
        let interpreter = Interpreter { version: "3.13.0".to_owned(), free_threaded: false };
        Config::from_typed(&typed, &interpreter).unwrap()
    }

    #[test]
    fn what_is_bound_stays_and_what_workers_read_changes() {
        let old =
            config(&["app", "--bind", "127.0.0.1:1", "--workers", "2", "--log-level", "info"]);
        let words = [
            "app",
            "--bind",
            "127.0.0.1:2",
            "--workers",
            "3",
            "--log-level",
            "warn",
            "--threads=5",
        ];
        let (new, kept) = keep(&old, config(&words));
        assert_eq!(kept, ["bind", "log-level"]);
        assert_eq!((&new.binds, new.log.level), (&old.binds, old.log.level));
        assert_eq!((new.worker_count, new.thread_count), (3, 5));
        let (_, kept) = keep(&old, old.clone());
        assert!(kept.is_empty());
    }
}
