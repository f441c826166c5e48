//! The Postgres of benches whose tables fit into memory.

use std::path::PathBuf;

use devservices::services::PostgresOptions;

/// Options of a server whose commits reach the disk, and that makes no checkpoint by itself while a
/// bench measures. `bin`: the folder with its programs.
pub(crate) fn without_checkpoints(bin: PathBuf) -> PostgresOptions {
    let mut options = PostgresOptions::new(bin);
    options.fsync = true;
    let settings = [("shared_buffers", "1GB"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "1h")];
    options.settings.extend(settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
    options
}
