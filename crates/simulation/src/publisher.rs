//! What publishers put into the streams: messages with every fault that a publisher may have.

pub(crate) mod commands;

use std::sync::Arc;

use bytes::Bytes;
use model::{
    Chunk, ChunkKind, Command, Frame, IncomingChunk, MessageId, MessageKey, Metadata, PartitionCount,
    PartitionId, RejectedEntry, Role, ThreadId,
};
use partition::{EntryBody, RawPayload};
use serde_json::{Map, Value};

use crate::checker::Published;
use crate::rng::Rng;
use crate::scenario::Scenario;

/// The planned entries in order of time, and the threads.
pub(crate) struct PublishPlan {
    pub(crate) entries: Vec<Planned>,
    pub(crate) threads: Vec<(ThreadId, PartitionId)>,
}

/// An entry that will be stored.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) at: i64,
    pub(crate) partition: PartitionId,
    pub(crate) body: EntryBody,
    pub(crate) published: Vec<Published>,
}

struct Sending {
    at: i64,
    thread: usize,
    what: SentBody,
}

enum SentBody {
    Chunk(IncomingChunk),
    Garbage(Bytes),
    Command(Command),
}

/// Plans everything that is published.
pub(crate) fn publish(scenario: &Scenario, rng: &mut Rng) -> PublishPlan {
    let count = PartitionCount::new(scenario.partitions.into()).ok();
    let threads: Vec<(ThreadId, PartitionId)> = (0..scenario.threads)
        .filter_map(|n| ThreadId::parse(&format!("t{n}")).ok())
        .map(|thread| {
            let partition = count.map_or(PartitionId(0), |count| thread.bucket().partition(count));
            (thread, partition)
        })
        .collect();
    let mut sendings = Vec::new();
    for number in 0..scenario.messages {
        message(number, scenario, rng, &mut sendings);
        if rng.chance(scenario.publishing.garbage) {
            let payload = Bytes::from(format!("garbage {number}"));
            let (at, thread) = (rng.range(0, scenario.faults_until), rng.index(threads.len()));
            sendings.push(Sending { at, thread, what: SentBody::Garbage(payload) });
        }
    }
    for (at, thread, command) in commands::plan(scenario, &threads, rng) {
        sendings.push(Sending { at, thread, what: SentBody::Command(command) });
    }
    // The sort is stable: sendings with equal times keep their planned order.
    sendings.sort_by_key(|sending| sending.at);
    append(sendings, threads, scenario, rng)
}

fn message(number: usize, scenario: &Scenario, rng: &mut Rng, sendings: &mut Vec<Sending>) {
    let Ok(message) = MessageId::parse(&format!("m{number}")) else { return };
    let thread = rng.index(scenario.threads);
    let rates = &scenario.publishing;
    let mut start = rng.range(0, scenario.faults_until * 9 / 10);
    let attempts = if rng.chance(rates.attempts) { rng.range(2, 3) as u32 } else { 1 };
    for attempt in 0..attempts {
        let pace = if rng.chance(rates.slow) { rng.range(40, 500) } else { rng.pick([0, 2, 15]) };
        let mut chunks = chunks(number, attempt, scenario, rng);
        let arrivals = |chunk: Chunk| IncomingChunk {
            message: message.clone(),
            attempt,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(chunk),
        };
        if attempt + 1 < attempts {
            chunks.truncate(rng.index(chunks.len()) + 1);
        }
        let end = start + pace * chunks.len() as i64;
        for (at, chunk) in schedule(chunks, start, pace, scenario, rng) {
            sendings.push(Sending { at, thread, what: SentBody::Chunk(arrivals(chunk)) });
        }
        // The next attempt sometimes overlaps with the last one.
        start = end + rng.range(-100, 600).max(start - end);
    }
}

/// The chunks of one attempt in order, including their faults.
fn chunks(number: usize, attempt: u32, scenario: &Scenario, rng: &mut Rng) -> Vec<Chunk> {
    let rates = &scenario.publishing;
    let most = rng.pick([1, 1, 4, 12, 30, 60]);
    let count = rng.range(1, most) as u32;
    let mut chunks: Vec<Chunk> = (0..count)
        .map(|id| {
            let mut chunk = Chunk::content(id, &format!("{number}.{attempt}.{id} "), id + 1 == count);
            if rng.chance(0.05) {
                chunk.kind = ChunkKind::Metadata;
            }
            if chunk.is_final && rng.chance(0.5) {
                let tokens = Map::from_iter([("tokens_used".to_owned(), Value::from(count))]);
                chunk.metadata = Metadata::new(tokens).unwrap_or_default();
            }
            chunk
        })
        .collect();
    if rng.chance(rates.error) {
        let index = rng.index(chunks.len());
        chunks[index].kind = ChunkKind::Error;
    }
    if rng.chance(rates.unfinished)
        && let Some(last) = chunks.last_mut()
    {
        last.is_final = false;
    }
    if rng.chance(rates.final_conflict) {
        let id = rng.below(u64::from(count) + 3) as u32;
        chunks.push(Chunk::content(id, "second final ", true));
    }
    chunks
}

