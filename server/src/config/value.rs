//! What one value may be: text to meaning, or a phrase that says what was expected.

use std::path::PathBuf;
use std::time::Duration;

/// The range of an option that is a number. **Source**: `--limits` prints this table.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The option.
    pub name: &'static str,
    /// The least.
    pub low: u64,
    /// The most.
    pub high: u64,
    /// What is counted.
    pub unit: &'static str,
}

const KIB: u64 = 1024;
const GIB: u64 = 1024 * 1024 * 1024;
const DAY: u64 = 86_400;

/// Every option with a range.
pub const BOUNDS: &[Bound] = &[
    Bound { name: "backlog", low: 1, high: 1 << 20, unit: "connections" },
    Bound { name: "workers", low: 1, high: 1024, unit: "processes" },
    Bound { name: "threads", low: 1, high: 1024, unit: "threads" },
    Bound { name: "respawn-max", low: 0, high: 10_000, unit: "workers" },
    Bound { name: "queue", low: 1, high: 1 << 20, unit: "requests" },
    Bound { name: "max-connections", low: 1, high: 1 << 20, unit: "connections" },
    Bound { name: "keep-alive", low: 0, high: DAY, unit: "seconds" },
    Bound { name: "header-timeout", low: 1, high: DAY, unit: "seconds" },
    Bound { name: "body-timeout", low: 1, high: DAY, unit: "seconds" },
    Bound { name: "send-timeout", low: 1, high: DAY, unit: "seconds" },
    Bound { name: "request-timeout", low: 0, high: DAY, unit: "seconds" },
    Bound { name: "stall-timeout", low: 0, high: DAY, unit: "seconds" },
    Bound { name: "shutdown-delay", low: 0, high: DAY, unit: "seconds" },
    Bound { name: "grace", low: 0, high: DAY, unit: "seconds" },
    Bound { name: "drain-idle", low: 0, high: DAY, unit: "seconds" },
    Bound { name: "max-body", low: 0, high: 1 << 40, unit: "bytes" },
    Bound { name: "max-request-line", low: 256, high: 64 * KIB, unit: "bytes" },
    Bound { name: "max-head", low: 1024, high: 1024 * KIB, unit: "bytes" },
    Bound { name: "max-fields", low: 8, high: 1024, unit: "fields" },
    Bound { name: "spool-bytes", low: 0, high: 1 << 40, unit: "bytes" },
];

/// The range of an option. **Panics** for a name that is not in the table: a bug of the caller.
fn bound(name: &str) -> Bound {
    *BOUNDS.iter().find(|bound| bound.name == name).expect("bug: an option without a bound")
}

/// A whole number within the option's bound.
pub(super) fn count(name: &str, text: &str) -> Result<u64, String> {
    let Bound { low, high, unit, .. } = bound(name);
    let number = text.parse::<u64>().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("a number of {unit} from {low} to {high}"))
}

/// Like [`count`], or `auto`, which is `None`.
pub(super) fn count_or_auto(name: &str, text: &str) -> Result<Option<u64>, String> {
    if text == "auto" {
        return Ok(None);
    }
    count(name, text).map(Some).map_err(|expected| format!("{expected}, or auto"))
}

/// Seconds, decimals allowed.
pub(super) fn seconds(name: &str, text: &str) -> Result<Duration, String> {
    let Bound { low, high, .. } = bound(name);
    // What is in range cannot fail to be a duration.
    #[expect(clippy::cast_precision_loss, reason = "a day has few seconds")]
    let number =
        text.parse::<f64>().ok().filter(|number| (low as f64..=high as f64).contains(number));
    number
        .and_then(|number| Duration::try_from_secs_f64(number).ok())
        .ok_or_else(|| format!("seconds from {low} to {high}"))
}

/// Bytes, plain or in KiB, MiB or GiB.
pub(super) fn bytes(name: &str, text: &str) -> Result<u64, String> {
    let Bound { low, high, .. } = bound(name);
    let expected = || format!("bytes from {} to {}, such as 64KiB", in_units(low), in_units(high));
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "KiB" => KIB,
        "MiB" => KIB * KIB,
        "GiB" => GIB,
        _ => return Err(expected()),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.filter(|number| (low..=high).contains(number)).ok_or_else(expected)
}

/// Bytes in the largest unit that divides them.
#[must_use]
pub fn in_units(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (KIB * KIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}B")
}

/// Yes or no.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// One of a few words.
pub(super) fn choice<T: Copy>(words: &[(&str, T)], text: &str) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => {
                format!("{} or {last}", others.join(", "))
            }
            Some(_) | None => names.join(""),
        }
    })
}

