//! Prints `docs/reference.md`.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(hoopsnake_server::config::reference().as_bytes())
}
