//! The protobuf forms of what opens turns and tasks.

use model::{
    ContinuedBatch, FollowedTurn, InvalidMetadata, Metadata, Position, TaskOrigin, ThreadId, TimerId,
    TriggerType, TurnId, TurnOrigin,
};

use crate::convert::{self, InvalidField};
use crate::pb;

/// The field with the origin, in errors.
const ORIGIN: &str = "origin";

pub(crate) fn turn_origin(origin: pb::TurnOrigin) -> Result<TurnOrigin, InvalidField> {
    use pb::turn_origin::Kind;
    Ok(match origin.kind.ok_or(InvalidField::Missing(ORIGIN))? {
        Kind::Person(()) => TurnOrigin::of_person(&Metadata::EMPTY),
        Kind::Heartbeat(batch) => TurnOrigin::Heartbeat { batch: position("heartbeat", batch)? },
        Kind::Continuation(continued) => TurnOrigin::Continuation(continued_batch(continued)?),
        Kind::FollowUp(fired) => TurnOrigin::FollowUp {
            timer: TimerId::parse(&fired.timer_id)
                .map_err(|_| InvalidField::Enum("timer_id", format!("{:?}", fired.timer_id)))?,
            trigger: TriggerType::from_name(&fired.trigger_type)
                .ok_or_else(|| InvalidField::Enum("trigger_type", format!("{:?}", fired.trigger_type)))?,
            reason: without_nul(fired.reason)?,
        },
    })
}

pub(crate) fn task_origin(origin: pb::TaskOrigin) -> Result<TaskOrigin, InvalidField> {
    use pb::task_origin::Kind;
    Ok(match origin.kind.ok_or(InvalidField::Missing(ORIGIN))? {
        Kind::Sent(()) => TaskOrigin::of_sender(&Metadata::EMPTY),
        Kind::Scheduled(()) => TaskOrigin::of_schedule(&Metadata::EMPTY),
        Kind::AfterTurn(followed) => TaskOrigin::AfterTurn(FollowedTurn {
            thread: thread(&followed.session_id)?,
            turn: turn(&followed.turn_id)?,
            answer: convert::message_id(&followed.answer_id)?,
            batch: position("batch", followed.batch)?,
        }),
        Kind::Summary(wanted) => TaskOrigin::Summary {
            thread: thread(&wanted.session_id)?,
            compaction: position("compaction", wanted.compaction)?,
        },
        Kind::Continuation(continued) => TaskOrigin::Continuation(continued_batch(continued)?),
        Kind::ContinuationAfterTurn(work) => TaskOrigin::ContinuationAfterTurn {
            thread: thread(&work.session_id)?,
            answer: convert::message_id(&work.answer_id)?,
            continued: continued_batch(work.continuation.ok_or(InvalidField::Missing("continuation"))?)?,
        },
    })
}

fn continued_batch(continued: pb::ContinuedBatch) -> Result<ContinuedBatch, InvalidField> {
    let pb::ContinuedBatch { batch, number, turn_id } = continued;
    Ok(ContinuedBatch { batch: position("batch", batch)?, number, turn: turn(&turn_id)? })
}

/// The text is shown in the metadata of the input.
fn without_nul(text: String) -> Result<Box<str>, InvalidField> {
    if text.contains('\0') { Err(InvalidMetadata::Nul.into()) } else { Ok(text.into()) }
}

fn position(field: &'static str, number: i64) -> Result<Position, InvalidField> {
    match number {
        1.. => Ok(Position::from_stored(number)),
        _ => Err(InvalidField::Enum(field, number.to_string())),
    }
}

fn thread(text: &str) -> Result<ThreadId, InvalidField> {
    ThreadId::parse(text).map_err(|error| InvalidField::Id("session_id", error))
}

fn turn(text: &str) -> Result<TurnId, InvalidField> {
    TurnId::parse(text).map_err(InvalidField::Turn)
}

pub(crate) fn pb_turn_origin(origin: &TurnOrigin) -> pb::TurnOrigin {
    use pb::turn_origin::Kind;
    let kind = match origin {
        TurnOrigin::Person { .. } => Kind::Person(()),
        TurnOrigin::Heartbeat { batch } => Kind::Heartbeat(batch.get()),
        TurnOrigin::Continuation(continued) => Kind::Continuation(pb_continued_batch(continued)),
        TurnOrigin::FollowUp { timer, trigger, reason } => Kind::FollowUp(pb::FiredFollowUp {
            timer_id: timer.as_str().to_owned(),
            trigger_type: trigger.name().to_owned(),
            reason: reason.to_string(),
        }),
    };
    pb::TurnOrigin { kind: Some(kind) }
}

pub(crate) fn pb_task_origin(origin: &TaskOrigin) -> pb::TaskOrigin {
    use pb::task_origin::Kind;
    let kind = match origin {
        TaskOrigin::Sent { .. } => Kind::Sent(()),
        TaskOrigin::Scheduled { .. } => Kind::Scheduled(()),
        TaskOrigin::AfterTurn(followed) => Kind::AfterTurn(pb::FollowedTurn {
            session_id: followed.thread.as_str().to_owned(),
            turn_id: followed.turn.as_str().to_owned(),
            answer_id: followed.answer.as_str().to_owned(),
            batch: followed.batch.get(),
        }),
        TaskOrigin::Summary { thread, compaction } => Kind::Summary(pb::WantedSummary {
            session_id: thread.as_str().to_owned(),
            compaction: compaction.get(),
        }),
        TaskOrigin::Continuation(continued) => Kind::Continuation(pb_continued_batch(continued)),
        TaskOrigin::ContinuationAfterTurn { thread, answer, continued } => {
            Kind::ContinuationAfterTurn(pb::ContinuedWork {
                session_id: thread.as_str().to_owned(),
                answer_id: answer.as_str().to_owned(),
                continuation: Some(pb_continued_batch(continued)),
            })
        }
    };
    pb::TaskOrigin { kind: Some(kind) }
}

fn pb_continued_batch(continued: &ContinuedBatch) -> pb::ContinuedBatch {
    pb::ContinuedBatch {
        batch: continued.batch.get(),
        number: continued.number,
        turn_id: continued.turn.as_str().to_owned(),
    }
}
