//! Publishing the outbox: tasks for agents and the ends of turns. What goes to the same subject goes in its order.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bus::{Bus, Disposition};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
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

/// The order in which items are sent: side by side, but one at a time to each subject.
#[derive(Default)]
struct Line {
    /// How much of each batch is left.
    left: HashMap<Position, usize>,
    /// What waits for the one before it, by subject; a subject is here for as long as one of its items is not sent.
    behind: HashMap<String, VecDeque<Item>>,
    /// What waits for room.
    ready: VecDeque<Item>,
}

pub(super) async fn run(
    bus: Bus,
    partitions: PartitionCount,
    mut batches: mpsc::UnboundedReceiver<OutboxBatch>,
    answered: mpsc::Sender<Input>,
) {
    let mut line = Line::default();
    let mut in_flight = FuturesUnordered::new();
    loop {
        while in_flight.len() < MOST_IN_FLIGHT
            && let Some(item) = line.ready.pop_front()
        {
            in_flight.push(send(bus.clone(), item));
        }
        let sent = tokio::select! {
            batch = batches.recv() => match batch {
                Some(batch) => {
                    let items = batch.outgoing.iter().map(|outgoing| item(batch.id, outgoing, partitions));
                    line.join(batch.id, items.collect())
                }
                None => return,
            },
            Some((batch, subject)) = in_flight.next() => line.leave(batch, &subject),
        };
        if let Some(batch) = sent
            && answered.send(Input::Sent(batch)).await.is_err()
        {
            return;
        }
    }
}

impl Line {
    /// The batch, when there is nothing in it.
    fn join(&mut self, batch: Position, items: Vec<Item>) -> Option<Position> {
        if items.is_empty() {
            return Some(batch);
        }
        self.left.insert(batch, items.len());
        for item in items {
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

    /// An item has been sent. The batch, when this was the last of it.
    fn leave(&mut self, batch: Position, subject: &str) -> Option<Position> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn items(batch: i64, subjects: &str) -> (Position, Vec<Item>) {
        let batch = Position::from_stored(batch);
        let item = |(number, subject): (usize, &str)| Item {
            batch,
            subject: subject.to_owned(),
            payload: Bytes::new(),
            content_type: wire::CONTENT_TYPE_JSON,
            id: format!("{batch}{subject}{number}"),
        };
        (batch, subjects.split(' ').enumerate().map(item).collect())
    }

    fn ready(line: &mut Line) -> Vec<String> {
        line.ready.drain(..).map(|item| item.id).collect()
    }

    #[test]
    fn what_goes_to_one_subject_goes_in_its_order() {
        let mut line = Line::default();
        let ((one, first), (two, second)) = (items(1, "a b a"), items(2, "a c"));
        assert_eq!((line.join(one, first), line.join(two, second)), (None, None));
        assert_eq!(ready(&mut line), ["1a0", "1b1", "2c1"]);
        assert_eq!(line.leave(two, "c"), None);
        assert_eq!(ready(&mut line), [] as [&str; 0]);
        assert_eq!(line.leave(one, "a"), None);
        assert_eq!(ready(&mut line), ["1a2"], "the second batch's waits behind all of the first's");
        assert_eq!(line.leave(one, "b"), None);
        assert_eq!(line.leave(one, "a"), Some(one));
        assert_eq!(ready(&mut line), ["2a0"]);
        assert_eq!(line.leave(two, "a"), Some(two));
        assert!(line.left.is_empty() && line.behind.is_empty() && line.ready.is_empty());
        assert_eq!(line.join(one, Vec::new()), Some(one));
    }
}
