//! Publishes commands to the partition's stream, where they are durable, in order, and read by the
//! partition's owner.

use std::time::Duration;

use bus::{BusError, Disposition, PublishAck};
use bytes::Bytes;
use http_server::error::{ErrorCode, Problem};
use model::{Bucket, Command, Control, Note, Task, TurnOpened};
use wire::{CONTENT_TYPE_PROTOBUF, DecodeLimits, Decoded, subject};

use crate::backend::Backend;
use crate::metrics;

/// Maximum time for a stream to store a command: an election among its servers is over by then.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Error code of a command that may or may not have been stored.
pub(crate) const UNCONFIRMED: ErrorCode = ErrorCode::NatsUnavailable;
/// Commands contain no chunks.
const NO_CHUNKS: usize = 0;

/// Stores the input of a turn.
pub(crate) async fn publish_turn(context: &Backend, opened: &TurnOpened) -> Result<(), Problem> {
    let subject = subject::partition_commands(context.count, opened.thread.as_str());
    let kind = if opened.run == 0 { "turn" } else { "retry_turn" };
    let payload = wire::encode_opened(opened);
    decoded(context, opened.thread.bucket(), &subject, &payload)?;
    store(context, kind, &subject, payload).await?;
    if opened.run == 0 && !opened.origin.is_synthetic() {
        context.note_activity(&opened.thread, &opened.agent, &opened.content);
    }
    Ok(())
}

/// The task as its owner will decode it.
pub(crate) fn task_as_read(context: &Backend, task: &Task) -> Result<Task, Problem> {
    let subject = subject::partition_tasks(context.count, &task.agent);
    match decoded(context, task.bucket(), &subject, &wire::encode_task(task))? {
        Decoded::Command(Command::Task(read)) => Ok(read),
        Decoded::Command(_) | Decoded::Frame(_) => Ok(task.clone()),
    }
}

pub(crate) async fn publish_task(context: &Backend, task: &Task) -> Result<(), Problem> {
    let subject = subject::partition_tasks(context.count, &task.agent);
    store(context, "task", &subject, wire::encode_task(task)).await
}

pub(crate) async fn publish_note(context: &Backend, note: &Note) -> Result<(), Problem> {
    let subject = subject::partition_commands(context.count, note.thread.as_str());
    let payload = wire::encode_note(note);
    decoded(context, note.thread.bucket(), &subject, &payload)?;
    store(context, "note", &subject, payload).await
}

pub(crate) async fn publish_control(context: &Backend, act: &Control) -> Result<(), Problem> {
    let subject = subject::control_subject(context.count, act);
    let payload = wire::encode_control(act);
    decoded(context, Bucket::of_key(act.subject.as_str()), &subject, &payload)?;
    store(context, "act", &subject, payload).await
}

/// Decodes a payload as its owner will, so that nothing is sent that the owner would refuse.
fn decoded(context: &Backend, bucket: Bucket, subject: &str, payload: &Bytes) -> Result<Decoded, Problem> {
    let limits = DecodeLimits { chunk_bytes: NO_CHUNKS, partitions: context.count };
    let p = bucket.partition(context.count);
    wire::decode_entry(p, subject, Some(CONTENT_TYPE_PROTOBUF), payload, &limits).map_err(Problem::of_command)
}

/// Stores the payload of a dead letter again. The payload is unchanged, so its encoding is detected
/// as it was the first time. The stream drops a repetition with the same id within its duplicate
/// window.
pub(crate) async fn publish_again(
    context: &Backend,
    subject: &str,
    payload: Bytes,
    id: &str,
) -> Result<PublishAck, Problem> {
    let stored = context.bus.publish_with_id(subject, payload, None, id, PUBLISH_TIMEOUT).await;
    stored_or_refused("replay", subject, stored)
}

async fn store(context: &Backend, kind: &'static str, subject: &str, payload: Bytes) -> Result<(), Problem> {
    let (content_type, trace) = (Some(CONTENT_TYPE_PROTOBUF), runtime::traces::current());
    let stored = context
        .bus
        .publish_traced(subject, payload, content_type, None, trace.as_ref(), PUBLISH_TIMEOUT)
        .await;
    stored_or_refused(kind, subject, stored).map(drop)
}

fn stored_or_refused(
    kind: &'static str,
    subject: &str,
    stored: Result<PublishAck, BusError>,
) -> Result<PublishAck, Problem> {
    metrics::command(kind, stored.is_ok());
    let error = match stored {
        Ok(ack) => return Ok(ack),
        Err(error) => error,
    };
    tracing::warn!(subject, kind, %error, "an order could not be stored");
    Err(match (&error, error.disposition()) {
        (BusError::TooLarge(_), _) => Problem::new(ErrorCode::InputTooLarge, error.to_string()),
        // Usually the stream is full: publishers get an error, and nothing is dropped.
        (BusError::JetStream { .. }, _) | (_, Disposition::Reject | Disposition::Fatal) => {
            Problem::from(ErrorCode::StreamFull)
        }
        (_, Disposition::Retry) => Problem::new(
            UNCONFIRMED,
            "NATS did not confirm that it has stored this; try again with the same ids or the same Idempotency-Key",
        ),
    })
}
