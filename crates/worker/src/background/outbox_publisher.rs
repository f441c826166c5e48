//! Publishes the outbox: tasks for agents and ends of turns. Messages to the same subject are sent
//! in order.

use std::time::Duration;

use bus::{Bus, BusError, Disposition};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use model::{PartitionCount, PartitionId, Position, Seq};
use partition::{Input, OutboxBatch, Outgoing, TurnEnded};
use runtime::traces::TraceContext;
use runtime::{Backoff, retry};
use store::Store;
use tokio::sync::mpsc;
use wire::work::TurnEvent;

use super::publish_queue::{OutboxMessage, OutboxMessages, PublishQueue};
use super::store_lookups::StoreReader;
use crate::context::Context;

/// Maximum number of publishes that wait for acknowledgments.
const MOST_IN_FLIGHT: usize = 256;
/// Timeout of one try.
const OUTBOX_PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of the outbox that was not loaded into the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboxBacklog {
    pub(crate) partition: PartitionId,
    /// Last batch that was loaded.
    pub(crate) after: Option<Position>,
    pub(crate) count: usize,
}

pub(super) async fn run(
    context: Context,
    backlog: OutboxBacklog,
    mut batches: mpsc::UnboundedReceiver<OutboxBatch>,
    reader: StoreReader,
) {
    let partitions = context.config.partitions;
    let mut line = PublishQueue::with_rest(backlog.after, backlog.count);
    let (mut in_flight, mut reading) = (FuturesUnordered::new(), None);
    loop {
        while in_flight.len() < MOST_IN_FLIGHT
            && let Some(item) = line.next()
        {
            in_flight.push(send(context.bus.clone(), item));
        }
        if reading.is_none()
            && let Some((after, count)) = line.wants()
        {
            reading = Some(read(context.store.clone(), backlog.partition, after, count, &reader).boxed());
        }
        let sent: Vec<Position> = tokio::select! {
            batch = batches.recv() => match batch {
                Some(batch) => line.take(items(&batch, partitions)).into_iter().collect(),
                None => return,
            },
            Some((batch, subject)) = in_flight.next() => line.leave(batch, &subject).into_iter().collect(),
            page = pending_or_never(&mut reading) => {
                reading = None;
                match page {
                    Some(page) => line.read(page.iter().map(|batch| items(batch, partitions)).collect()),
                    None => return,
                }
            }
        };
        for batch in sent {
            if reader.answered.send(Input::Sent(batch)).await.is_err() {
                return;
            }
        }
    }
}

/// Reads `count` batches; `None` when the session has ended, or must end because another owner has
/// changed the outbox.
async fn read(
    store: Store,
    partition: PartitionId,
    after: Position,
    count: usize,
    reader: &StoreReader,
) -> Option<Vec<OutboxBatch>> {
    let ask = || store.outbox(partition, Some(after), count);
    let page = reader.until_answered("reading the outbox", ask).await?;
    if page.len() < count {
        tracing::error!(%partition, "the outbox has become shorter by itself: the partition is rebuilt");
        return None;
    }
    Some(page)
}

async fn pending_or_never<T>(reading: &mut Option<BoxFuture<'_, T>>) -> T {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

fn items(batch: &OutboxBatch, partitions: PartitionCount) -> OutboxMessages {
    if batch.outgoing.is_empty() {
        // Empty batches are never written: the store could not read this one, and has logged why.
        metrics::counter!(crate::metrics::OUTBOX_FAILED).increment(1);
    }
    (batch.id, batch.outgoing.iter().map(|outgoing| item(batch.id, outgoing, partitions)).collect())
}

fn item(batch: Position, outgoing: &Outgoing, partitions: PartitionCount) -> OutboxMessage {
    match outgoing {
        Outgoing::Task(task) => OutboxMessage {
            batch,
            subject: wire::subject::partition_commands(partitions, task.agent.as_str()),
            payload: wire::encode_task_of_fleet(task),
            content_type: wire::CONTENT_TYPE_PROTOBUF,
            // Two agents of one partition may each have a task with the same id.
            id: format!("{}.{}", task.agent, task.id),
        },
        Outgoing::Pause(pause) => OutboxMessage {
            batch,
            subject: wire::subject::partition_commands(partitions, pause.agent.as_str()),
            payload: wire::encode_control(&pause.control()),
            content_type: wire::CONTENT_TYPE_PROTOBUF,
            id: pause.id.as_str().to_owned(),
        },
        Outgoing::TurnEnded(ended) => OutboxMessage {
            batch,
            subject: wire::subject::turns(&ended.thread),
            payload: serde_json::to_vec(&event(ended)).unwrap_or_default().into(),
            content_type: wire::CONTENT_TYPE_JSON,
            // Each run of a turn ends in one commit, and so in one batch.
            id: format!("{}.{batch}", ended.turn),
        },
    }
}

fn event(ended: &TurnEnded) -> TurnEvent {
    TurnEvent {
        turn_id: ended.turn.as_str().to_owned(),
        thread_id: ended.thread.as_str().to_owned(),
        agent_id: ended.agent.as_str().to_owned(),
        status: ended.status.name().to_owned(),
        task_id: ended.task.as_ref().map(|task| task.as_str().to_owned()),
        message_id: ended.message.as_ref().map(|message| message.as_str().to_owned()),
        batch_id: ended.batch.map(|batch| batch.to_string()),
        code: ended.code.clone(),
    }
}

/// Retries until the message is stored. A message that can never be stored is logged and skipped,
/// because it would block all later ones.
async fn send(bus: Bus, item: OutboxMessage) -> (Position, String) {
    let OutboxMessage { subject, payload, content_type, id, .. } = &item;
    let sent = retry(Backoff::default(), "publishing the outbox", || async {
        publish_once(&bus, subject, payload.clone(), content_type, id, None, OUTBOX_PUBLISH_TIMEOUT).await
    });
    if let Err(error) = sent.await {
        metrics::counter!(crate::metrics::OUTBOX_FAILED).increment(1);
        tracing::error!(subject, id, %error, "something in the outbox can never be published");
    }
    (item.batch, item.subject)
}

/// A retry may cure the outer error, but never the inner one.
pub(super) async fn publish_once(
    bus: &Bus,
    subject: &str,
    payload: Bytes,
    content_type: &str,
    id: &str,
    trace: Option<&TraceContext>,
    timeout: Duration,
) -> Result<Result<Seq, BusError>, BusError> {
    match bus.publish_traced(subject, payload, Some(content_type), Some(id), trace, timeout).await {
        Ok(ack) => Ok(Ok(ack.seq)),
        Err(error) => match error.disposition() {
            Disposition::Reject => Ok(Err(error)),
            Disposition::Retry => Err(error),
            Disposition::Fatal => {
                tracing::error!(subject, id, %error, "refused, and tried again");
                Err(error)
            }
        },
    }
}
