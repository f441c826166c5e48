//! Why an erasure did not end.

use bus::BusError;
use store::StoreError;

/// Data that is erased already stays erased; the erasure can be run again.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bus(#[from] BusError),
    /// No partition exists yet.
    #[error("the database is not laid out: run `antiphon migrate` first")]
    NotMigrated,
}
