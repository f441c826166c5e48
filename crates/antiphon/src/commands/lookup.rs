//! Looks up the threads that commands name.

use model::ThreadId;
use store::{Store, ThreadRow};
use transfer::erasure;

use crate::exit::ExitError;

/// The row of a thread; fails when there is none.
pub(super) async fn stored(store: &Store, thread: &ThreadId) -> Result<ThreadRow, ExitError> {
    store.thread(thread).await?.ok_or_else(|| unknown(thread))
}

pub(super) fn unknown(thread: &ThreadId) -> ExitError {
    ExitError::Failed(format!("there is no thread {thread}"))
}

/// Fails for a thread that was erased and whose name has not been used again since the erasure.
pub(super) async fn not_erased(store: &Store, thread: &ThreadId) -> Result<(), ExitError> {
    erasure(store, thread).await?.map_or(Ok(()), |erasure| Err(ExitError::Failed(erasure)))
}
