//! Whether a cursor that a client brings can be one of its thread.

use std::time::Duration;

use axum::http::StatusCode;
use model::{Bucket, Position, ThreadId};
use protocols::Cursor;
use store::{Placed, Store, StoreError};

use crate::error::Problem;
use crate::streaming::registry::Hub;

/// How long the store may take to say where the thread stands. Streams go on without it.
const PATIENCE: Duration = Duration::from_secs(2);
/// No clock of ours is further ahead.
const SKEW_MS: i64 = 60_000;

/// Refuses a cursor of another thread, and one that is ahead of all that exists.
///
/// A client has a position only after its commit, and the thread's head is read after the client has named it: so what was
/// just committed is never taken for the future, whatever the clocks of the fleet say. While the store does not answer, only what
/// the clock forbids is refused.
pub(crate) async fn check(hub: &Hub, thread: &ThreadId, cursor: &Cursor) -> Result<(), Problem> {
    let base = cursor.base();
    // Where a thread without messages stands.
    if base.get() == 0 {
        return Ok(());
    }
    match tokio::time::timeout(PATIENCE, find(hub, thread, base)).await {
        Ok(Ok(found)) => found,
        unanswered => {
            if let Ok(Err(error)) = unanswered {
                tracing::debug!(%thread, %error, "a cursor could not be checked");
            }
            if is_in_the_future(hub, base) { Err(ahead()) } else { Ok(()) }
        }
    }
}

fn is_in_the_future(hub: &Hub, base: Position) -> bool {
    base.timestamp().since_ms(hub.context().now()) > SKEW_MS
}

pub(crate) fn unknown() -> Problem {
    Problem::not_found("unknown_cursor", "the cursor is not one of this thread")
}

pub(crate) fn ahead() -> Problem {
    let detail =
        "the cursor is ahead of all that the thread has; read its history, and follow it without a cursor";
    Problem::new(StatusCode::CONFLICT, "cursor_ahead", detail)
}

/// Whether it is neither of another thread nor ahead.
async fn find(hub: &Hub, thread: &ThreadId, base: Position) -> Result<Result<(), Problem>, StoreError> {
    let store = hub.store();
    Ok(match store.placed(thread, base).await? {
        Placed::Here => Ok(()),
        _ if is_in_the_future(hub, base) => Err(ahead()),
        // Messages that were brought from another system may bear positions of no bucket; here they would have been found.
        _ if base.bucket() != Bucket::of(thread) => Err(unknown()),
        Placed::Ahead => Err(ahead()),
        Placed::Nowhere if forgets(store, thread).await? => Ok(()),
        Placed::Nowhere => Err(unknown()),
    })
}

/// Whether messages of the thread are deleted in time, so that a client may know more than there is.
async fn forgets(store: &Store, thread: &ThreadId) -> Result<bool, StoreError> {
    let named = store.thread(thread).await?.and_then(|row| row.named.agent);
    let standing = store.agent_standing(&named.unwrap_or_else(|| thread.agent())).await?;
    Ok(standing.settings.contains_key("retention"))
}
