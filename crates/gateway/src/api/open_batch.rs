//! The batch of a turn in progress, as the owner of its thread knows it.

use std::collections::HashMap;

use batches::Item;
use model::{ActiveTurn, MessageTimes, OpenBatch, Position, QueryTarget, ThreadId, Timestamp, TurnId};
use store::{Store, StoreError, StoredMessage};

use crate::api::views::{self, BatchView, WholeBatch};
use crate::backend::Backend;
use crate::commands::owner_query::{self, OwnerStatus};

/// Placeholder positions for messages that get theirs with the commit; above every assigned
/// position.
const FIRST_PLACE: i64 = i64::MAX - (1 << 32);

/// A turn in progress, and its batch.
pub(crate) struct RunningBatch {
    active: ActiveTurn,
    batch: OpenBatch,
}

/// Whether the owner of the thread answers, and the thread's turn in progress, if people may see
/// it.
pub(crate) async fn ask(backend: &Backend, thread: &ThreadId) -> (Option<OwnerStatus>, Option<RunningBatch>) {
    let about = QueryTarget::Batch(thread.clone());
    let explained = owner_query::explain(backend, thread.bucket(), &about).await;
    let status = OwnerStatus::of(explained.as_ref());
    let running = explained.and_then(|explained| {
        let mut active = explained.active.filter(|active| active.thread == *thread)?;
        let batch = *active.batch.take()?;
        Some(RunningBatch { active, batch })
    });
    (Some(status), running)
}

impl RunningBatch {
    pub(crate) fn turn(&self) -> &TurnId {
        &self.active.turn
    }

    /// The stored batch that the turn continues.
    pub(crate) fn continues(&self) -> Option<Position> {
        self.batch.continues
    }

    /// The parent batch.
    pub(crate) fn parent(&self) -> Option<Position> {
        batches::group(self.items(0, self.batch.continues)).first()?.parent()
    }

    /// Whether the turn has been committed since its owner answered.
    pub(crate) fn is_in(&self, messages: &[StoredMessage]) -> bool {
        let input = self.active.turn.input();
        messages.iter().any(|message| message.message_id == input)
    }

    /// The whole batch, including what is stored of the batch that the turn continues.
    pub(crate) async fn show(
        self,
        store: &Store,
        thread: &ThreadId,
        now: Timestamp,
    ) -> Result<WholeBatch, StoreError> {
        let mut messages = match self.batch.continues {
            Some(batch) => store.batches(thread, &[batch]).await?,
            None => Vec::new(),
        };
        let continued = self.batch.continues.filter(|_| !messages.is_empty());
        // The turn may have been committed since its owner was asked.
        let fresh = if self.is_in(&messages) { Vec::new() } else { self.items(messages.len(), continued) };
        messages.extend(fresh.into_iter().map(|item| StoredMessage { item, parent: None }));
        let grouped = batches::group(messages.iter().cloned().map(Into::into));
        views::withhold(&mut messages);
        let times: HashMap<&str, MessageTimes> =
            self.batch.messages.iter().map(|message| (message.id.as_str(), message.times)).collect();
        let Some(batch) = grouped.first() else {
            return Err(StoreError::Row("a turn has no input".to_owned()));
        };
        let mut shown = BatchView::new(batch, now, i64::MAX / 2);
        (shown.state, shown.abandoned_since) = ("open", None);
        // A stored answer without a reason counts as one that ended by itself, but this answer has
        // not ended.
        shown.finish_reason = None;
        shown.batch_id = continued;
        let mut whole = WholeBatch::new(shown, batch, messages);
        whole.is_cut = self.batch.is_cut;
        for message in &mut whole.messages {
            let Some(times) = times.get(message.message_id.as_str()) else { continue };
            (message.position, message.batch_id) = (None, continued);
            message.created_at = times.created_at.and_then(views::rfc3339);
            message.finish_reason = message.finish_reason.filter(|_| times.created_at.is_some());
        }
        for call in &mut whole.calls {
            call.call_at = call.call_at.filter(|at| at.get() < FIRST_PLACE);
            call.result_at = call.result_at.filter(|at| at.get() < FIRST_PLACE);
        }
        Ok(whole)
    }

    /// The messages of the turn, after the `stored` messages of the batch `continued`.
    fn items(&self, stored: usize, continued: Option<Position>) -> Vec<Item> {
        let place = |number: usize| Position::from_stored(FIRST_PLACE.saturating_add(number as i64));
        let item = |(number, message): (usize, &model::OpenBatchMessage)| Item {
            position: place(number),
            message_id: message.id.clone(),
            batch_id: continued.unwrap_or(place(0)),
            number: None,
            sequence_num: i32::try_from(stored + number).unwrap_or(i32::MAX),
            batch_type: self.batch.batch_type,
            role: message.role,
            content: message.content.clone(),
            tool_calls: message.tool_calls.clone(),
            tool_call_id: message.tool_call_id.clone(),
            metadata: message.metadata.clone(),
            token_count: None,
            created_at: message
                .times
                .created_at
                .or(message.times.started_at)
                .unwrap_or(self.active.accepted_at),
            started_at: message.times.started_at,
        };
        self.batch.messages.iter().enumerate().map(item).collect()
    }
}
