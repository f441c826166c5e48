//! Copies folders, with owners and permissions.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Copies a folder and replaces what is at `to`.
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
