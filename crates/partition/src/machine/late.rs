//! Chunks of runs that are over: their workflow is stopped once more, and the calls of an attempt that began too late are counted.

use model::{Frame, IncomingChunk, Seq, Timestamp, TurnId, TurnToken};
use scheduling::HeadState;

use super::Partition;
use crate::action::Action;

impl Partition {
    /// A chunk with the right token, of a run whose end is committed. Its workflow may not know of the end: the stop was published once, and
    /// a service that took the request later has not heard it.
    pub(super) fn answer_late_run(
        &mut self,
        frame: &Frame,
        arrival: &IncomingChunk,
        (id, run): (&TurnId, u32),
        seq: Seq,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let is_unsure = || {
            let queue = self.table.queues.get(&frame.thread.agent())?;
            Some(matches!(queue.head_state(now), HeadState::NotLoaded | HeadState::Unsettled))
        };
        // What is not known may stand in entries that are still to be read.
        if !self.may_begin() || self.deferring.is_some() || is_unsure().unwrap_or(false) {
            return;
        }
        let delivery = frame.token.as_ref().and_then(TurnToken::delivery);
        let (key, attempt) = ((id.clone(), run), (arrival.attempt, delivery.map(Into::into)));
        let is_due = self.late.stop(&key, now);
        if self.late.begins(&key, attempt.clone(), arrival) || is_due {
            self.counters.late_stops += 1;
            actions.push(Action::Abandon { turn: id.clone(), run });
        }
        if self.late.is_new(seq) {
            self.counters.late_calls += self.late.count_calls(&key, &attempt, &frame.thread, arrival);
        }
    }
}
