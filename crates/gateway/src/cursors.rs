//! Whether a cursor that a client brings can be one of its thread.

use std::time::Duration;

use adapters::Cursor;
use axum::http::StatusCode;
use model::{Bucket, Position, ThreadId};
use store::{Range, StoreError};

use crate::hub::Hub;
use crate::problem::Problem;

/// How long the store may take to say where the thread stands. Streams go on without it.
const PATIENCE: Duration = Duration::from_secs(2);
/// No clock of ours is further ahead.
const SKEW_MS: i64 = 60_000;

/// Refuses a cursor of another thread, and one that is ahead of all that exists.
///
/// A client has a position only after its commit, and the thread's head is read after the client has named it: so what was
/// just committed is never taken for the future. While the store does not answer, only what the clock forbids is refused.
pub(crate) async fn check(hub: &Hub, thread: &ThreadId, cursor: &Cursor) -> Result<(), Problem> {
    let base = cursor.base();
    // Where a thread without messages stands.
    if base.get() == 0 {
        return Ok(());
    }
    if base.timestamp().since_ms(hub.context().now()) > SKEW_MS {
        return Err(ahead());
    }
    match tokio::time::timeout(PATIENCE, placed(hub, thread, base)).await {
        Ok(Ok(Placed::Here)) => Ok(()),
        Ok(Ok(Placed::Elsewhere)) => {
            let detail = "the cursor is not one of this thread";
            Err(Problem::not_found("unknown_cursor", detail))
        }
        Ok(Ok(Placed::Ahead)) => Err(ahead()),
        Ok(Err(error)) => {
            tracing::debug!(%thread, %error, "a cursor could not be checked");
            Ok(())
        }
        Err(_) => Ok(()),
    }
}

fn ahead() -> Problem {
    let detail =
        "the cursor is ahead of all that the thread has; read its history, and follow it without a cursor";
    Problem::new(StatusCode::CONFLICT, "cursor_ahead", detail)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placed {
    Here,
    Elsewhere,
    Ahead,
}

async fn placed(hub: &Hub, thread: &ThreadId, base: Position) -> Result<Placed, StoreError> {
    // Messages that were brought from another system may bear positions of no bucket: those are looked for.
    if base.bucket() != Bucket::of(thread) && !has(hub, thread, base).await? {
        return Ok(Placed::Elsewhere);
    }
    let head = hub.store().thread(thread).await?.and_then(|row| row.head);
    Ok(if head.is_some_and(|head| base <= head) { Placed::Here } else { Placed::Ahead })
}

async fn has(hub: &Hub, thread: &ThreadId, position: Position) -> Result<bool, StoreError> {
    let after = Some(Position::from_stored(position.get() - 1));
    let range = Range { after, before: None, with_synthetic: true };
    let found = hub.store().history(thread, range, 1).await?.unwrap_or_default();
    Ok(found.first().is_some_and(|message| message.position == position))
}
