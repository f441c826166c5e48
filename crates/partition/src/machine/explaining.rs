//! Why something waits.

use model::{AgentId, Seq, ThreadId, Timestamp, TurnId};
use scheduling::Head;

use super::Partition;
use crate::turn::{Turn, TurnPhase};
use crate::turns::{About, ActiveTurn, Explanation, Question, WaitReason};

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
                    let is_waiting = explanation.waiting.contains(id);
                    explanation.reason = is_waiting.then_some(WaitReason::HeadOfLine);
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
            explanation.waiting = lane.waiting().cloned().collect();
            if let Some(active) = lane.active().cloned() {
                explanation.active = self.active_turn(&active, now);
            }
        }
        if explanation.active.is_none() && explanation.waiting.is_empty() {
            explanation.reason = self.is_not_known_yet();
        }
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
            Head::Waits(until) => Some(WaitReason::Backoff { for_ms: until.since_ms(now) }),
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
            waits_for: waits_for(turn, has_gap),
            idle_ms: time.since_ms(turn.progress_at).max(0),
        })
    }
}

fn waits_for(turn: &Turn, has_gap: bool) -> Option<WaitReason> {
    match turn.phase {
        TurnPhase::Waiting => Some(WaitReason::HeadOfLine),
        TurnPhase::Starting | TurnPhase::Running if has_gap => Some(WaitReason::Gap),
        TurnPhase::Starting | TurnPhase::Running if !turn.is_heard => Some(WaitReason::NoWorkflow),
        TurnPhase::Starting | TurnPhase::Running | TurnPhase::Ended => None,
    }
}
