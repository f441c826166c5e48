//! Node programs with packages from npm, installed below cargo's target folder and never beside
//! their sources.

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

const LOCK: &str = "package-lock.json";

/// Copies a folder's programs beside the folder of their packages, where node looks for them.
/// Installs the packages unless the same ones are there.
pub fn install(source: &Path, target: &Path) -> Result<()> {
    fs::create_dir_all(target)?;
    // Tests are processes that start concurrently.
    let held = File::create(target.join(".lock"))?;
    held.lock()?;
    let (packages, installed) = (target.join("node_modules"), target.join("installed.json"));
    let lock = fs::read(source.join(LOCK)).with_context(|| format!("reading {LOCK}"))?;
    for file in files(source)? {
        fs::copy(&file, target.join(file.file_name().unwrap_or_default()))?;
    }
    if fs::read(&installed).is_ok_and(|before| before == lock) {
        return Ok(());
    }
    // npm does not remove what an install that was killed has left.
    if packages.exists() {
        fs::remove_dir_all(&packages)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(target);
    let status = npm.status().context("starting npm")?;
    ensure!(status.success(), "npm ci in {}: {status}", target.display());
    Ok(fs::write(installed, lock)?)
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        files.extend(Some(entry?.path()).filter(|path| path.is_file()));
    }
    Ok(files)
}
