//! Lists the files of `migrations/` for `migrate.rs`. `sqlx::migrate!` would do the same, but its
//! macro crate makes Cargo compile sqlx and its dependencies a second time, for the build host.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

#[allow(clippy::disallowed_methods, reason = "where a build script writes to is in its environment")]
fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new("../../migrations");
    println!("cargo::rerun-if-changed={}", folder.display());
    // Sorted, so that builds of the same sources are identical.
    let entries = fs::read_dir(folder)?.map(|entry| entry?.path().canonicalize());
    let mut paths: Vec<_> = entries.collect::<Result<_, _>>()?;
    paths.sort();
    let mut list = String::from("[");
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".sql")) else {
            continue;
        };
        let (version, description) = name.split_once('_').ok_or_else(|| format!("{name} has no version"))?;
        let version: i64 = version.parse()?;
        write!(list, "({version}, {:?}, include_str!({path:?})),", description.replace('_', " "))?;
    }
    list.push(']');
    fs::write(Path::new(&std::env::var("OUT_DIR")?).join("migrations.rs"), list)?;
    Ok(())
}
