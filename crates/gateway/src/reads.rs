//! Reading a thread from the store in the form that feeds take.

use std::collections::HashMap;

use adapters::{FailureNote, StoredAnswer, stored};
use model::{MessageId, MessageKey, Metadata, Position, ThreadId, TurnId};
use store::{Range, ShownMessage, Store, StoreError, StoredMessage, StoredOutcome, TurnState};

use crate::feed::{Committed, Known, StoreRead, View};

/// Messages of one page. Whoever wants more reads on from the last.
const PAGE: u32 = 32;

/// The position of the thread's last message that is shown; 0 when it has none.
pub(crate) async fn tip(store: &Store, thread: &ThreadId) -> Result<Position, StoreError> {
    Ok(store.last_shown(thread).await?.unwrap_or(Position::from_stored(0)))
}

/// A page of committed messages, and the messages that are asked for by id.
pub(crate) async fn view(store: &Store, thread: &ThreadId, read: &StoreRead) -> Result<View, StoreError> {
    let page = store.shown_after(thread, read.after, PAGE).await?;
    let is_whole = page.len() < PAGE as usize;
    let committed: Vec<_> = page.into_iter().map(committed).collect();
    let mut known = HashMap::new();
    if !read.keys.is_empty() {
        let key = |message: &MessageId| MessageKey { thread: thread.clone(), message: message.clone() };
        let keys: Vec<_> = read.keys.iter().map(key).collect();
        for (key, outcome) in store.outcome_of(&keys).await? {
            if let Some(outcome) = resolve(store, &key, outcome, &committed).await? {
                known.insert(key.message, outcome);
            }
        }
        for message in &read.keys {
            if !known.contains_key(message)
                && let Some(failure) = failure_of(store, thread, message).await?
            {
                known.insert(message.clone(), Known::Failed(failure));
            }
        }
    }
    Ok(View { after: read.after, committed, is_whole, known, keys: read.keys.clone() })
}

/// An answer that is in the history, with its steps; `None` when it is not there.
pub(crate) async fn answer(
    store: &Store,
    thread: &ThreadId,
    message: &MessageId,
) -> Result<Option<StoredAnswer>, StoreError> {
    let key = MessageKey { thread: thread.clone(), message: message.clone() };
    let outcomes = store.outcome_of(std::slice::from_ref(&key)).await?;
    let Some(StoredOutcome::Complete { position, .. }) =
        outcomes.into_iter().next().map(|(_, outcome)| outcome)
    else {
        return Ok(None);
    };
    let range =
        Range { after: Some(Position::from_stored(position.get() - 1)), before: None, with_synthetic: true };
    let found = store.history(thread, range, 1).await?.unwrap_or_default();
    let Some(last) = found.first().filter(|last| last.position == position) else { return Ok(None) };
    let batch = store.batches(thread, &[last.batch_id]).await?;
    // A batch that goes on has several answers.
    let step = format!("{message}-s");
    let is_of =
        |one: &&StoredMessage| one.message_id == *message || one.message_id.as_str().starts_with(&step);
    let steps: Vec<(&StoredMessage, Metadata)> =
        batch.iter().filter(is_of).map(|one| (one, metadata_of(one))).collect();
    let told = steps.iter().map(|(one, metadata)| stored::StoredMessage {
        role: one.role,
        content: &one.content,
        tool_calls: one.tool_calls.as_ref(),
        tool_call_id: one.tool_call_id.as_deref(),
        metadata,
    });
    Ok(Some(StoredAnswer::new(told, last.attempt, position)))
}

fn metadata_of(message: &StoredMessage) -> Metadata {
    let map = message.metadata.as_object().cloned().unwrap_or_default();
    Metadata::new(map).unwrap_or_default()
}

async fn resolve(
    store: &Store,
    key: &MessageKey,
    outcome: StoredOutcome,
    page: &[Committed],
) -> Result<Option<Known>, StoreError> {
    let position = match outcome {
        StoredOutcome::Complete { position, .. } => position,
        StoredOutcome::Failed { code, text, missing, is_retryable, .. } => {
            return Ok(Some(Known::Failed(FailureNote { code, text, missing, is_retryable })));
        }
    };
    if let Some(committed) = page.iter().find(|committed| committed.position == position) {
        return Ok(Some(Known::Complete(committed.clone())));
    }
    // An outcome has no metadata, and the final chunk must.
    let before = Position::from_stored(position.get() - 1);
    let found = store.shown_after(&key.thread, before, 1).await?;
    let mut found = found.into_iter().filter(|message| message.position == position);
    Ok(found.next().map(|message| Known::Complete(committed(message))))
}

/// Why the run failed whose answer the message would have been: of a turn nothing is kept under the answer's id.
async fn failure_of(
    store: &Store,
    thread: &ThreadId,
    message: &MessageId,
) -> Result<Option<FailureNote>, StoreError> {
    let Some((turn, run)) = TurnId::of_answer(message) else { return Ok(None) };
    if let Some(failure) = store.run_failure(thread, &turn, run).await? {
        return Ok(Some(FailureNote::new(failure.code, failure.text, failure.is_retryable)));
    }
    let later = match store.turn_state(thread, &turn).await? {
        Some(TurnState::Done { answer }) => TurnId::of_answer(&answer).map(|(_, run)| run),
        Some(TurnState::Open { run } | TurnState::Failed { run }) => Some(run),
        Some(TurnState::Dropped) => return Ok(Some(FailureNote::new("dropped", DROPPED, false))),
        None => None,
    };
    let is_over = later.is_some_and(|later| later > run);
    Ok(is_over.then(|| FailureNote::new("superseded", SUPERSEDED, false)))
}

const DROPPED: &str = "the turn failed, and somebody dropped it";
const SUPERSEDED: &str = "this run of the turn failed, and another followed";

fn committed(message: ShownMessage) -> Committed {
    Committed {
        message: message.message_id,
        position: message.position,
        attempt: message.attempt,
        role: message.role,
        content: message.content,
        metadata: message.metadata,
    }
}
