//! State of queues and turns: what runs, and why something waits.

use model::{
    ActiveTurn, AgentId, BusyThread, BusyThreads, OpenInputs, OpenMessageStatus, QueryTarget, QueueStatus,
    RequestInfo, Seq, Tenant, ThreadId, Timestamp, TurnId, WaitReason, WaitingTurn,
};
use scheduling::{HeadState, Readiness};

use super::Partition;
use super::message_times::began_at;
use crate::action::BufferState;
use crate::messages::Slot;
use crate::open::Phase;
use crate::request_state::SILENT_MS;
use crate::turn_state::{TrackedTurn, TurnState};

/// Maximum number of open messages in a status.
const MAX_OPEN: usize = 64;

impl Partition {
    pub(super) fn status(&mut self, target: &QueryTarget) -> QueueStatus {
        let mut status = QueueStatus { applied_seq: self.applied_seq(), ..QueueStatus::default() };
        match target {
            QueryTarget::Agent(agent) => {
                self.thread_status(&agent.thread(), &mut status);
                self.agent_status(agent, &mut status);
            }
            QueryTarget::Thread(thread) => self.thread_status(thread, &mut status),
            QueryTarget::Batch(thread) => {
                self.thread_status(thread, &mut status);
                if let Some(active) = &mut status.active {
                    active.batch = self.open_batch(&active.turn).map(Box::new);
                }
            }
            QueryTarget::Inputs(thread) => {
                self.thread_status(thread, &mut status);
                status.inputs = Some(OpenInputs { inputs: self.open_inputs(thread), is_cut: false });
            }
            QueryTarget::BusyThreads(tenant) => {
                status.busy = Some(self.busy_threads(tenant.as_ref()));
                status.reason = self.is_not_known_yet();
            }
            QueryTarget::Turn(id) => {
                let thread = self.table.turns.get(id).map(|turn| turn.thread.clone());
                if let Some(thread) = thread {
                    self.thread_status(&thread, &mut status);
                    let waiting = status.waiting.iter().find(|waiting| waiting.turn == *id);
                    let is_waiting = waiting.is_some();
                    status.reason = waiting.map(|waiting| waiting.reason);
                    if is_waiting || status.active.as_ref().is_none_or(|active| active.turn != *id) {
                        status.active = self.active_turn(id).or(status.active);
                    }
                } else {
                    status.reason = self.is_not_known_yet();
                }
            }
        }
        status
    }

    fn busy_threads(&self, tenant: Option<&Tenant>) -> BusyThreads {
        let queues = self.table.thread_queues.iter().filter(|(_, queue)| !queue.is_empty());
        let of_tenant = queues.filter(|(thread, _)| thread.tenant().as_ref() == tenant);
        let mut threads: Vec<BusyThread> = of_tenant
            .take(BusyThreads::MAX + 1)
            .map(|(thread, queue)| BusyThread {
                thread: thread.clone(),
                is_running: queue.active().is_some(),
            })
            .collect();
        let is_cut = threads.len() > BusyThreads::MAX;
        threads.truncate(BusyThreads::MAX);
        BusyThreads { threads, is_cut }
    }

    fn thread_status(&mut self, thread: &ThreadId, status: &mut QueueStatus) {
        let now = self.effects.now;
        if let Some(thread_queue) = self.table.thread_queues.get(thread) {
            let waiting = |id: &TurnId| {
                let turn = self.table.turns.get(id)?;
                Some(WaitingTurn {
                    turn: id.clone(),
                    reason: turn.waits_to_begin(now),
                    age_ms: now.since_ms(turn.times.came_at).max(0),
                    yields: turn.waiting(now) == Readiness::Yields,
                })
            };
            status.waiting = thread_queue.waiting().filter_map(waiting).collect();
            if let Some(active) = thread_queue.active().cloned() {
                status.active = self.active_turn(&active);
            }
        }
        status.open = self.open_messages(thread);
        if status.active.is_none() && status.waiting.is_empty() {
            status.reason = self.is_not_known_yet();
        }
    }