/// Where to listen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bind {
    /// A host name or address, and a port; port 0 takes a free one.
    Inet {
        /// Without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A path.
    Unix(PathBuf),
    /// A listening socket that the parent process opened.
    Descriptor(i32),
}

/// `HOST:PORT`, `[IPV6]:PORT`, `unix:PATH` or `fd://N`.
pub(super) fn bind(text: &str) -> Result<Bind, String> {
    const EXPECTED: &str = "HOST:PORT, [IPV6]:PORT, unix:PATH or fd://N";
    if let Some(path) = text.strip_prefix("unix:") {
        // A socket's path has 107 usable bytes in sockaddr_un.
        return match path.len() {
            1..=107 => Ok(Bind::Unix(PathBuf::from(path))),
            _ => Err(format!("{EXPECTED}, with a path of 1 to 107 bytes")),
        };
    }
    if let Some(number) = text.strip_prefix("fd://") {
        let number = number.parse::<i32>().ok().filter(|number| (0..=65_535).contains(number));
        return number.map(Bind::Descriptor).ok_or_else(|| EXPECTED.to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or(EXPECTED)?;
    let port = port.parse::<u16>().map_err(|_| format!("{EXPECTED}, with a port up to 65535"))?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bracketed {
        Some(host) => host,
        None if host.contains([':', '[', ']']) => return Err(EXPECTED.to_owned()),
        None => host,
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(EXPECTED.to_owned());
    }
    Ok(Bind::Inet { host: host.to_owned(), port })
}

/// What to import.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AppSpec {
    /// The module, dotted.
    pub module: String,
    /// The attribute, dotted; `None`: discovered.
    pub attribute: Option<String>,
    /// The attribute is called and gives the application.
    pub factory: bool,
}

impl std::fmt::Display for AppSpec {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.module)?;
        if let Some(attribute) = &self.attribute {
            write!(formatter, ":{attribute}")?;
        }
        formatter.write_str(if self.factory { "()" } else { "" })
    }
}

/// `MODULE[:ATTR[()]]`.
pub(super) fn app(text: &str) -> Result<AppSpec, String> {
    const EXPECTED: &str = "MODULE, MODULE:ATTR or MODULE:FACTORY()";
    let (module, attribute) = match text.split_once(':') {
        Some((module, attribute)) => (module, Some(attribute)),
        None => (text, None),
    };
    if module.contains('/') || (attribute.is_none() && module.ends_with(".py")) {
        return Err(format!("{EXPECTED}: a module's name as `import` takes it, not a file"));
    }
    let (attribute, factory) = match attribute.map(|name| (name, name.strip_suffix("()"))) {
        Some((_, Some(called))) => (Some(called), true),
        Some((name, None)) => (Some(name), false),
        None => (None, false),
    };
    let dotted = |name: &str| name.split('.').all(is_identifier);
    if !dotted(module) || !attribute.is_none_or(dotted) {
        return Err(EXPECTED.to_owned());
    }
    Ok(AppSpec { module: module.to_owned(), attribute: attribute.map(str::to_owned), factory })
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// A function that workers call, `MODULE:FUNCTION`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HookSpec {
    /// The module, dotted.
    pub module: String,
    /// The attribute, dotted.
    pub function: String,
}

impl std::fmt::Display for HookSpec {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.module, self.function)
    }
}

/// `MODULE:FUNCTION`.
pub(super) fn hook(text: &str) -> Result<HookSpec, String> {
    match app(text) {
        Ok(AppSpec { module, attribute: Some(function), factory: false }) => {
            Ok(HookSpec { module, function })
        }
        Ok(_) | Err(_) => Err("MODULE:FUNCTION".to_owned()),
    }
}

/// Where the server's own pages are: no descriptor of somebody else's.
pub(super) fn admin(text: &str) -> Result<Bind, String> {
    const EXPECTED: &str = "HOST:PORT, [IPV6]:PORT or unix:PATH";
    match bind(text) {
        Ok(Bind::Descriptor(_)) | Err(_) => Err(EXPECTED.to_owned()),
        Ok(bind @ (Bind::Inet { .. } | Bind::Unix(_))) => Ok(bind),
    }
}

/// A path as it stands in a request line, without a query.
pub(super) fn request_path(text: &str) -> Result<String, String> {
    let sound = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if sound && !text.contains(['?', '#']) {
        return Ok(text.to_owned());
    }
    Err("a path such as /healthz: printable ASCII, percent-encoded, without ? and #".to_owned())
}

/// An octal file mode.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text.trim_start_matches("0o"), 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "an octal mode from 000 to 777".to_owned())
}

