//! Errors that stop a worker.

/// Why a worker stopped without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The store fails for a reason that retries do not cure.
    #[error("Postgres: {0}")]
    Store(#[from] store::StoreError),
    /// An essential part of the worker ended; contains its name.
    #[error("{0} ended unexpectedly; see the log")]
    Ended(&'static str),
}
