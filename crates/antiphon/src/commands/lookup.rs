//! Looks up the threads that commands name.

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

/// Fails for a thread that was erased and whose name has not been used again since the erasure.
pub(super) async fn not_erased(store: &Store, thread: &ThreadId) -> Result<(), ExitError> {
    erasure(store, thread).await?.map_or(Ok(()), |erasure| Err(ExitError::Failed(erasure)))
}

/// Why a thread cannot be used because it or its tenant was erased; `None` if it can.
pub(super) async fn erasure(store: &Store, thread: &ThreadId) -> Result<Option<String>, ExitError> {
    if let Some(mark) = store.erased_tenant(thread.tenant().as_ref()).await? {
        let at = wire::rfc3339(mark.at).unwrap_or_default();
        let tenant = mark.tenant.as_ref().map_or("-", |tenant| tenant.as_str());
        return Ok(Some(format!(
            "thread {thread}: its tenant {tenant} was erased at {at} by {}",
            mark.actor
        )));
    }
    let erased = store.erased(thread).await?.filter(|erased| !erased.is_named);
    Ok(erased.map(|erased| {
        let at = wire::rfc3339(erased.at).unwrap_or_default();
        format!("thread {thread} was erased at {at} by {}", erased.actor)
    }))
}
