//! Looking at threads and copying them.

use gateway::views::{self, ThreadView};
use model::{Position, ThreadId};
use serde_json::json;
use store::Store;

use super::options::{Fork, ShowThread};
use super::{output, stored};
use crate::roles::Stop;

pub(super) async fn show(store: &Store, options: &ShowThread) -> Result<(), Stop> {
    let json = output::json(&ThreadView::of_fleet(&stored(store, &options.thread).await?));
    output::print(options.database.format, &json, || output::pairs(&json))
}

pub(super) async fn fork(store: &Store, options: &Fork) -> Result<(), Stop> {
    let (thread, new) = (&options.thread, &options.new);
    stored(store, thread).await?;
    not_erased(store, new).await?;
    if let Some(at) = options.at
        && store.batches(thread, &[at]).await?.is_empty()
    {
        return Err(Stop::Failed(format!("there is no batch {at} in thread {thread}")));
    }
    let copied = store.fork(thread, new, options.at.unwrap_or(Position::MAX)).await?;
    let Some(messages) = copied else {
        return Err(Stop::Failed(format!("there is a thread {new} already")));
    };
    let json = json!({ "thread_id": new.as_str(), "forked_from": thread.as_str(), "at": options.at, "message_count": messages });
    output::print(options.database.format, &json, || output::pairs(&json))
}

/// Fails for a thread that was erased and not named again since.
pub(super) async fn not_erased(store: &Store, thread: &ThreadId) -> Result<(), Stop> {
    let Some(erased) = store.erased(thread).await? else { return Ok(()) };
    match erased.is_named {
        true => Ok(()),
        false => {
            let at = views::rfc3339(erased.at).unwrap_or_default();
            Err(Stop::Failed(format!("thread {thread} was erased at {at} by {}", erased.actor)))
        }
    }
}
