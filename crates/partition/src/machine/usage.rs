//! What an ended turn has used: the calls of models that are known, whatever became of the turn.

use model::{MessageKey, TaskKind, UsageKind};

use crate::open::OpenMessage;
use crate::turn_state::{TrackedTurn, TurnEnd, TurnSource};
use crate::types::UsageWrite;

/// The rows of a turn that has ended; `open` is its answer, as far as it has come.
pub(super) fn usage(turn: &TrackedTurn, open: Option<&OpenMessage>) -> Vec<UsageWrite> {
    let calls = open.map(OpenMessage::model_calls).unwrap_or_default();
    let is_partial = turn.end != Some(TurnEnd::Complete);
    let write = |(number, call)| UsageWrite {
        turn: turn.id.clone(),
        answer: MessageKey { thread: turn.thread.clone(), message: turn.id.answer(turn.run) },
        number,
        agent: turn.agent.clone(),
        kind: kind(turn),
        call,
        is_partial,
    };
    (0..).zip(calls).map(write).collect()
}

/// What the calls of the turn are made for.
pub(super) fn kind(turn: &TrackedTurn) -> UsageKind {
    match &turn.source {
        TurnSource::Input(_) if turn.timer.is_some() => UsageKind::FollowUp,
        TurnSource::Input(_) => UsageKind::Turn,
        TurnSource::Task(queued) => match queued.task.kind {
            TaskKind::Compaction => UsageKind::Summary,
            TaskKind::Memory => UsageKind::Memory,
            TaskKind::Task | TaskKind::WorkRequest => UsageKind::Turn,
        },
    }
}
