//! Handles chunks of runs that are over: stops their workflow again and counts the calls of late
//! attempts.

use model::{Frame, IncomingChunk, ThreadId, TimerId, TurnId, TurnToken};
use scheduling::HeadState;

use super::Partition;
use crate::action::Action;

impl Partition {
    /// Handles a chunk with a valid token for a run whose end is committed. The run's workflow may
    /// not know of the end: the stop was published once, and a service that took the request later
    /// did not receive it.
    pub(super) fn answer_late_run(
        &mut self,
        frame: &Frame,
        arrival: &IncomingChunk,
        (id, run): (&TurnId, u32),
    ) {
        let now = self.effects.now;
        // A turn that is not known here may be in entries that are still to be read.
        if !self.may_begin() || self.reading.deferring.is_some() || !self.is_over(&frame.thread, id, run) {
            return;
        }
        let delivery = frame.token.as_ref().and_then(TurnToken::delivery);
        let (key, attempt) = ((id.clone(), run), (arrival.attempt, delivery.map(Into::into)));
        let is_due = self.table.late.stop(&key, now);
        if self.table.late.begins(&key, &attempt, arrival) || is_due {
            self.effects.counters.late_stops += 1;
            self.effects.push(Action::Abandon { turn: id.clone(), run });
        }
        self.effects.counters.late_calls += self.table.late.count_calls(&key, &attempt, arrival);
    }

    /// True if the run is certainly over. It must be certain even if this owner has lost its
    /// partition without knowing it: a stop would end a run that the next owner has started.
    fn is_over(&self, thread: &ThreadId, id: &TurnId, run: u32) -> bool {
        let now = self.effects.now;
        if self.table.late.has_ended(&(id.clone(), run)) {
            return true;
        }
        if let Some(turn) = self.table.turns.get(id) {
            return turn.run > run;
        }
        // A commit opens the turns of tasks, continuations and follow-ups, perhaps one of the next
        // owner. Other inputs and retries precede their answers in the stream, so an unknown one
        // has ended.
        let (task, continued) = (id.task_position(), id.continued_answer().filter(|_| run == 0));
        let Some(position) = task.or(continued) else { return run > 0 || TimerId::of_turn(id).is_none() };
        // Decisions about it are certain only once they are committed. A commit in flight will fail
        // if this owner has lost its partition, and the next owner gives out later positions.
        let is_on_its_way = self.committing.in_flight.is_some()
            || !self.committing.ended.queue.is_empty()
            || !self.table.agents.changed.is_empty();
        if is_on_its_way || self.commands.len() > 0 || !self.commands.writes.seqs.is_empty() {
            return false;
        }
        if position > self.committing.applied.of(position.bucket()) {
            return false;
        }
        if task.is_none() {
            return true;
        }
        let Some(queue) = self.table.agents.queues.get(&thread.agent()) else { return true };
        match queue.first() {
            _ if queue.head.is_some_and(|head| head >= position) => true,
            Some(first) if first.position == position => queue.run > run,
            Some(first) => first.position > position,
            None => queue.head_state(now) == HeadState::None,
        }
    }
}