/// Sets when each chunk is stored: shuffled within a window, lost, repeated at once or much later,
/// contradicted.
fn schedule(
    chunks: Vec<Chunk>,
    start: i64,
    pace: i64,
    scenario: &Scenario,
    rng: &mut Rng,
) -> Vec<(i64, Chunk)> {
    let rates = &scenario.publishing;
    let window = rng.pick([1, 1, 4, 16, 64]);
    let lost = rng.chance(rates.lost).then(|| rng.index(chunks.len()));
    let conflict = rng.chance(rates.conflict).then(|| rng.index(chunks.len()));
    let mut command: Vec<(i64, usize)> =
        (0..chunks.len()).map(|index| (index as i64 + rng.range(0, window - 1), index)).collect();
    command.sort_unstable();
    let mut sent = Vec::new();
    for (slot, (_, index)) in command.into_iter().enumerate() {
        if lost == Some(index) {
            continue;
        }
        let chunk = &chunks[index];
        let at = start + pace * slot as i64 + rng.range(0, pace);
        sent.push((at, chunk.clone()));
        if rng.chance(rates.duplicate) {
            sent.push((at + rng.range(0, 60), chunk.clone()));
        }
        if rng.chance(rates.late_duplicate) {
            sent.push((at + rng.range(500, 12_000), chunk.clone()));
        }
        if conflict == Some(index) {
            let other = Chunk { text: format!("conflict {} ", chunk.id).into(), ..chunk.clone() };
            sent.push((at + rng.range(-20, 200).max(-at), other));
        }
    }
    sent
}

fn append(
    sendings: Vec<Sending>,
    threads: Vec<(ThreadId, PartitionId)>,
    scenario: &Scenario,
    rng: &mut Rng,
) -> PublishPlan {
    let mut entries: Vec<Planned> = Vec::with_capacity(sendings.len());
    let mut last_of = vec![None; usize::from(scenario.partitions)];
    for Sending { at, thread, what } in sendings {
        let (thread, partition) = &threads[thread];
        let partition = *partition;
        let last = &mut last_of[usize::from(partition.0)];
        let planned = |body, published| Planned { at, partition, body, published };
        match what {
            SentBody::Garbage(payload) => {
                let refusal = RejectedEntry { code: "malformed", detail: "planted".to_owned() };
                let subject = format!("chunks.{partition}.{thread}");
                let body = EntryBody::Refused { subject, payload: payload.clone(), refusal, answer: None };
                entries.push(planned(body, vec![Published::Garbage(payload)]));
            }
            SentBody::Command(command) => {
                let payload = Bytes::from(format!("order {}", entries.len()));
                let subject = format!("orders.{partition}.{}", commands::owner_of(&command));
                let raw = RawPayload { subject, payload };
                entries.push(planned(EntryBody::Command(command, raw), Vec::new()));
            }
            SentBody::Chunk(arrival) => {
                let key = MessageKey { thread: thread.clone(), message: arrival.message.clone() };
                let (attempt, chunk) = (arrival.attempt, Arc::clone(&arrival.chunk));
                let published = Published::Chunk { key, attempt, chunk };
                let is_framed = rng.chance(scenario.publishing.framed);
                let before = last.and_then(|index: usize| entries.get_mut(index));
                match before.map(|entry| (&mut entry.at, &mut entry.published, &mut entry.body)) {
                    Some((last_at, all, EntryBody::Frame(frame)))
                        if is_framed
                            && frame.thread == *thread
                            && at - *last_at < 50
                            && frame.chunks.len() < 3 =>
                    {
                        // A frame is stored at the time of its last chunk.
                        *last_at = at;
                        frame.chunks.push(arrival);
                        all.push(published);
                        continue;
                    }
                    _ => {
                        let frame = Frame { thread: thread.clone(), chunks: vec![arrival], token: None };
                        entries.push(planned(EntryBody::Frame(frame), vec![published]));
                    }
                }
            }
        }
        *last = Some(entries.len() - 1);
    }
    entries.sort_by_key(|entry| entry.at);
    PublishPlan { entries, threads }
}
