//! Checks a client's cursor against its thread.

use std::time::Duration;

use http_server::error::{ErrorCode, Problem};
use model::{Position, ThreadId, Timestamp};
use protocols::Cursor;
use store::{PositionLookup, Store, StoreError};

use crate::backend::Backend;
use axum::http::HeaderMap;

/// Maximum time to look up a cursor's position in the store. After that, the stream begins without
/// the check.
const POSITION_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest expected clock skew in the fleet.
const SKEW_MS: i64 = 60_000;

/// Refuses a cursor of another thread, and one that is ahead of everything that exists.
///
/// A client learns a position only after its commit, and the thread's head is read after the client
/// has named it. A recent commit is therefore never taken for the future, whatever the clocks of
/// the fleet show. While the store does not answer, only a cursor that the clock forbids is
/// refused.
pub(crate) async fn validate_cursor(
    backend: &Backend,
    thread: &ThreadId,
    cursor: &Cursor,
) -> Result<(), Problem> {
    let base = cursor.base();
    // The position of a thread without messages.
    if base.get() == 0 {
        return Ok(());
    }
    match tokio::time::timeout(POSITION_LOOKUP_TIMEOUT, check_position(backend, thread, base)).await {
        Ok(Ok(found)) => found,
        unanswered => {
            if let Ok(Err(error)) = unanswered {
                tracing::debug!(%thread, %error, "a cursor could not be checked");
            }
            if is_in_the_future(base) { Err(ahead()) } else { Ok(()) }
        }
    }
}

/// Positions come from the database's clock, so they are compared with the system's clock.
fn is_in_the_future(base: Position) -> bool {
    base.timestamp().since_ms(Timestamp(runtime::system_time_ms())) > SKEW_MS
}

pub(crate) fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownCursor)
}

pub(crate) fn ahead() -> Problem {
    let detail =
        "the cursor is ahead of all that the thread has; read its history, and follow it without a cursor";
    Problem::new(ErrorCode::CursorAhead, detail)
}

/// Checks that the position is of this thread and is not ahead of everything that exists.
async fn check_position(
    backend: &Backend,
    thread: &ThreadId,
    base: Position,
) -> Result<Result<(), Problem>, StoreError> {
    let store = backend.store();
    Ok(match store.find_position(thread, base).await? {
        PositionLookup::Found => Ok(()),
        _ if is_in_the_future(base) => Err(ahead()),
        // The position of an imported message may belong to no bucket, but the lookup would have
        // found that message.
        _ if base.bucket() != thread.bucket() => Err(unknown()),
        PositionLookup::Ahead => Err(ahead()),
        PositionLookup::Missing if forgets(store, thread).await? => Ok(()),
        PositionLookup::Missing => Err(unknown()),
    })
}

/// Whether the thread's agent deletes old messages, so that a client may know a message that no
/// longer exists.
async fn forgets(store: &Store, thread: &ThreadId) -> Result<bool, StoreError> {
    let named = store.thread(thread).await?.and_then(|row| row.named.agent);
    let admission = store.agent_admission(&named.unwrap_or_else(|| thread.agent())).await?;
    Ok(admission.settings.contains_key("retention"))
}

/// Reads the header, which takes precedence over the query parameter: a browser sends the header by
/// itself when it reconnects to the same address.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<Cursor>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().map_err(|_| bad_cursor("Last-Event-ID is not ASCII text".to_owned()))?;
    // The standard treats an empty Last-Event-ID as none.
    Some(text).filter(|text| !text.is_empty()).map(parsed).transpose()
}

pub(crate) fn parsed(text: &str) -> Result<Cursor, Problem> {
    Cursor::parse(text).map_err(|error| bad_cursor(error.to_string()))
}

fn bad_cursor(detail: String) -> Problem {
    Problem::new(ErrorCode::InvalidCursor, detail)
}
