//! Looks up the threads that commands name.

use gateway::views;
use model::ThreadId;
use store::{Store, ThreadRow};

use crate::exit::ExitError;

/// The row of a thread; fails when there is none.
pub(super) async fn stored(store: &Store, thread: &ThreadId) -> Result<ThreadRow, ExitError> {
    store.thread(thread).await?.ok_or_else(|| unknown(thread))
}

pub(super) fn unknown(thread: &ThreadId) -> ExitError {
    ExitError::Failed(format!("there is no thread {thread}"))
}

/// Fails for a thread that was erased and not named again since.
pub(super) async fn not_erased(store: &Store, thread: &ThreadId) -> Result<(), ExitError> {
    let Some(erased) = store.erased(thread).await? else { return Ok(()) };
    match erased.is_named {
        true => Ok(()),
        false => {
            let at = views::rfc3339(erased.at).unwrap_or_default();
            Err(ExitError::Failed(format!("thread {thread} was erased at {at} by {}", erased.actor)))
        }
    }
}
