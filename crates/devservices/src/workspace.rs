//! Paths: the checkout, cargo's target directory, the cache of fetched tools.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The root of the checkout that this crate was compiled in.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// Cargo's target directory: `CARGO_TARGET_DIR` (relative to the checkout), or else `target`.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The binary that cargo builds for `name`, in the `debug` or `release` folder.
pub fn built_binary(name: &str, profile_dir: &str) -> PathBuf {
    target_dir().join(profile_dir).join(name)
}

/// The cache of fetched tools: `ANTIPHON_TOOLS_CACHE`, or else `target/dev-tools`.
///
/// If we are root, Postgres runs as another user, which cannot enter a checkout inside a 0700 home.
/// Then the cache is a folder that only root can write and all users can read.
pub fn tools_cache() -> PathBuf {
    if let Some(dir) = env::var_os("ANTIPHON_TOOLS_CACHE").filter(|dir| !dir.is_empty()) {
        return PathBuf::from(dir);
    }
    let target = target_dir();
    if is_root() && !is_reachable_by_others(&target) {
        return PathBuf::from("/var/cache/antiphon-dev-tools");
    }
    target.join("dev-tools")
}

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    #[allow(unsafe_code, reason = "std has no geteuid")]
    unsafe {
        libc::geteuid() == 0
    }
}

/// True if any user may enter every existing folder on the way to `path`.
pub fn is_reachable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.ancestors()
        .filter(|dir| dir.is_dir())
        .all(|dir| dir.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0))
}
