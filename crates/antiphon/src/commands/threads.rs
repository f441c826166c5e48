//! Looking at threads and copying them.

use gateway::views::ThreadView;
use model::Position;
use serde_json::json;
use store::Store;

use super::command_id::new_command_id;
use super::lookup::{not_erased, stored};
use crate::exit::ExitError;
use crate::options::{Fork, ShowThread};
use crate::output;

pub(super) async fn show(store: &Store, options: &ShowThread) -> Result<(), ExitError> {
    let json = output::json(&ThreadView::of_fleet(&stored(store, &options.thread).await?));
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

pub(super) async fn fork(store: &Store, options: &Fork) -> Result<(), ExitError> {
    let (thread, new) = (&options.thread, &options.new);
    stored(store, thread).await?;
    not_erased(store, new).await?;
    if let Some(at) = options.at
        && store.batches(thread, &[at]).await?.is_empty()
    {
        return Err(ExitError::Failed(format!("there is no batch {at} in thread {thread}")));
    }
    let copied =
        store.fork(thread, new, options.at.unwrap_or(Position::MAX), &new_command_id()?, "command").await?;
    let Some(messages) = copied else {
        return Err(ExitError::Failed(format!("there is a thread {new} already")));
    };
    let json = json!({ "thread_id": new.as_str(), "forked_from": thread.as_str(), "at": options.at, "message_count": messages });
    output::print(options.database.format, &json, || output::key_value_table(&json))
}
