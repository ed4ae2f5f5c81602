//! `docs/reference.md`: every option, from the command itself.

use std::fmt::Write as _;

use super::options::command;
use super::value::{BOUNDS, in_units};

const HEAD: &str = "\
# Options

Made from the command by `cargo run -p hoopsnake-server --example reference > docs/reference.md`; a
test fails when it differs.

`hoopsnake [serve] [OPTIONS] APP` serves, `hoopsnake doctor [OPTIONS] [APP]` says what would happen
and what it did not check. Every option with a value is also a variable, `HOOPSNAKE_` and its name in
upper case with `_` for `-`, and a key in `./hoopsnake.toml`, or under `[tool.hoopsnake]` in
`./pyproject.toml`; APP is `HOOPSNAKE_APP` and `app`. A flag wins over a variable, a variable over a
file. A yes or no may be given as a bare flag.

Exit codes: 0 stopped, 1 start-up failed or a stop had to cut something, 2 usage, 78 this machine
cannot run the configuration.
";

/// The page.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let mut heading = String::new();
    for argument in command().get_arguments() {
        let Some(group) = argument.get_help_heading() else { continue };
        if group != heading {
            group.clone_into(&mut heading);
            // Writing to a String cannot fail.
            let _ = write!(page, "\n## {group}\n\n| option | default | |\n|---|---|---|\n");
        }
        let name = argument.get_long().unwrap_or("APP");
        let dashes = if argument.is_positional() { "" } else { "--" };
        let mut option = format!("`{dashes}{name}");
        if let Some(value) = value_name(argument) {
            let _ = write!(option, " {value}");
        }
        option.push('`');
        if let Some(letter) = argument.get_short() {
            let _ = write!(option, ", `-{letter}`");
        }
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match defaults.join(",") {
            text if text.is_empty() || !argument.get_action().takes_values() => String::new(),
            text => format!("`{text}`"),
        };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            page,
            "| {option} | {default} | {}{} |",
            help.replace('|', "\\|"),
            range(name).unwrap_or_default()
        );
    }
    page
}

fn value_name(argument: &clap::Arg) -> Option<&str> {
    let takes_one = argument.get_action().takes_values() && !argument.is_positional();
    let name = argument.get_value_names()?.first()?;
    (takes_one && name != "BOOL").then_some(name)
}

fn range(name: &str) -> Option<String> {
    let bound = BOUNDS.iter().find(|bound| bound.name == name)?;
    Some(if bound.unit == "bytes" {
        format!(". {} to {}", in_units(bound.low), in_units(bound.high))
    } else {
        format!(". {} to {} {}", bound.low, bound.high, bound.unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_page_is_what_the_command_says() {
        assert!(
            page("docs/reference.md") == reference(),
            "docs/reference.md differs from the options: cargo run -p hoopsnake-server --example \
             reference > docs/reference.md"
        );
    }

    #[test]
    fn the_page_has_every_option() {
        let page = reference();
        for argument in command().get_arguments() {
            if let Some(long) = argument.get_long().filter(|_| !argument.is_positional()) {
                assert!(page.contains(&format!("| `--{long}")), "{long}");
            }
        }
        assert!(page.contains("| `--grace SECONDS` | `25` | Seconds that a stop"), "{page}");
        assert!(page.contains(". 0 to 86400 seconds |"), "{page}");
    }
}
