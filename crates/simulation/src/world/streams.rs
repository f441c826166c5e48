//! Publishes into the streams, and wakes the waiting readers.

use model::{Command, Frame, MessageKey, PartitionId, TurnId};
use partition::{EntryBody, RawPayload};

use super::World;
use crate::checker::turns::Ordered;
use crate::checker::{Publish, Published};
use crate::publisher::commands::{owner_of, partition_of};
use crate::world::event::{SessionEvent, WorldEvent};

impl World {
    pub(super) fn schedule_planned(&mut self) {
        if let Some(next) = self.planned.last() {
            let delay = next.at - self.time;
            self.schedule(delay, WorldEvent::Planned);
        }
    }

    pub(super) fn publish_planned(&mut self) {
        if let Some(planned) = self.planned.pop() {
            let seq = self.append(planned.partition, planned.body, planned.published);
            self.planned_seqs[usize::from(planned.partition.0)].push(seq);
        }
        self.schedule_planned();
    }

    /// Publishes a command of this world's operators, clients or owners.
    pub(super) fn publish_command(&mut self, command: Command) {
        let key = match &command {
            Command::Turn(opened) => opened.thread.as_str(),
            Command::Task(task) => task.agent.as_str(),
            Command::DelayedTask(delayed) => delayed.task.agent.as_str(),
            Command::Control(control) => control.subject.as_str(),
        };
        let partition = partition_of(key, self.scenario.partitions);
        let payload = format!("later order {}", self.commands.len()).into();
        let raw = RawPayload { subject: format!("orders.{partition}.{}", owner_of(&command)), payload };
        self.append(partition, EntryBody::Command(command, raw), Vec::new());
    }

    /// Publishes chunks of a workflow. Chunks without the right token are ignored.
    pub(super) fn publish_frame(&mut self, frame: Frame, is_asked: bool) {
        let partition = partition_of(frame.thread.as_str(), self.scenario.partitions);
        let published = |arrival: &model::IncomingChunk| Published::Chunk {
            key: MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() },
            attempt: arrival.attempt,
            chunk: arrival.chunk.clone(),
        };
        let published = if is_asked { frame.chunks.iter().map(published).collect() } else { Vec::new() };
        let of = frame.chunks.first().and_then(|arrival| TurnId::of_answer(&arrival.message));
        let seq = self.append(partition, EntryBody::Frame(frame), published);
        if let Some(run) = of.filter(|_| is_asked) {
            self.workflows.heard.entry(run).or_insert((seq, 0)).1 += 1;
        }
    }

    /// Stores an entry, wakes the waiting reader, and returns the sequence.
    fn append(&mut self, partition: PartitionId, body: EntryBody, published: Vec<Published>) -> u64 {
        let at_ms = self.time;
        let command = ordered(&body);
        if let EntryBody::Refused { subject, payload, .. } = &body
            && let Some(owner) = subject.split('.').nth(2)
        {
            self.garbage.push((owner.to_owned(), payload.clone()));
        }
        let log = &mut self.logs[usize::from(partition.0)];
        let seq = log.append(at_ms, body);
        self.ledger.extend(published.into_iter().map(|body| Publish { partition, seq, at_ms, body }));
        if let Some((command, payload)) = command {
            self.note(60, [u64::from(partition.0), seq, 0], || {
                format!("entry {partition}:{seq} {command:?}")
            });
            self.commands.push(Ordered { partition, seq, at_ms, payload, command });
        } else {
            self.note(61, [u64::from(partition.0), seq, 0], || format!("entry {partition}:{seq}"));
        }
        self.wake(partition);
        seq
    }

    fn wake(&mut self, partition: PartitionId) {
        for index in 0..self.workers.len() {
            let Some(session) = self.workers[index].sessions.get_mut(&partition) else { continue };
            if let Some((address, generation)) = session.woken() {
                let delay = self.rng.range(0, 5);
                self.schedule(delay, WorldEvent::Session(address, SessionEvent::Fetch { generation }));
            }
        }
    }
}

fn ordered(body: &EntryBody) -> Option<(Command, bytes::Bytes)> {
    let EntryBody::Command(command, raw) = body else { return None };
    Some((command.clone(), raw.payload.clone()))
}
