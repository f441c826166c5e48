//! Usage of an ended turn: its known model calls, whatever the outcome.

use model::{AnswerReport, FinishReason, Message, MessageKey, ModelCall, TaskKind, TurnId, UsageKind};

use crate::open::OpenMessage;
use crate::turn_state::{TrackedTurn, TurnEnd, TurnSource};
use crate::types::UsageWrite;

/// Ledger rows of an ended turn; `open` is the part of its answer that has come.
pub(super) fn usage(turn: &TrackedTurn, open: Option<&OpenMessage>) -> Vec<UsageWrite> {
    let calls = open.map(OpenMessage::model_calls).unwrap_or_default();
    let finish_reason = finish_reason(turn, open);
    let is_partial = turn.end() != Some(&TurnEnd::Complete);
    let write = |(number, call)| UsageWrite {
        turn: turn.id.clone(),
        answer: MessageKey { thread: turn.thread.clone(), message: turn.id.answer(turn.run) },
        number,
        agent: turn.agent().clone(),
        kind: kind(turn),
        call,
        is_partial,
        finish_reason,
    };
    (0..).zip(calls).map(write).collect()
}

/// Adds the usage of the answer to the metadata of its last message. Returns the values that the
/// end of the answer reports. `written`: rows of the ledger.
pub(super) fn report(id: &TurnId, messages: &mut [Message], written: &[UsageWrite]) -> AnswerReport {
    let Some(answer) = messages.last_mut() else { return AnswerReport::default() };
    let calls = written.iter().filter(|row| row.turn == *id && row.answer.message == answer.key.message);
    let calls: Vec<ModelCall> = calls.map(|row| row.call.clone()).collect();
    answer.metadata = std::mem::take(&mut answer.metadata).with_usage_of(&calls);
    AnswerReport::of_stored(&answer.metadata)
}

fn finish_reason(turn: &TrackedTurn, open: Option<&OpenMessage>) -> Option<FinishReason> {
    match turn.end()? {
        TurnEnd::Complete => {
            let last = open.and_then(|open| open.released.last());
            Some(last.map_or(FinishReason::Stop, |last| FinishReason::of(&last.metadata)))
        }
        TurnEnd::Stopped => Some(FinishReason::Stopped),
        TurnEnd::Failed(_) | TurnEnd::Withdrawn(_) => None,
    }
}

/// Purpose of the turn's calls.
pub(super) fn kind(turn: &TrackedTurn) -> UsageKind {
    match &turn.source {
        TurnSource::Input(_) if turn.is_follow_up() => UsageKind::FollowUp,
        TurnSource::Input(_) => UsageKind::Turn,
        TurnSource::Task(queued) => match queued.task.kind {
            TaskKind::Compaction => UsageKind::Summary,
            TaskKind::Memory => UsageKind::Memory,
            TaskKind::Task | TaskKind::WorkRequest => UsageKind::Turn,
        },
    }
}
