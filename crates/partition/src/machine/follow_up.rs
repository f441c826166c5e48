//! Follow-ups: when they are armed, and how their turns end. A follow-up's turn is held back until
//! its commit, and withdrawn when a person writes first.

use model::{AnswerReport, Message, Metadata, Position, ThreadId, TimerId, TurnId};
use scheduling::follow_up::{ArmRefusal, Armed, FinishedTurn, arm};
use serde_json::json;

use super::Partition;
use super::timers::report;
use crate::action::{Action, MachineReport, TimerOutcome};
use crate::commit::Commit;
use crate::committing::{EndedInput, InFlight, TurnInFlight};
use crate::effects::Effects;
use crate::timers::{ArmedTimer, TimerEnd, TimerWrite};
use crate::turn_state::{SUPERSEDED_BY_MESSAGE, TrackedTurn, TurnEnd};
use crate::types::Outgoing;

/// Cause of withdrawal: the answer has neither text nor calls.
const NOTHING_TO_SAY: &str = "nothing_to_say";

impl Partition {
    /// Withdraws pending and active follow-ups in the thread, because a person's input has come. A
    /// follow-up whose commit is under way came first and stays.
    pub(super) fn withdraw_follow_ups(&mut self, thread: &ThreadId) {
        self.timers.supersede(thread);
        let Some(queue) = self.table.thread_queues.get(thread) else { return };
        let is_follow_up = |id: &&TurnId| self.table.turns.get(*id).is_some_and(TrackedTurn::is_follow_up);
        let found: Vec<TurnId> =
            queue.active().into_iter().chain(queue.waiting()).filter(is_follow_up).cloned().collect();
        for id in found {
            if self.committing.in_flight_turns().any(|turn| *turn == id) {
                continue;
            }
            match self.table.turns.get_mut(&id).and_then(TrackedTurn::ended_mut) {
                Some(ended) => ended.end = TurnEnd::Withdrawn(SUPERSEDED_BY_MESSAGE),
                None => self.end_turn(&id, TurnEnd::Withdrawn(SUPERSEDED_BY_MESSAGE)),
            }
        }
    }

    /// True for a follow-up's turn, which yields to a person.
    pub(super) fn is_follow_up(&self, id: &TurnId) -> bool {
        self.table.turns.get(id).is_some_and(TrackedTurn::is_follow_up)
    }

    /// True if this end has to wait: it ends a follow-up, and a person's input in the same thread
    /// is being checked.
    pub(super) fn must_wait_for_input(&self, ended: &EndedInput) -> bool {
        let EndedInput::Turn(id) = ended else { return false };
        let turn = self.table.turns.get(id).filter(|turn| turn.is_follow_up());
        turn.is_some_and(|turn| {
            turn.end() == Some(&TurnEnd::Complete) && self.commands.has_real_input(&turn.thread)
        })
    }

    /// Adds the end of a follow-up's turn: its messages, or only the end of its timer.
    pub(super) fn add_follow_up(
        &mut self,
        id: &TurnId,
        timer: TimerId,
        commit: &mut Commit,
        outgoing: &mut Vec<Outgoing>,
    ) -> Option<InFlight> {
        let end = self.table.turns.get(id)?.end().cloned()?;
        let by = match &end {
            TurnEnd::Complete => match self.messages_of(id, &end) {
                Ok(messages) if !messages.last().is_none_or(is_empty) => {
                    let position = messages.last().map_or(Position::MAX, |last| last.placement.position);
                    let (outcome, report) = self.complete(id, messages, &end, commit, outgoing);
                    let (id, outcome) = (id.clone(), Some(outcome));
                    let ended = TurnInFlight { id, position, outcome, report, wait_ms: None };
                    return Some(InFlight::Turn(ended));
                }
                Ok(_) => NOTHING_TO_SAY,
                Err(failure) => failure.kind(),
            },
            TurnEnd::Stopped => "stopped",
            TurnEnd::Failed(failure) => failure.kind(),
            TurnEnd::Withdrawn(by) => by,
        };
        let write = TimerWrite::End { id: timer, state: TimerEnd::Withdrawn, by: by.to_owned() };
        self.effects.push(report(&write, TimerOutcome::Withdrawn));
        commit.timers.push(write);
        let (position, report) = (Position::MAX, AnswerReport::default());
        let ended = TurnInFlight { id: id.clone(), position, outcome: None, report, wait_ms: None };
        Some(InFlight::Turn(ended))
    }
}

/// The timer write of a follow-up armed by a completed turn.
pub(super) fn armed(
    turn: &TrackedTurn,
    messages: &[Message],
    goes_on: bool,
    effects: &mut Effects,
) -> Option<TimerWrite> {
    let rules = turn.request.rules()?.follow_ups?;
    let answer = messages.last()?;
    let finished = FinishedTurn { is_complete: !goes_on, is_empty: is_empty(answer) };
    let timer = TimerId::follow_up(&turn.thread, answer.placement.position);
    match arm(&rules, finished, &answer.metadata) {
        Ok(None) => None,
        Ok(Some(armed)) => {
            let write = TimerWrite::Arm(ArmedTimer {
                id: timer,
                thread: Some(turn.thread.clone()),
                agent: turn.agent().clone(),
                wait_ms: armed.delay_ms,
                body: body(&turn.id, &armed, answer.placement.position),
                armed_by: Some(turn.id.clone()),
            });
            effects.push(report(&write, TimerOutcome::Armed));
            Some(write)
        }
        Err(refusal) => {
            effects.push(not_armed(timer, &refusal));
            None
        }
    }
}

fn not_armed(timer: TimerId, refusal: &ArmRefusal) -> Action {
    let by = Some(refusal.name().to_owned());
    Action::Report(MachineReport::Timer { timer, outcome: TimerOutcome::NotArmed, by })
}

/// True if the answer has neither text nor calls.
fn is_empty(answer: &Message) -> bool {
    answer.content.trim().is_empty() && answer.tool_calls.is_none()
}

fn body(turn: &TurnId, armed: &Armed, position: Position) -> Metadata {
    let body = json!({
        "trigger_type": armed.trigger.name(),
        "reason": armed.reason,
        "source": armed.source.name(),
        "armed_by": turn.as_str(),
        "armed_position": position.to_string(),
    });
    body.as_object().cloned().and_then(|body| Metadata::new(body).ok()).unwrap_or_default()
}
