//! Requests of turns: deadlines, their state at the workflow's services, and the notices sent to
//! subscribers.

use std::collections::BTreeSet;

use model::{GatewayId, MessageFailure, Timestamp, TurnError, TurnId, WaitNotice, WaitReason};

use super::Partition;
use super::status::waits_for;
use crate::request_state::{RequestNews, SILENT_MS};
use crate::turn_state::TrackedTurn;

/// Time without a service or a chunk after which subscribers are shown the reason, ms.
const NO_WORKFLOW_MS: i64 = 5_000;
/// Interval between repeated notices, ms: subscribers may have joined after the first notice.
const TELL_AGAIN_MS: i64 = 10_000;

impl Partition {
    /// Applies news about the requests of these runs.
    pub(super) fn request_news(&mut self, news: Vec<(TurnId, u32, RequestNews)>) {
        let now = self.effects.now;
        for (id, run, news) in news {
            let turn = self.table.turns.get_mut(&id).filter(|turn| turn.run == run);
            if let Some(turn) = turn {
                turn.request.state.on(news, now);
            }
        }
    }

    /// Notes a chunk for the answer of this run that came without its token.
    pub(super) fn unproven_chunk(&mut self, id: &TurnId, run: u32) {
        if let Some(turn) = self.table.turns.get_mut(id).filter(|turn| turn.run == run) {
            turn.request.state.on_unproven();
        }
    }

    /// Active turns of which nothing has come for a second, each with the time of its silence in
    /// ms. The driver asks for the state of their requests.
    pub fn silent_turns(&self, now: Timestamp) -> Vec<(TurnId, u32, i64)> {
        let silent = |turn: &TrackedTurn| {
            let idle_ms = turn.idle_ms(now);
            (turn.is_running() && idle_ms >= SILENT_MS).then(|| (turn.id.clone(), turn.run, idle_ms))
        };
        self.table.turns.values().filter_map(silent).collect()
    }

    /// Notices for subscribers about turns that wait for their workflow, with the gateways that
    /// follow the thread. To be called every second. While the reader is behind, there are no
    /// notices: the chunks that a service seems to owe may be unread in the stream.
    pub fn wait_notices(&mut self, now: Timestamp) -> Vec<(WaitNotice, Vec<GatewayId>)> {
        let time = self.reading.clock.now(now);
        let mut notices = Vec::new();
        if !self.reading.clock.is_caught_up() || self.is_ahead() {
            return notices;
        }
        let blocked_turns = self.commands.blocked_turns();
        for turn in self.table.turns.values_mut() {
            let idle_ms = turn.idle_ms(now);
            let gateways = self.publishing.followers.of(&turn.thread);
            let is_silent = turn.is_running() && idle_ms >= SILENT_MS;
            if !is_silent || gateways.is_empty() || blocked_turns.contains(&turn.id) {
                continue;
            }
            let open = turn.answer.slot.and_then(|slot| self.messages.get_mut(slot));
            let has_gap = open.is_some_and(|open| open.gap_ms(time).is_some());
            let last_notice = turn.request.state.last_notice;
            let reason = match waits_for(turn, has_gap, now) {
                None | Some(WaitReason::Requested) => continue,
                Some(WaitReason::NoWorkflow | WaitReason::Taken)
                    if last_notice.is_none() && idle_ms < NO_WORKFLOW_MS =>
                {
                    continue;
                }
                Some(reason) => reason,
            };
            if last_notice.is_some_and(|(before, at)| before == reason && now.since_ms(at) < TELL_AGAIN_MS) {
                continue;
            }
            turn.request.state.last_notice = Some((reason, now));
            let notice =
                WaitNotice { thread: turn.thread.clone(), message: turn.id.answer(turn.run), reason };
            notices.push((notice, gateways.to_vec()));
        }
        notices
    }

    /// Fails runs without progress and runs whose request is not delivered again, except those
    /// whose chunks wait behind a command. While the reader is behind none fails: the missing
    /// chunks may be unread in the stream.
    ///
    /// A silence counts at most the time since the request. A process that was suspended reads the
    /// entries of that time afterwards, and the stream's time moves with them.
    pub(super) fn check_deadlines(&mut self, time: Timestamp, blocked_turns: &BTreeSet<TurnId>) {
        let now = self.effects.now;
        let is_late = |turn: &&TrackedTurn| {
            let deadline = turn.request.rules().map(|rules| rules.deadline_ms);
            turn.is_running()
                && turn.request.pending_end().is_none()
                && !blocked_turns.contains(&turn.id)
                && (turn.request.state.is_given_up(now)
                    || deadline.is_some_and(|deadline| {
                        time.since_ms(turn.answer.progress_at) >= deadline
                            && turn.request.published_at.is_none_or(|at| now.since_ms(at) >= deadline)
                    }))
        };
        let error = |turn: &TrackedTurn| {
            let why = turn.request.state.error(turn.answer.has_progress());
            (turn.id.clone(), turn.answer.slot, why.map_or(TurnError::Deadline, TurnError::Unanswered))
        };
        let late: Vec<_> = self.table.turns.values().filter(is_late).map(error).collect();
        for (id, slot, error) in late {
            let open = slot.and_then(|slot| self.messages.get_mut(slot));
            let gap = open.and_then(|open| open.gap_ms(time).map(|_| open.gap_failure()));
            self.fail_turn(&id, gap.unwrap_or(MessageFailure::Turn(error)));
        }
    }

    /// Called when the reader has caught up: entries read from now on are newer than the requests,
    /// so the deadlines begin. A lag of the reader may have gone unnoticed, for example while the
    /// process was suspended. Stream time from before a request has then been counted, so at most
    /// the time since the request counts.
    pub(super) fn requests_are_read(&mut self) {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        for turn in self.table.turns.values_mut() {
            let since_request = turn.request.published_at.map(|at| time.plus_ms(-now.since_ms(at)));
            let begins = if turn.request.was_behind { Some(time) } else { since_request };
            turn.request.was_behind = false;
            turn.answer.progress_at = turn.answer.progress_at.max(begins.unwrap_or(turn.answer.progress_at));
        }
    }
}