/// Empty, or a path that starts with a slash and does not end with one.
pub(super) fn root_path(text: &str) -> Result<String, String> {
    let sound = text.is_empty() || (text.starts_with('/') && !text.ends_with('/'));
    if sound && !text.contains(['?', '#']) {
        return Ok(text.to_owned());
    }
    Err("empty, or a path such as /shop, without a slash at its end".to_owned())
}

/// `off`, or printable ASCII.
pub(super) fn server_header(text: &str) -> Result<Option<Vec<u8>>, String> {
    match text {
        "off" => Ok(None),
        _ if (1..=128).contains(&text.len())
            && text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) =>
        {
            Ok(Some(text.as_bytes().to_vec()))
        }
        _ => Err("off, or 1 to 128 printable ASCII characters".to_owned()),
    }
}

/// A name that fits `comm` of a process.
pub(super) fn process_name(text: &str) -> Result<String, String> {
    if (1..=15).contains(&text.len()) && !text.contains('\0') {
        return Ok(text.to_owned());
    }
    Err("a name of 1 to 15 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_ends() {
        assert_eq!(bytes("max-body", "0"), Ok(0));
        assert_eq!(bytes("max-body", "64KiB"), Ok(65_536));
        assert_eq!(bytes("max-body", "2 GiB"), Ok(2_147_483_648));
        assert_eq!(bytes("max-request-line", "64KiB"), Ok(65_536));
        for wrong in ["", "KiB", "1KB", "-1", "1.5MiB", "1GiBB", "99999999999999999999", "é"] {
            assert!(bytes("max-body", wrong).is_err(), "{wrong}");
        }
        let expected = "bytes from 256B to 64KiB, such as 64KiB";
        assert_eq!(bytes("max-request-line", "65537"), Err(expected.to_owned()));
        assert_eq!((in_units(1536), in_units(3 * GIB)), ("1536B".to_owned(), "3GiB".to_owned()));
    }

    #[test]
    fn seconds_may_have_decimals_and_must_be_in_range() {
        assert_eq!(seconds("keep-alive", "0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("keep-alive", "0"), Ok(Duration::ZERO));
        for wrong in ["nan", "inf", "-1", "86401", "", "1s"] {
            assert!(seconds("keep-alive", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_in_all_four_forms() {
        let inet = |host: &str, port| Ok(Bind::Inet { host: host.to_owned(), port });
        assert_eq!(bind("127.0.0.1:80"), inet("127.0.0.1", 80));
        assert_eq!(bind("[::1]:0"), inet("::1", 0));
        assert_eq!(bind("localhost:65535"), inet("localhost", 65_535));
        assert_eq!(bind("unix:run/web.sock"), Ok(Bind::Unix(PathBuf::from("run/web.sock"))));
        assert_eq!(bind("fd://3"), Ok(Bind::Descriptor(3)));
        for wrong in [
            "",
            ":80",
            "host",
            "host:",
            "host:65536",
            "::1:80",
            "[::1:80",
            "unix:",
            "fd://x",
            "fd://-1",
            "a b:1",
        ] {
            assert!(bind(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn applications_are_named_as_python_names_them() {
        let spec = |module: &str, attribute: Option<&str>, factory| {
            Ok(AppSpec {
                module: module.to_owned(),
                attribute: attribute.map(str::to_owned),
                factory,
            })
        };
        assert_eq!(app("site"), spec("site", None, false));
        assert_eq!(app("a.b:c.d"), spec("a.b", Some("c.d"), false));
        assert_eq!(app("größe:make()"), spec("größe", Some("make"), true));
        for text in ["site", "a.b:c.d", "größe:make()"] {
            assert_eq!(app(text).unwrap().to_string(), text);
        }
        for wrong in ["", ":app", "a:", "a..b", "a:b()()", "1a", "a/b", "a.py", "a:b c", "a:()"] {
            assert!(app(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_rest() {
        assert_eq!((mode("660"), mode("0o600")), (Ok(0o660), Ok(0o600)));
        assert!(mode("888").is_err() && mode("1777").is_err());
        assert!(root_path("/a/").is_err() && root_path("a").is_err() && root_path("/a").is_ok());
        assert!(server_header("a\r\nb").is_err());
        assert!(request_path("/healthz").is_ok() && request_path("/a?b").is_err());
        assert!(request_path("a").is_err() && request_path("/a b").is_err());
        assert!(admin("fd://3").is_err() && admin("unix:a").is_ok() && admin("[::1]:0").is_ok());
        assert!(hook("a").is_err() && hook("a:b()").is_err() && hook("a.b:c").is_ok());
        assert_eq!(server_header("off"), Ok(None));
        let io = [("auto", 0), ("uring", 1), ("epoll", 2)];
        assert_eq!(choice(&io, "kqueue"), Err("auto, uring or epoll".to_owned()));
    }
}
