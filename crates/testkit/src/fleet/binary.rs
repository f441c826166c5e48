//! Finds the program under test.

use std::{env, path::PathBuf};

use anyhow::{Result, bail};
use devservices::workspace;

/// The binary under test: `ANTIPHON_BIN`, or else the one that cargo built.
pub fn binary() -> Result<PathBuf> {
    let binary = match env::var_os("ANTIPHON_BIN").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => workspace::built_binary("antiphon", "debug"),
    };
    if !binary.is_file() {
        bail!(
            "{} does not exist; build it with `cargo build -p antiphon`, or set ANTIPHON_BIN",
            binary.display()
        );
    }
    Ok(binary)
}
