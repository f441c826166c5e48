//! Python packages from a list with hashes, installed below cargo's target folder. They need no
//! virtual environment, which may be missing, and touch nothing of the user's.

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Installs the packages that `requirements` lists with version and hash into a folder below
/// `target`, unless the same ones are there. Returns that folder, for `PYTHONPATH`.
pub fn install(requirements: &Path, target: &Path) -> Result<PathBuf> {
    let wanted = fs::read(requirements).with_context(|| format!("reading {}", requirements.display()))?;
    fs::create_dir_all(target)?;
    // Tests are processes that start concurrently.
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
