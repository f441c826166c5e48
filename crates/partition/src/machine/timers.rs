//! Finds due timers and applies the decisions on them.

use model::{ThreadId, TimerId, Timestamp};

use super::Partition;
use crate::action::{Action, MachineReport, TimerOutcome};
use crate::committing::EndedInput;
use crate::timers::{NextDue, TimerDecision, TimerEnd, TimerVerdict, TimerWrite};
use crate::turn_state::{SUPERSEDED_BY_MESSAGE, TrackedTurn};
use crate::types::NewWork;

/// Cause of the end of a timer cancelled by a client.
const CLIENT: &str = "client";
/// Cause of the delay of a timer snoozed by a client.
const SNOOZE: &str = "snooze";

impl Partition {
    /// Asks the driver to decide due timers, and loads more in time. This happens only after
    /// everything has been read, because messages that cancel timers are in the stream.
    pub(super) fn look_at_timers(&mut self) {
        let now = self.effects.now;
        if !self.outbox.is_full() {
            let due = self.timers.take_due(now, self.commands.stored);
            if !due.is_empty() {
                self.effects.push(Action::DecideTimers(due));
            }
        }
        if let Some(from_ms) = self.timers.wants_more(now) {
            self.effects.push(Action::LoadTimers { from_ms, limit: self.limits.timer_window });
        }
    }

    pub(super) fn timers_decided(&mut self, decisions: Vec<TimerDecision>) {
        let now = self.effects.now;
        for TimerDecision { id, thread, verdict } in decisions {
            let is_answered = thread
                .as_ref()
                .is_some_and(|thread| self.has_real_input(thread) || self.timers.is_superseded(thread));
            let end = |state, by| TimerWrite::End { id: id.clone(), state, by };
            let (write, fired, outcome) = match verdict {
                TimerVerdict::Gone => {
                    self.timers.undecided(&id);
                    continue;
                }
                _ if is_answered => (
                    end(TimerEnd::Cancelled, SUPERSEDED_BY_MESSAGE.to_owned()),
                    None,
                    TimerOutcome::Cancelled,
                ),
                TimerVerdict::Later { next, by: None } => {
                    self.timers.again(id, now.plus_ms(next.wait_ms.max(1)));
                    continue;
                }
                TimerVerdict::Later { next, by } => {
                    (TimerWrite::Postpone { id: id.clone(), next, by }, None, TimerOutcome::Postponed)
                }
                TimerVerdict::End { state, by } => (end(state, by), None, outcome_of(state)),
                TimerVerdict::Fire { work, next } => {
                    let turn = match &work {
                        NewWork::Turn(opened) => Some(opened.turn.clone()),
                        NewWork::Task(_) => None,
                    };
                    (TimerWrite::Fire { id: id.clone(), turn, next }, Some(work), TimerOutcome::Fired)
                }
            };
            self.effects.push(report(&write, outcome));
            self.timers.write(write, fired);
        }
        self.timers.decided();
    }

    /// Cancels a pending timer for a client. If it is not pending in the store, nothing is written.
    pub(super) fn cancel_timer(&mut self, timer: &TimerId) -> Option<String> {
        let write = TimerWrite::End { id: timer.clone(), state: TimerEnd::Cancelled, by: CLIENT.to_owned() };
        self.change_timer(write, TimerOutcome::Cancelled)
    }

    /// Snoozes a pending follow-up for a client. If it is not pending in the store, nothing is
    /// written.
    pub(super) fn snooze_timer(&mut self, timer: &TimerId, until: Timestamp) -> Option<String> {
        let now = self.effects.now;
        let next = NextDue { at: until, wait_ms: until.since_ms(now) };
        let write = TimerWrite::Postpone { id: timer.clone(), next, by: Some(SNOOZE.to_owned()) };
        self.change_timer(write, TimerOutcome::Postponed)
    }

    fn change_timer(&mut self, write: TimerWrite, outcome: TimerOutcome) -> Option<String> {
        if !self.timers.hold(write.id()) {
            return Some(
                "the timer is due at this moment, or another change of it is being written".to_owned(),
            );
        }
        self.effects.push(report(&write, outcome));
        self.timers.write(write, None);
        None
    }

    /// True if a person's input for this thread is known but not in its history: it waits, is being
    /// answered or checked, or its end is not committed yet.
    pub(super) fn has_real_input(&self, thread: &ThreadId) -> bool {
        let is_real = |id| self.table.turns.get(id).is_some_and(TrackedTurn::is_real);
        let queue = self.table.thread_queues.get(thread);
        queue.is_some_and(|queue| queue.active().into_iter().chain(queue.waiting()).any(is_real))
            || self.commands.has_real_input(thread)
            || self.uncommitted_turns().any(|turn| turn.is_real() && turn.thread == *thread)
    }

    /// Turns that have ended, but not in a commit known to be applied.
    pub(super) fn uncommitted_turns(&self) -> impl Iterator<Item = &TrackedTurn> {
        let ended = self.committing.ended.queue.iter().filter_map(|ended| match ended {
            EndedInput::Turn(id) => Some(id),
            EndedInput::Message(_) | EndedInput::Entry { .. } => None,
        });
        ended.chain(self.committing.in_flight_turns()).filter_map(|id| self.table.turns.get(id))
    }
}

fn outcome_of(state: TimerEnd) -> TimerOutcome {
    match state {
        TimerEnd::Cancelled => TimerOutcome::Cancelled,
        TimerEnd::Withdrawn => TimerOutcome::Withdrawn,
        TimerEnd::Refused => TimerOutcome::Refused,
    }
}

/// Report for the log and metrics.
pub(super) fn report(write: &TimerWrite, outcome: TimerOutcome) -> Action {
    let by = match write {
        TimerWrite::Arm(_) | TimerWrite::Fire { .. } => None,
        TimerWrite::Postpone { by, .. } => by.clone(),
        TimerWrite::End { by, .. } => Some(by.clone()),
    };
    Action::Report(MachineReport::Timer { timer: write.id().clone(), outcome, by })
}
