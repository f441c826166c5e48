//! Queries of gateways, and the threads they follow.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Cut, GatewayId, MessageKey, OpenInput, Role, ThreadId, TurnId};

use super::input_message::open_input;
use crate::action::{Action, ChangedThreads, ChangedThreadsQuery, ReadyChunks, SnapshotRequest};
use crate::machine::Partition;
use crate::open::Phase;
use crate::snapshot::snapshot;

/// Epochs are microseconds: an epoch that is a hundred years ahead was never granted.
const MOST_AHEAD: u64 = 100 * 365 * 86_400 * 1_000_000;
/// Maximum number of threads in one reply.
const MAX_CHANGED_THREADS: usize = 2_000;

impl Partition {
    /// Gateways that receive the frames of a thread.
    pub fn followers(&self, thread: &ThreadId) -> &[GatewayId] {
        self.publishing.followers.of(thread)
    }

    pub(super) fn show(&mut self, request: &SnapshotRequest) {
        let now = self.effects.now;
        // Chunks of a restored message may not have been sent yet.
        self.publish();
        self.publishing.followers.follow(&request.thread, &request.gateway, now);
        let open = self.messages.of_thread(&request.thread);
        let messages = open.filter(|open| !open.is_held_back());
        let inputs: Vec<_> = self.open_inputs(&request.thread).into_iter().map(Arc::new).collect();
        let reply = snapshot(request, self.cut(&request.thread), messages, &inputs);
        self.effects.push(Action::Snapshot(reply));
    }

    /// Inputs of persons that are accepted and not committed, in the order in which they are
    /// answered.
    pub(super) fn open_inputs(&self, thread: &ThreadId) -> Vec<OpenInput> {
        let queue = self.table.thread_queues.get(thread);
        let queued = queue.into_iter().flat_map(|queue| queue.active().into_iter().chain(queue.waiting()));
        let ended = self.uncommitted_turns().filter(|turn| turn.thread == *thread).map(|turn| &turn.id);
        let mut seen = BTreeSet::new();
        let ids = ended.chain(queued).filter(|id| seen.insert(*id));
        ids.filter_map(|id| open_input(self.table.turns.get(id)?)).collect()
    }

    /// Shows an input to subscribers as soon as it is accepted.
    pub(super) fn publish_input(&mut self, id: &TurnId) {
        let Some(turn) = self.table.turns.get(id).filter(|turn| !turn.has_ended()) else { return };
        let Some(input) = open_input(turn) else { return };
        let key = MessageKey { thread: turn.thread.clone(), message: input.answer() };
        let frame = self.publishing.frames.next(&key.thread);
        self.effects.push(Action::Publish(ReadyChunks {
            key,
            attempt: 0,
            role: Role::Assistant,
            batch_type: turn.batch_type(),
            chunks: Vec::new(),
            input: Some(Arc::new(input)),
            frame,
        }));
    }

    /// The reply to an unknown gateway is incomplete, because the owner may not know which threads
    /// the gateway follows. A gateway that knows a higher epoch ignores replies under this epoch.
    pub(super) fn changed_threads(&mut self, query: &ChangedThreadsQuery) -> Action {
        let now = self.effects.now;
        if query.epoch > self.committing.epoch && query.epoch - self.committing.epoch < MOST_AHEAD {
            return Action::CheckLease(query.epoch);
        }
        let is_known = self.publishing.followers.hear(&query.gateway, &query.unfollowed, now);
        let after = if query.epoch == self.committing.epoch { query.number } else { 0 };
        let (threads, is_complete) = self.publishing.frames.since(after, MAX_CHANGED_THREADS);
        let (token, epoch, number) = (query.token, self.committing.epoch, self.publishing.frames.number());
        let is_complete = is_complete && is_known;
        Action::ChangedThreads(ChangedThreads { token, epoch, number, threads, is_complete })
    }

    /// State of the thread after everything decided so far.
    fn cut(&self, thread: &ThreadId) -> Cut {
        Cut {
            epoch: self.committing.epoch,
            number: self.publishing.frames.number(),
            committed: self.committing.applied.of(thread.bucket()),
            is_current: self.reading.has_caught_up
                && self.reading.clock.is_caught_up()
                && self.reading.deferring.is_none()
                && self.commands.first().is_none()
                && self.messages.of_thread(thread).all(|open| open.phase != Phase::Unknown),
        }
    }
}
