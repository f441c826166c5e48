//! Folders that are copied and put back, with their owners.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Copies a folder to a place that does not exist, or is replaced.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("removing {}", to.display()))?;
    }
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).output().context("running cp")?;
    if !copied.status.success() {
        bail!("copying {}: {}", from.display(), String::from_utf8_lossy(&copied.stderr).trim());
    }
    Ok(())
}

/// Puts a copy in the place of what is there.
pub(super) fn replace(place: &Path, copy_of_it: &Path) -> Result<()> {
    copy(copy_of_it, place)
}
