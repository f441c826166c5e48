//! Publishing the outbox: tasks for agents and the ends of turns. What goes to the same subject goes in its order.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bus::{Bus, Disposition};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use model::{PartitionCount, Position};
use partition::{Input, OutboxBatch, Outgoing, TurnEnded};
use runtime::Backoff;
use tokio::sync::mpsc;
use wire::work::TurnEvent;

/// Publishes that wait for their acks at a time.
const MOST_IN_FLIGHT: usize = 256;
/// One try.
const PATIENCE: Duration = Duration::from_secs(5);

/// One message of a batch.
struct Item {
    batch: Position,
    subject: String,
    payload: Bytes,
    content_type: &'static str,
    id: String,
}

struct Sends {
    bus: Bus,
    partitions: PartitionCount,
    /// How much of each batch is left.
    left: HashMap<Position, usize>,
    /// What waits for the one before it, by subject; a subject is here for as long as it has one in flight.
    behind: HashMap<String, VecDeque<Item>>,
    /// What waits for room.
    ready: VecDeque<Item>,
    in_flight: FuturesUnordered<BoxFuture<'static, (Position, String)>>,
}

pub(super) async fn run(
    bus: Bus,
    partitions: PartitionCount,
    mut batches: mpsc::UnboundedReceiver<OutboxBatch>,
    answered: mpsc::Sender<Input>,
) {
    let mut sends = Sends {
        bus,
        partitions,
        left: HashMap::new(),
        behind: HashMap::new(),
        ready: VecDeque::new(),
        in_flight: FuturesUnordered::new(),
    };
    loop {
        sends.go_on();
        let sent = tokio::select! {
            batch = batches.recv() => match batch {
                Some(batch) => sends.take(batch),
                None => return,
            },
            Some((batch, subject)) = sends.in_flight.next() => sends.settle(batch, &subject),
        };
        if let Some(batch) = sent
            && answered.send(Input::Sent(batch)).await.is_err()
        {
            return;
        }
    }
}

impl Sends {
    /// The batch, when there is nothing in it.
    fn take(&mut self, batch: OutboxBatch) -> Option<Position> {
        let OutboxBatch { id, outgoing } = batch;
        if outgoing.is_empty() {
            return Some(id);
        }
        self.left.insert(id, outgoing.len());
        for outgoing in outgoing {
            let item = item(id, &outgoing, self.partitions);
            match self.behind.get_mut(&item.subject) {
                Some(behind) => behind.push_back(item),
                None => {
                    self.behind.insert(item.subject.clone(), VecDeque::new());
                    self.ready.push_back(item);
                }
            }
        }
        None
    }

    fn go_on(&mut self) {
        while self.in_flight.len() < MOST_IN_FLIGHT
            && let Some(item) = self.ready.pop_front()
        {
            self.in_flight.push(send(self.bus.clone(), item).boxed());
        }
    }

    /// The batch, when this was the last of it.
    fn settle(&mut self, batch: Position, subject: &str) -> Option<Position> {
        match self.behind.get_mut(subject).and_then(VecDeque::pop_front) {
            Some(next) => self.ready.push_back(next),
            None => drop(self.behind.remove(subject)),
        }
        let left = self.left.get_mut(&batch)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.left.remove(&batch);
        Some(batch)
    }
}

fn item(batch: Position, outgoing: &Outgoing, partitions: PartitionCount) -> Item {
    match outgoing {
        Outgoing::Task(task) => Item {
            batch,
            subject: wire::subject::tasks_exact(partitions, &task.agent),
            payload: wire::encode_task(task),
            content_type: wire::CONTENT_TYPE_PROTOBUF,
            // Two agents of one partition may each have a task of this id.
            id: format!("{}.{}", task.agent, task.id),
        },
        Outgoing::TurnEnded(ended) => Item {
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

/// Tries until it is stored. What can never be is told and passed over: it would hold up what comes after it for ever.
async fn send(bus: Bus, item: Item) -> (Position, String) {
    let mut backoff = Backoff::default();
    loop {
        let Item { subject, payload, content_type, id, .. } = &item;
        let error =
            match bus.publish_with_id(subject, payload.clone(), Some(content_type), id, PATIENCE).await {
                Ok(_) => break,
                Err(error) => error,
            };
        match error.disposition() {
            Disposition::Reject => {
                metrics::counter!("antiphon_worker_unsendable_total").increment(1);
                tracing::error!(subject, id, %error, "something in the outbox can never be published");
                break;
            }
            Disposition::Retry => tracing::debug!(subject, %error, "still publishing the outbox"),
            Disposition::Fatal => {
                tracing::error!(subject, %error, "the outbox is refused and is tried again")
            }
        }
        backoff.wait().await;
    }
    (item.batch, item.subject)
}
