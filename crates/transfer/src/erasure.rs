//! Looks up whether a thread was erased.

use model::ThreadId;
use store::{Store, StoreError};

/// Why a thread cannot be used because it or its tenant was erased; `None` if it can.
///
/// # Errors
/// The store cannot be read.
pub async fn erasure(store: &Store, thread: &ThreadId) -> Result<Option<String>, StoreError> {
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
