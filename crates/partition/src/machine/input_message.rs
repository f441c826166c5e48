//! The message that a turn answers, as stored.

use model::{BatchType, Message, MessageKey, MessageTimes, Metadata, OpenInput, Placement, Position, Role};

use crate::turn_state::{TrackedTurn, TurnSource};

/// Metadata key of the sender's id for tracing.
const CORRELATION_ID: &str = "correlation_id";

pub(super) fn input_message(turn: &TrackedTurn, position: Position) -> Message {
    let (content, metadata, batch_type) = match &turn.source {
        TurnSource::Input(opened) => {
            let is_request = !turn.is_follow_up();
            let batch_type = if is_request { BatchType::UserRequest } else { BatchType::SystemTrigger };
            (
                opened.content.clone(),
                with_correlation_id(opened.input_metadata().into_owned(), turn),
                batch_type,
            )
        }
        TurnSource::Task(queued) => {
            let task = &queued.task;
            (task.content.clone(), task.input_metadata(), task.batch_type())
        }
    };
    // The store knows the end of the continued batch, and continues its numbering.
    let (batch_id, batch_type) = match turn.continues() {
        Some(batch_id) if batch_id < position => (batch_id, BatchType::Continuation),
        Some(_) | None => (position, batch_type),
    };
    Message {
        key: MessageKey { thread: turn.thread.clone(), message: turn.id.input() },
        placement: Placement { position, batch_id, sequence_num: 0, batch_type },
        role: Role::User,
        content,
        tool_calls: None,
        tool_call_id: None,
        metadata,
        token_count: None,
        attempt: 0,
        times: MessageTimes::default(),
    }
}

/// The input as subscribers are shown it before its turn is committed; `None` if no person has sent
/// it.
pub(super) fn open_input(turn: &TrackedTurn) -> Option<OpenInput> {
    let TurnSource::Input(opened) = &turn.source else { return None };
    turn.is_real().then(|| OpenInput {
        turn: turn.id.clone(),
        run: turn.run,
        content: opened.content.clone(),
        metadata: with_correlation_id(opened.input_metadata().into_owned(), turn),
        accepted_at: turn.accepted_at(),
    })
}

/// Metadata with the input's correlation id, unless the sender has set another one there.
pub(super) fn with_correlation_id(metadata: Metadata, turn: &TrackedTurn) -> Metadata {
    let TurnSource::Input(opened) = &turn.source else { return metadata };
    match &opened.options.correlation_id {
        Some(id) if metadata.get(CORRELATION_ID).is_none() => metadata.with_text(CORRELATION_ID, id),
        Some(_) | None => metadata,
    }
}
