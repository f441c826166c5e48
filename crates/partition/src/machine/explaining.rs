//! Why something waits.

use model::{AgentId, Seq, ThreadId, Timestamp, TurnId};
use scheduling::{Head, WaitingTurn};

use super::Partition;
use crate::messages::Slot;
use crate::open::Phase;
use crate::turn::{Turn, TurnPhase};
use crate::turns::{About, ActiveTurn, Explanation, OpenMessage, Question, WaitReason, WaitingInput};

/// Open messages of one thread that are told of.
const MOST_OPEN: usize = 64;

impl Partition {
    pub(super) fn explain(&mut self, question: &Question, now: Timestamp) -> Explanation {
        let mut explanation = Explanation {
            token: question.token,
            active: None,
            waiting: Vec::new(),
            reason: None,
            paused: false,
            head: None,
            known_up_to: self.known_up_to(),
            open: Vec::new(),
        };
        match &question.about {
            About::Agent(agent) => {
                self.explain_thread(&agent.thread(), &mut explanation, now);
                self.explain_agent(agent, &mut explanation, now);
            }
            About::Thread(thread) => self.explain_thread(thread, &mut explanation, now),
            About::Turn(id) => {
                let thread = self.work.turns.get(id).map(|turn| turn.thread.clone());
                if let Some(thread) = thread {
                    self.explain_thread(&thread, &mut explanation, now);
                    let waiting = explanation.waiting.iter().find(|waiting| waiting.turn == *id);
                    let is_waiting = waiting.is_some();
                    explanation.reason = waiting.map(|waiting| waiting.reason);
                    if is_waiting || explanation.active.as_ref().is_none_or(|active| active.turn != *id) {
                        explanation.active = self.active_turn(id, now).or(explanation.active);
                    }
                } else {
                    explanation.reason = self.is_not_known_yet();
                }
            }
        }
        explanation
    }

    fn explain_thread(&mut self, thread: &ThreadId, explanation: &mut Explanation, now: Timestamp) {
        if let Some(lane) = self.work.lanes.get(thread) {
            let waiting = |id: &TurnId| {
                let turn = self.work.turns.get(id)?;
                Some(WaitingInput {
                    turn: id.clone(),
                    reason: waits_to_begin(turn, now),
                    age_ms: now.since_ms(turn.known_at).max(0),
                    steps_aside: turn.waiting(now) == WaitingTurn::StepsAside,
                })
            };
            explanation.waiting = lane.waiting().filter_map(waiting).collect();
            if let Some(active) = lane.active().cloned() {
                explanation.active = self.active_turn(&active, now);
            }
        }
        explanation.open = self.open_messages(thread, now);
        if explanation.active.is_none() && explanation.waiting.is_empty() {
            explanation.reason = self.is_not_known_yet();
        }
    }

    fn open_messages(&mut self, thread: &ThreadId, now: Timestamp) -> Vec<OpenMessage> {
        let (time, timeout_ms) = (self.clock.now(now), self.limits.gap_timeout_ms);
        let slots: Vec<Slot> = self.messages.slots_of_thread(thread).take(MOST_OPEN).collect();
        let open = |slot| {
            let open = self.messages.get_mut(slot).filter(|open| open.phase != Phase::Ended)?;
            Some(OpenMessage {
                message: open.key.message.clone(),
                buffer: open.buffer_state(time),
                gap_for_ms: open.gap_ms(time).map(|age_ms| (timeout_ms - age_ms).max(0)),
            })
        };
        slots.into_iter().filter_map(open).collect()
    }

    /// Orders after it wait for the store's word, or for room.
    fn known_up_to(&self) -> Seq {
        let waiting = [self.orders.first(), self.deferring.map(|(seq, _)| seq)].into_iter().flatten().min();
        waiting.map_or(self.last_seq, |seq| self.last_seq.min(Seq(seq.0.saturating_sub(1))))
    }

    /// What is not known may stand unread in the stream.
    fn is_not_known_yet(&self) -> Option<WaitReason> {
        (!self.has_caught_up).then_some(WaitReason::CatchingUp)
    }

    fn explain_agent(&self, agent: &AgentId, explanation: &mut Explanation, now: Timestamp) {
        explanation.reason = None;
        let Some(queue) = self.work.queues.get(agent) else { return };
        explanation.paused = queue.paused;
        explanation.head = queue.first().map(|first| first.task.id.clone());
        let is_thread_busy = explanation.active.is_some() || !explanation.waiting.is_empty();
        explanation.reason = match queue.standing(now) {
            Head::None | Head::Busy => None,
            Head::Paused => Some(WaitReason::Paused),
            Head::Waits(until) => {
                let postponed = self.work.postponed_queues.get(agent).map(|postponed| postponed.reason(now));
                postponed.or(Some(WaitReason::Backoff { for_ms: until.since_ms(now) }))
            }
            Head::Away | Head::Ready if !self.has_caught_up => Some(WaitReason::CatchingUp),
            // A moment: the commit that says what is next is under way.
            Head::Unsettled => Some(WaitReason::HeadOfLine),
            Head::Away | Head::Ready if is_thread_busy => Some(WaitReason::HeadOfLine),
            Head::Away | Head::Ready => Some(WaitReason::Capacity),
        };
    }

    fn active_turn(&mut self, id: &TurnId, now: Timestamp) -> Option<ActiveTurn> {
        let time = self.clock.now(now);
        let turn = self.work.turns.get(id)?;
        let has_gap = match turn.slot.and_then(|slot| self.messages.get_mut(slot)) {
            Some(open) => open.gap_ms(time).is_some(),
            None => false,
        };
        let turn = self.work.turns.get(id)?;
        Some(ActiveTurn {
            turn: id.clone(),
            thread: turn.thread.clone(),
            run: turn.run,
            message: id.answer(turn.run),
            waits_for: waits_for(turn, has_gap, now),
            idle_ms: time.since_ms(turn.progress_at).max(0),
        })
    }
}

/// Why an input does not begin.
fn waits_to_begin(turn: &Turn, now: Timestamp) -> WaitReason {
    match turn.postponed {
        Some(postponed) if now < postponed.until => postponed.reason(now),
        Some(_) | None => WaitReason::HeadOfLine,
    }
}

fn waits_for(turn: &Turn, has_gap: bool, now: Timestamp) -> Option<WaitReason> {
    match turn.phase {
        TurnPhase::Waiting => Some(waits_to_begin(turn, now)),
        TurnPhase::Starting | TurnPhase::Running if has_gap => Some(WaitReason::Gap),
        TurnPhase::Starting | TurnPhase::Running if !turn.is_heard => Some(WaitReason::NoWorkflow),
        TurnPhase::Starting | TurnPhase::Running | TurnPhase::Ended => None,
    }
}