    fn open_messages(&mut self, thread: &ThreadId) -> Vec<OpenMessageStatus> {
        let now = self.effects.now;
        let (time, timeout_ms) = (self.reading.clock.now(now), self.limits.gap_timeout_ms);
        let slots: Vec<Slot> = self.messages.slots_of_thread(thread).take(MAX_OPEN).collect();
        let open = |slot| {
            let open = self
                .messages
                .get_mut(slot)
                .filter(|open| open.phase != Phase::Ended && !open.is_held_back())?;
            let BufferState { expected, received, released, missing, idle_ms: _ } = open.buffer_state(time);
            let gap_for_ms = open.gap_ms(time).map(|age_ms| (timeout_ms - age_ms).max(0));
            let message = open.key.message.clone();
            Some(OpenMessageStatus { message, expected, received, released, missing, gap_for_ms })
        };
        slots.into_iter().filter_map(open).collect()
    }

    /// Last entry whose commands are applied; later ones wait for a check or for room.
    fn applied_seq(&self) -> Seq {
        let waiting =
            [self.commands.first(), self.reading.deferring.map(|(seq, _)| seq)].into_iter().flatten().min();
        waiting.map_or(self.reading.last_seq, |seq| self.reading.last_seq.min(Seq(seq.0.saturating_sub(1))))
    }

    /// An item that is not known may be unread in the stream until the reader has caught up.
    fn is_not_known_yet(&self) -> Option<WaitReason> {
        (!self.reading.has_caught_up).then_some(WaitReason::CatchingUp)
    }

    fn agent_status(&self, agent: &AgentId, status: &mut QueueStatus) {
        let now = self.effects.now;
        status.reason = None;
        let Some(queue) = self.table.agents.queues.get(agent) else { return };
        status.paused = queue.paused;
        status.head = queue.first().map(|first| first.task.id.clone());
        let is_thread_busy = status.active.is_some() || !status.waiting.is_empty();
        status.reason = match queue.head_state(now) {
            HeadState::None | HeadState::Running => None,
            HeadState::Paused => Some(WaitReason::Paused),
            HeadState::Waits(until) => {
                let postponed =
                    self.table.delays.postponed_queues.get(agent).map(|postponed| postponed.reason(now));
                postponed.or(Some(WaitReason::Backoff { for_ms: until.since_ms(now) }))
            }
            HeadState::NotLoaded | HeadState::Ready if !self.reading.has_caught_up => {
                Some(WaitReason::CatchingUp)
            }
            // This state is brief: the commit that decides what is next is under way.
            HeadState::Unsettled => Some(WaitReason::HeadOfLine),
            HeadState::NotLoaded | HeadState::Ready if is_thread_busy => Some(WaitReason::HeadOfLine),
            HeadState::NotLoaded | HeadState::Ready => Some(WaitReason::Capacity),
        };
    }

    fn active_turn(&mut self, id: &TurnId) -> Option<ActiveTurn> {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        let turn = self.table.turns.get(id)?;
        let has_gap = match turn.answer.slot.and_then(|slot| self.messages.get_mut(slot)) {
            Some(open) => open.gap_ms(time).is_some(),
            None => false,
        };
        let turn = self.table.turns.get(id)?;
        let fails_ms = turn
            .request
            .rules()
            .map(|rules| (rules.deadline_ms - time.since_ms(turn.answer.progress_at)).max(0));
        Some(ActiveTurn {
            turn: id.clone(),
            thread: turn.thread.clone(),
            run: turn.run,
            message: id.answer(turn.run),
            waits_for: waits_for(turn, has_gap, now),
            idle_ms: turn.idle_ms(now),
            request: RequestInfo { fails_ms, ..turn.request.state.info(now) },
            accepted_at: turn.accepted_at(),
            started_at: began_at(turn, turn.answer.slot.and_then(|slot| self.messages.get(slot))),
            batch: None,
        })
    }
}

pub(super) fn waits_for(turn: &TrackedTurn, has_gap: bool, now: Timestamp) -> Option<WaitReason> {
    match turn.state {
        TurnState::Waiting { .. } => Some(turn.waits_to_begin(now)),
        TurnState::Starting | TurnState::Running if has_gap => Some(WaitReason::Gap),
        TurnState::Starting if !turn.answer.has_progress() => Some(WaitReason::Requested),
        TurnState::Running if !turn.answer.has_progress() || turn.idle_ms(now) >= SILENT_MS => {
            turn.request.state.reason(turn.answer.has_progress())
        }
        TurnState::Starting | TurnState::Running | TurnState::Ended(_) => None,
    }
}
