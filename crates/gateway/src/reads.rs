//! Reading a thread from the store in the form that feeds take.

use std::collections::HashMap;

use adapters::FailureNote;
use model::{MessageId, MessageKey, Metadata, Position, ThreadId};
use serde_json::Value;
use store::{Range, Store, StoreError, StoredMessage, StoredOutcome};

use crate::feed::{Committed, Known, StoreRead, View};

/// Messages of one page. Whoever wants more reads on from the last.
const PAGE: u32 = 32;

/// The position of the thread's last message; 0 when it has none.
pub(crate) async fn tip(store: &Store, thread: &ThreadId) -> Result<Position, StoreError> {
    let range = Range { after: None, before: Some(Position::from_stored(i64::MAX)) };
    let last = store.history(thread, range, 1).await?.unwrap_or_default();
    Ok(last.last().map_or(Position::from_stored(0), |message| message.position))
}

/// A page of committed messages, and the messages that are asked for by id.
pub(crate) async fn view(store: &Store, thread: &ThreadId, read: &StoreRead) -> Result<View, StoreError> {
    let range = Range { after: Some(read.after), before: None };
    let page = store.history(thread, range, PAGE).await?.unwrap_or_default();
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
    }
    Ok(View { after: read.after, committed, is_whole, known, keys: read.keys.clone() })
}

async fn resolve(
    store: &Store,
    key: &MessageKey,
    outcome: StoredOutcome,
    page: &[Committed],
) -> Result<Option<Known>, StoreError> {
    let position = match outcome {
        StoredOutcome::Complete { position, .. } => position,
        StoredOutcome::Failed { code, text, missing, .. } => {
            return Ok(Some(Known::Failed(FailureNote { code, text, missing })));
        }
    };
    if let Some(committed) = page.iter().find(|committed| committed.position == position) {
        return Ok(Some(Known::Complete(committed.clone())));
    }
    // An outcome has no metadata, and the final chunk must.
    let range = Range { after: Some(Position::from_stored(position.get() - 1)), before: None };
    let messages = store.history(&key.thread, range, 1).await?.unwrap_or_default();
    let mut found = messages.into_iter().filter(|message| message.position == position);
    Ok(found.next().map(|message| Known::Complete(committed(message))))
}

fn committed(message: StoredMessage) -> Committed {
    let metadata = match message.metadata {
        Value::Object(map) => Metadata::new(map).unwrap_or_default(),
        _ => Metadata::EMPTY,
    };
    Committed {
        message: message.message_id,
        position: message.position,
        attempt: message.attempt,
        role: message.role,
        content: message.content,
        metadata,
    }
}
