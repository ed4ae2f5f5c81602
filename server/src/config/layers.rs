//! Joins what was typed: flag over environment over file over default, and remembers which it was.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

use super::options::{RawConfig, command};
use crate::error::Fault;

/// Where a value came from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// The command line: the flag, or `APP`.
    Flag(String),
    /// The environment: the variable.
    Variable(String),
    /// A file: the key and the file.
    File(String),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(place) | Self::Variable(place) | Self::File(place) => {
                formatter.write_str(place)
            }
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// What the command is asked to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// Serve the application.
    Serve,
    /// Say what would happen.
    Doctor,
    /// Print every bound.
    Limits,
}

/// One option as it was typed.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The flag's name without dashes; `app` for the positional.
    pub name: String,
    /// As typed; several joined by commas; `None`: not given and no default.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: Origin,
}

/// All options as typed.
#[derive(Clone, Debug)]
pub struct Typed {
    /// What to do.
    pub verb: Verb,
    /// The values.
    pub raw: RawConfig,
    /// The same with their origins, in the order of the help.
    pub settings: Vec<Setting>,
}

impl Typed {
    /// Where the option came from. An option that does not exist has no origin: `Default`.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        self.settings
            .iter()
            .find(|setting| setting.name == name)
            .map_or(Origin::Default, |setting| setting.origin.clone())
    }
}

/// What the arguments ask for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Print this and exit 0 (`--help`, `--version`).
    Print(String),
    /// Go on with these.
    Options(Box<Typed>),
}

/// Parses the arguments (without the program's name) over the environment and the files in `directory`.
///
/// # Errors
/// Usage: an unknown flag or key, a file that cannot be read.
pub fn parse(arguments: &[OsString], directory: &Path) -> Result<Request, Fault> {
    let (verb, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "serve" => (Verb::Serve, rest),
        Some((first, rest)) if first == "doctor" => (Verb::Doctor, rest),
        Some(_) | None => (Verb::Serve, arguments),
    };
    let file = FileLayer::read(directory)?;
    let mut command = command();
    for (key, values) in &file.keys {
        command = command.mut_arg(identifier(key), |argument| {
            argument.default_values(values.iter().cloned().map(clap::builder::OsStr::from))
        });
    }
    let program = OsString::from("hoopsnake");
    let matches =
        match command.clone().try_get_matches_from(std::iter::once(&program).chain(arguments)) {
            Ok(matches) => matches,
            Err(error)
                if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
            {
                return Ok(Request::Print(error.render().to_string()));
            }
            Err(error) => return Err(Fault::usage(plain(&error))),
        };
    let raw = RawConfig::from_arg_matches(&matches).map_err(|error| Fault::usage(plain(&error)))?;
    let verb = if raw.limits { Verb::Limits } else { verb };
    let settings = settings(&command, &matches, &file);
    Ok(Request::Options(Box::new(Typed { verb, raw, settings })))
}

/// clap's message without its "error: ", which the printer of faults adds.
fn plain(error: &clap::Error) -> String {
    let text = error.render().to_string();
    text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
}

fn settings(command: &clap::Command, matches: &clap::ArgMatches, file: &FileLayer) -> Vec<Setting> {
    let mut settings = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        if !argument.get_action().takes_values() {
            continue;
        }
        let name = id.replace('_', "-");
        let values: Vec<String> = matches
            .get_many::<String>(id)
            .map(|values| values.cloned().collect())
            .unwrap_or_default();
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) if argument.is_positional() => {
                Origin::Flag("the command line".to_owned())
            }
            Some(ValueSource::CommandLine) => Origin::Flag(format!("--{name}")),
            Some(ValueSource::EnvVariable) => Origin::Variable(
                argument
                    .get_env()
                    .map(|variable| variable.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            ),
            Some(_) | None if file.keys.contains_key(&name) => {
                Origin::File(format!("{name} in {}", file.path))
            }
            Some(_) | None => Origin::Default,
        };
        let value = (!values.is_empty()).then(|| values.join(","));
        settings.push(Setting { name, value, origin });
    }
    settings
}

fn identifier(key: &str) -> String {
    key.replace('-', "_")
}

/// The keys of `hoopsnake.toml`, or of `[tool.hoopsnake]` in `pyproject.toml` where the former does
/// not exist.
#[derive(Debug, Default)]
struct FileLayer {
    path: String,
    keys: BTreeMap<String, Vec<String>>,
}

impl FileLayer {
    fn read(directory: &Path) -> Result<Self, Fault> {
        if let Some(document) = document(directory, "hoopsnake.toml")? {
            return Self::from_table("hoopsnake.toml".to_owned(), &document);
        }
        let Some(document) = document(directory, "pyproject.toml")? else {
            return Ok(Self::default());
        };
        let table = document.get("tool").and_then(|tool| tool.get("hoopsnake"));
        match table {
            None => Ok(Self::default()),
            Some(toml::Value::Table(table)) => {
                Self::from_table("[tool.hoopsnake] of pyproject.toml".to_owned(), table)
            }
            Some(_) => Err(Fault::usage("pyproject.toml: tool.hoopsnake is not a table")),
        }
    }

    fn from_table(path: String, table: &toml::Table) -> Result<Self, Fault> {
        let known: Vec<String> = command()
            .get_arguments()
            .filter(|argument| argument.get_action().takes_values())
            .map(|argument| argument.get_id().as_str().replace('_', "-"))
            .collect();
        let mut keys = BTreeMap::new();
        for (key, value) in table {
            let name = key.replace('_', "-");
            if !known.contains(&name) {
                return Err(Fault::usage(format!(
                    "{path}: there is no option {key:?}; the keys are the flags' names, see --help"
                )));
            }
            let values = match value {
                toml::Value::Array(items) => items.iter().map(scalar).collect(),
                toml::Value::String(_)
                | toml::Value::Integer(_)
                | toml::Value::Float(_)
                | toml::Value::Boolean(_)
                | toml::Value::Datetime(_)
                | toml::Value::Table(_) => scalar(value).map(|text| vec![text]),
            };
            let Some(values) = values else {
                return Err(Fault::usage(format!(
                    "{path}: {key} is {value}; expected a string, a number, a boolean or a list of them"
                )));
            };
            keys.insert(name, values);
        }
        Ok(Self { path, keys })
    }
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

fn document(directory: &Path, name: &str) -> Result<Option<toml::Table>, Fault> {
    let text = match super::read_text(&directory.join(name)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::usage(format!("{name} cannot be read: {error}"))),
    };
    text.parse::<toml::Table>().map(Some).map_err(|error| {
        Fault::usage(format!("{name} is not TOML: {}", error.to_string().trim_end()))
    })
}
