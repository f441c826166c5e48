//! How the messages of each thread ended, as gateways read it from the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use feed::{EndKind, EndedMessage, StorePage};
use model::{BatchType, Message, MessageId, MessageKey, OpenInput, Position, ThreadId, TurnId};
use partition::Commit;
use protocols::{MessageHeader, StoredAnswer, StreamError};

use super::Store;
use crate::bug::PlantedBug;
use crate::checker::turns::{TurnPart, part_of};

/// A paused owner may commit positions that it assigned up to this time ago. In the real store this
/// is a minute, which is longer than most histories.
const CLOCK_SKEW: Duration = Duration::from_secs(20);

impl Store {
    /// Adds the end of an answer with its steps, or of a message that no turn asked for.
    pub(super) fn add_end(&mut self, message: &model::Message) {
        let MessageKey { thread, message: id } = &message.key;
        if let Some((turn, TurnPart::Input | TurnPart::Step(_))) = part_of(id) {
            let is_shown = message.placement.batch_type == BatchType::UserRequest;
            if *id == turn.input() && is_shown && !message.metadata.is_synthetic() {
                self.inputs.insert(turn.clone(), message.clone());
            }
            let answer = id.as_str().rsplit_once("-s").filter(|_| *id != turn.input());
            if let Some(answer) = answer.and_then(|(answer, _)| MessageId::parse(answer).ok()) {
                let key = MessageKey { thread: thread.clone(), message: answer };
                self.steps.entry(key).or_default().push(message.clone());
            }
            return;
        }
        let (placement, attempt) = (message.placement, message.attempt);
        let header = MessageHeader::new(id.clone(), attempt, message.role, placement.batch_type);
        let steps = self.steps.remove(&message.key).unwrap_or_default();
        let messages = steps.iter().chain([message]).map(|message| protocols::StoredMessage {
            role: message.role,
            content: &message.content,
            tool_calls: message.tool_calls.as_ref(),
            tool_call_id: message.tool_call_id.as_deref(),
            metadata: &message.metadata,
        });
        let answer = StoredAnswer::new(messages, header.is_answer(), attempt, placement.position);
        let input = TurnId::of_answer(id).and_then(|(turn, run)| {
            let input = self.inputs.remove(&turn).filter(|_| self.bug != Some(PlantedBug::InputsUnread))?;
            let accepted_at = input.times.created_at.unwrap_or_default();
            let Message { content, metadata, .. } = input;
            Some(Arc::new(OpenInput { turn, run, content, metadata, accepted_at }))
        });
        let how = EndKind::Stored(answer);
        let ended = EndedMessage { header, position: placement.position, how, input };
        self.ends_of.entry(thread.clone()).or_default().insert(placement.position, ended);
    }

    pub(super) fn keep_failures(&mut self, commit: &Commit) {
        if self.bug == Some(PlantedBug::FailureUnkept) {
            return;
        }
        for failed in &commit.failed_messages {
            let header = MessageHeader::new(
                failed.key.message.clone(),
                failed.attempt,
                failed.role,
                failed.batch_type,
            );
            let ends = self.ends_of.entry(failed.key.thread.clone()).or_default();
            // One row per message.
            if ends.values().all(|ended| ended.header.message != failed.key.message) {
                let how = EndKind::Failed(StreamError::from(&failed.failure));
                let position = failed.position;
                ends.insert(position, EndedMessage { header, position, how, input: None });
            }
        }
    }

    /// The position of the thread's last end up to `through`.
    pub(crate) fn last_end(&self, thread: &ThreadId, through: Position) -> Position {
        let last = self.ends_of.get(thread).and_then(|ends| ends.range(..=through).next_back());
        last.map_or(Position::from_stored(0), |(position, _)| *position)
    }

    /// At most `limit` ends of the thread.
    pub(crate) fn page(
        &self,
        thread: &ThreadId,
        after: Position,
        through: Position,
        limit: usize,
    ) -> StorePage {
        let range = (Bound::Excluded(after), Bound::Included(through));
        let ends = self.ends_of.get(thread).filter(|_| through > after);
        let all: Vec<_> = ends.map(|ends| ends.range(range).collect()).unwrap_or_default();
        let is_all = all.len() <= limit && through < Position::MAX;
        let ends: Vec<EndedMessage> = all.into_iter().take(limit).map(|(_, ended)| ended.clone()).collect();
        let last = ends.last().map_or(after, |ended| ended.position);
        let exists = self.last_end(thread, after) == after || after.get() == 0;
        let back_to = (!exists).then(|| self.last_end(thread, after.before(CLOCK_SKEW)));
        StorePage { after, back_to, ends, through: if is_all { through } else { last } }
    }

    /// All ends, with their positions.
    pub(crate) fn ends_of_threads(&self) -> Vec<(MessageKey, i64)> {
        let of = |(thread, ends): (&ThreadId, &BTreeMap<Position, EndedMessage>)| {
            let key = |ended: &EndedMessage| MessageKey {
                thread: thread.clone(),
                message: ended.header.message.clone(),
            };
            ends.values().map(|ended| (key(ended), ended.position.get())).collect::<Vec<_>>()
        };
        self.ends_of.iter().flat_map(of).collect()
    }
}
