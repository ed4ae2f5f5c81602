//! Tells the module which interpreter it is built for, so that it can refuse any other at import.

use pyo3_build_config::BuildFlag;

fn main() {
    let config = pyo3_build_config::get();
    let version = config.version();
    let mut flags = String::new();
    if config.build_flags().0.contains(&BuildFlag::Py_GIL_DISABLED) {
        flags.push('t');
    }
    if config.build_flags().0.contains(&BuildFlag::Py_DEBUG) {
        flags.push('d');
    }
    println!("cargo::rustc-env=HOOPSNAKE_BUILT_FOR={}.{}{flags}", version.major, version.minor);
}
