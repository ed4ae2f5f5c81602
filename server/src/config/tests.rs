use std::ffi::OsString;
use std::path::PathBuf;

use super::*;
use crate::error::FaultKind;

fn interpreter() -> Interpreter {
    Interpreter { version: "3.13.0".to_owned(), free_threaded: false }
}

fn typed_in(directory: &Path, arguments: &[&str]) -> Result<Typed, Fault> {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    match parse(&arguments, directory)? {
        Request::Options(typed) => Ok(*typed),
        Request::Print(text) => panic!("printed {text}"),
    }
}

fn config_in(directory: &Path, arguments: &[&str]) -> Result<Config, Fault> {
    Config::from_typed(&typed_in(directory, arguments)?, &interpreter())
}

/// A directory without files of ours; the environment of a test run has no HOOPSNAKE_ variables.
fn config(arguments: &[&str]) -> Result<Config, Fault> {
    config_in(Path::new("/nonexistent"), arguments)
}

fn directory_with(name: &str, text: &str, test: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("hoopsnake-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(name), text).unwrap();
    directory
}

#[test]
fn the_command_is_consistent_and_every_value_has_a_flag_a_variable_and_a_key() {
    let command = super::options::command();
    command.clone().debug_assert();
    for argument in command.get_arguments().filter(|each| each.get_action().takes_values()) {
        let id = argument.get_id().as_str();
        let variable = argument.get_env().and_then(std::ffi::OsStr::to_str);
        assert_eq!(variable, Some(format!("HOOPSNAKE_{}", id.to_uppercase()).as_str()));
        assert!(argument.is_positional() || argument.get_long() == Some(&id.replace('_', "-")));
        assert!(argument.get_help().is_some(), "{id}");
    }
    for bound in BOUNDS {
        assert!(command.get_arguments().any(|each| each.get_long() == Some(bound.name)));
    }
}

#[test]
fn defaults_are_those_of_the_design() {
    let config = config(&["mysite"]).unwrap();
    assert_eq!(config.binds, [Bind::Inet { host: "127.0.0.1".to_owned(), port: 8000 }]);
    assert_eq!((config.worker_count, config.thread_count), (1, 8));
    assert_eq!((config.backlog, config.queue_requests_max), (2048, 1024));
    assert_eq!(config.keep_alive, Duration::from_secs(75));
    assert_eq!(config.grace, Duration::from_secs(25));
    assert_eq!(config.body_bytes_max, 1 << 30);
    assert_eq!(config.http.request_line_bytes_max, crate::limits::REQUEST_LINE_BYTES_MAX);
    assert_eq!(config.http.head_bytes_max, crate::limits::HEAD_BYTES_MAX);
    assert_eq!(config.http.field_count_max, crate::limits::FIELD_COUNT_MAX);
    assert_eq!(config.io, IoChoice::Auto);
    assert_eq!(config.log.access, AccessTarget::Off);
    let list = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
    let proxies = trust::proxies(&list(&["127.0.0.1", "::1", "unix"]));
    assert_eq!(Ok(config.trust.proxies), proxies);
    let fields = trust::fields(&list(&["for", "proto", "host", "port"]));
    assert_eq!(Ok(config.trust.fields), fields);
}

#[test]
fn idle_connections_get_half_of_the_grace_at_most() {
    for (grace, drain_idle, expected) in
        [("25", "5", 5000), ("25", "20", 12_500), ("5", "5", 2500), ("0", "5", 0)]
    {
        let config = config(&["a", "--grace", grace, "--drain-idle", drain_idle]).unwrap();
        assert_eq!(config.drain_idle, Duration::from_millis(expected), "{grace} {drain_idle}");
    }
}

#[test]
fn a_bad_value_names_itself_its_range_and_its_origin() {
    for (arguments, sentence) in [
        (
            &["a", "--threads", "0"][..],
            "threads is \"0\" (from --threads): expected a number of threads from 1 to 1024, or auto",
        ),
        (&["a", "--io", "kqueue"], "io is \"kqueue\" (from --io): expected auto, uring or epoll"),
        (
            &["a", "--bind", "127.0.0.1:80", "--bind", "x"],
            "bind is \"x\" (from --bind): expected HOST:PORT, [IPV6]:PORT, unix:PATH or fd://N",
        ),
        (
            &["a.py"],
            "app is \"a.py\" (from the command line): expected MODULE, MODULE:ATTR or \
          MODULE:FACTORY(): a module's name as `import` takes it, not a file",
        ),
        (
            &["a", "--trusted-proxies", "::1", "--trusted-proxies", "10.0.0.1/8"],
            "trusted-proxies has \"10.0.0.1/8\" (from --trusted-proxies): expected 10.0.0.0/8, which is \
             the network of 10.0.0.1, or 10.0.0.1 alone",
        ),
        (
            &["a", "--trusted-fields", "off,for"],
            "trusted-fields has \"off\" (from --trusted-fields): expected off alone, without other items",
        ),
        (
            &["a", "--max-head", "4KiB"],
            "max-head is 4KiB (from --max-head) and max-request-line is 8KiB (from default): the line \
          is a part of the head, so max-head must be at least as large",
        ),
    ] {
        let fault = config(arguments).unwrap_err();
        assert_eq!((fault.kind, fault.sentence.as_str()), (FaultKind::Usage, sentence));
        assert_eq!(fault.exit_code(), 2);
    }
}

#[test]
fn a_flag_wins_over_a_file_and_a_file_over_the_default() {
    let directory = directory_with(
        "hoopsnake.toml",
        "app = 'shop'\nworkers = 3\nthreads = 4\nbind = ['127.0.0.1:1', 'unix:a']\nwsgi = true\n\
         trusted-proxies = ['10.0.0.0/8', 'unix']\ntrusted-fields = 'for'\n",
        "layers",
    );
    let typed = typed_in(&directory, &["--workers", "2"]).unwrap();
    let config = Config::from_typed(&typed, &interpreter()).unwrap();
    assert_eq!((config.worker_count, config.thread_count, config.binds.len()), (2, 4, 2));
    let proxies = ["10.0.0.0/8".to_owned(), "unix".to_owned()];
    assert_eq!(Ok(config.trust.proxies), trust::proxies(&proxies));
    assert!(config.trust.fields.client && !config.trust.fields.scheme);
    assert_eq!(config.app.map(|app| app.module), Some("shop".to_owned()));
    assert_eq!(typed.origin("workers"), Origin::Flag("--workers".to_owned()));
    assert_eq!(typed.origin("threads").to_string(), "threads in hoopsnake.toml");
    assert_eq!(typed.origin("queue"), Origin::Default);
}

#[test]
fn a_file_has_only_known_keys_and_its_values_are_judged_like_any_other() {
    let directory =
        directory_with("pyproject.toml", "[tool.hoopsnake]\nthreads = -1\n", "pyproject");
    let fault = config_in(&directory, &["a"]).unwrap_err();
    assert_eq!(
        fault.sentence,
        "threads is \"-1\" (from threads in [tool.hoopsnake] of pyproject.toml): expected a number \
         of threads from 1 to 1024, or auto"
    );
    let directory = directory_with("hoopsnake.toml", "worker = 3\n", "unknown");
    let fault = config_in(&directory, &["a"]).unwrap_err();
    assert_eq!(
        fault.sentence,
        "hoopsnake.toml: there is no option \"worker\"; the keys are the flags' names, see --help"
    );
    let directory = directory_with("hoopsnake.toml", "workers = {}\n", "table");
    let fault = config_in(&directory, &["a"]).unwrap_err();
    assert!(fault.sentence.contains("workers is {}; expected a string"), "{fault}");
    let directory = directory_with("hoopsnake.toml", "workers\n", "syntax");
    assert!(config_in(&directory, &["a"]).unwrap_err().sentence.contains("is not TOML"));
    let directory = directory_with("other", "", "irregular");
    std::fs::create_dir_all(directory.join("hoopsnake.toml")).unwrap();
    assert!(config_in(&directory, &["a"]).unwrap_err().sentence.contains("no regular file"));
}

#[test]
fn verbs_come_first_and_help_and_version_are_printed() {
    let nowhere = Path::new("/nonexistent");
    assert_eq!(typed_in(nowhere, &["serve", "a"]).unwrap().verb, Verb::Serve);
    assert_eq!(typed_in(nowhere, &["doctor"]).unwrap().verb, Verb::Doctor);
    assert_eq!(typed_in(nowhere, &["--limits"]).unwrap().verb, Verb::Limits);
    assert!(config(&["doctor"]).unwrap().app.is_none());
    assert!(config(&[]).unwrap_err().sentence.starts_with("APP is missing"));
    for (flag, wanted) in [("--version", env!("CARGO_PKG_VERSION")), ("--help", "HOOPSNAKE_<NAME>")]
    {
        match parse(&[OsString::from(flag)], nowhere).unwrap() {
            Request::Print(text) => assert!(text.contains(wanted), "{text}"),
            Request::Options(_) => panic!("{flag} did not print"),
        }
    }
    assert!(limits_table().contains("--max-body"));
}

#[test]
fn flags_without_a_value_do_not_eat_the_application() {
    let config = config(&["--single-process", "--workers", "4", "--wsgi", "a"]).unwrap();
    assert_eq!((config.single_process, config.worker_count), (true, 1));
    assert_eq!(config.app.map(|app| app.module), Some("a".to_owned()));
}

#[test]
fn env_files_are_names_and_values() {
    let text = "# c\n\nA=1\nexport B = \"two words\"\nC='x=y'\nD=\n";
    let expected = [("A", "1"), ("B", "two words"), ("C", "x=y"), ("D", "")];
    let found = parse_env_file(text).unwrap();
    assert!(found.iter().map(|(a, b)| (a.as_str(), b.as_str())).eq(expected));
    assert_eq!(parse_env_file("A=1\nB\n"), Err(2));
    assert_eq!(parse_env_file("=1\n"), Err(1));
}
