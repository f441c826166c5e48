//! A temporary folder that is removed on `Drop`, and by the next process if its owner was killed.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};

const PREFIX: &str = "antiphon-";
const LOCK: &str = ".owner";

/// A folder `antiphon-<label>-<pid>-<n>` below the system's temporary folder.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
    _owner: File,
}

impl ScratchDir {
    /// Creates a folder, and removes those that killed processes left behind.
    pub fn new(label: &str) -> Result<ScratchDir> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| sweep(&env::temp_dir()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("{PREFIX}{label}-{}-{number}", process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let owner = File::create(path.join(LOCK))?;
        owner.lock()?;
        Ok(ScratchDir { path, _owner: owner })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // A failed removal is left to the next sweep.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes folders whose owner's lock is free. The lock decides, not a process id: ids repeat, and
/// other containers that share the folder have their own. Young folders are skipped, because their
/// owner may be about to lock.
fn sweep(dir: &Path) {
    let old_enough = Duration::from_secs(60);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        if !is_ours || age.is_none_or(|age| age < old_enough) {
            continue;
        }
        if File::open(entry.path().join(LOCK)).is_ok_and(|owner| owner.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_lives_as_long_as_its_value() {
        let dir = ScratchDir::new("scratch").unwrap();
        let path = dir.path().to_path_buf();
        fs::write(path.join("file"), "x").unwrap();
        assert!(path.is_dir());
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn the_sweep_spares_young_and_owned_folders() {
        let place = ScratchDir::new("place").unwrap();
        let leftover = place.path().join("antiphon-test-1-1");
        fs::create_dir(&leftover).unwrap();
        File::create(leftover.join(LOCK)).unwrap();
        sweep(place.path());
        assert!(leftover.exists(), "too young");
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(600);
        File::open(&leftover).unwrap().set_modified(long_ago).unwrap();
        let owner = File::open(leftover.join(LOCK)).unwrap();
        owner.lock().unwrap();
        sweep(place.path());
        assert!(leftover.exists(), "owned");
        drop(owner);
        sweep(place.path());
        assert!(!leftover.exists());
    }
}
