//! Python packages of a list with hashes, installed below cargo's target folder: no virtual environment, which may be missing, and nothing
//! of the user's own.

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Installs what `requirements` lists, each with its version and hash, into a folder of its own below `target`, unless the same is there. Returns
/// the folder, which is for `PYTHONPATH`.
pub fn install(requirements: &Path, target: &Path) -> Result<PathBuf> {
    let wanted = fs::read(requirements).with_context(|| format!("reading {}", requirements.display()))?;
    fs::create_dir_all(target)?;
    // Tests are processes that start side by side.
    let lock = File::create(target.join(".lock"))?;
    lock.lock()?;
    let (packages, installed) = (target.join("packages"), target.join("installed.txt"));
    if fs::read(&installed).is_ok_and(|before| before == wanted) {
        return Ok(packages);
    }
    if packages.exists() {
        fs::remove_dir_all(&packages)?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--require-hashes", "--only-binary=:all:", "--target"]).arg(&packages);
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    let status = pip.arg("--requirement").arg(requirements).status().context("starting python3")?;
    ensure!(status.success(), "pip install of {}: {status}", requirements.display());
    fs::write(installed, wanted)?;
    Ok(packages)
}
