//! Reads and decodes a partition's stream in a separate task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bus::{PartitionReader, RawEntry, ReaderEvent};
use model::{Command, Mark, MessageId, PartitionId, Seq, TaskId, ThreadId, TurnId};
use partition::{EntryBody, RawPayload, RefusedAnswer, StreamEntry};
use runtime::spawn_named;
use runtime::traces::{self, TraceContext};
use tokio::sync::mpsc;
use wire::{DecodeLimits, Decoded};

use super::report;

/// Maximum number of entries that are decoded and handled together.
const BATCH: usize = 512;
/// Bytes of an entry in a JetStream file besides its subject and payload: a record header and a
/// checksum (30), a Content-Type.
const STORED_OVERHEAD: usize = 64;
/// Maximum number of batches queued for the machine.
const AHEAD: usize = 4;

/// An event of the stream.
#[derive(Debug)]
pub(crate) enum ReadEvent {
    /// The next entries in order, the mark of the last one, and those that belong to traces.
    Entries(Vec<StreamEntry>, Option<Mark>, Vec<TracedEntry>),
    /// See [`partition::Input::CaughtUp`].
    CaughtUp(bool),
    /// See [`ReaderEvent::Trouble`].
    Trouble(Option<String>),
    /// The stream was replaced.
    StreamChanged,
}

/// An entry that names its trace. Other entries than inputs and first frames never do.
#[derive(Debug)]
pub(crate) struct TracedEntry {
    pub(crate) subject: TracedSubject,
    pub(crate) trace: TraceContext,
    /// ns of Unix time, by the server's clock.
    pub(crate) stored_at_ns: i64,
}

/// Subject of an entry with a trace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TracedSubject {
    Turn(TurnId),
    Task(TaskId),
    /// First chunk of an answer.
    Answer(MessageId),
}

/// A reader in its own task. It pauses while its batches are not taken.
#[derive(Debug)]
pub(crate) struct EntryReader {
    /// Each event comes with the number of restarts that the sender had seen.
    fed: mpsc::Receiver<(u64, ReadEvent)>,
    restarts: mpsc::UnboundedSender<Seq>,
    generation: u64,
    end: Arc<AtomicU64>,
}

impl EntryReader {
    pub(crate) fn start(
        reader: PartitionReader,
        partition: PartitionId,
        incarnation: Arc<str>,
        limits: DecodeLimits,
    ) -> Self {
        let (sender, fed) = mpsc::channel(AHEAD);
        let (restarts, restarted) = mpsc::unbounded_channel();
        let end = Arc::default();
        let place = StreamName { partition, incarnation };
        spawn_named("reader", read(reader, place, limits, sender, restarted, Arc::clone(&end)));
        Self { fed, restarts, generation: 0, end }
    }

    /// Last entry that the stream is known to have; 0 before anything is known. It is updated
    /// before the session takes the batch; otherwise a session that takes nothing for a while would
    /// see an old value.
    pub(crate) fn end(&self) -> Seq {
        Seq(self.end.load(Ordering::Relaxed))
    }

    /// Next event after the last restart. Cancel-safe; `None` if the task has ended.
    pub(crate) async fn next(&mut self) -> Option<ReadEvent> {
        loop {
            let (generation, fed) = self.fed.recv().await?;
            if generation == self.generation {
                return Some(fed);
            }
        }
    }

    /// Reads again from `from` on.
    pub(crate) fn restart(&mut self, from: Seq) {
        self.generation += 1;
        // If the task has ended, `next` reports it.
        let _ = self.restarts.send(from);
    }
}

async fn read(
    mut reader: PartitionReader,
    place: StreamName,
    limits: DecodeLimits,
    sender: mpsc::Sender<(u64, ReadEvent)>,
    mut restarted: mpsc::UnboundedReceiver<Seq>,
    end: Arc<AtomicU64>,
) {
    let (mut generation, mut position) = (0, Seq(0));
    loop {
        tokio::select! {
            biased;
            // The session drops the sender when it ends, and the stream may be quiet at that time.
            from = restarted.recv() => match from {
                Some(from) => {
                    generation += 1;
                    reader.restart(from);
                }
                None => break,
            },
            event = reader.next_batch(BATCH) => {
                let fed = match event {
                    ReaderEvent::Entries(entries) => {
                        let last = entries.last().map(RawEntry::mark);
                        if let Some(last) = entries.last() {
                            position = last.seq;
                            end.store(position.0 + last.unread, Ordering::Relaxed);
                        }
                        let mut traced = Vec::new();
                        let decoded =
                            entries.into_iter().map(|raw| decode(&place, raw, &limits, &mut traced));
                        ReadEvent::Entries(decoded.collect(), last, traced)
                    }
                    ReaderEvent::CaughtUp(caught_up) => {
                        if caught_up {
                            // Unread entries may have been purged.
                            end.store(position.0, Ordering::Relaxed);
                        }
                        ReadEvent::CaughtUp(caught_up)
                    }
                    ReaderEvent::Trouble(trouble) => ReadEvent::Trouble(trouble),
                    ReaderEvent::StreamChanged => ReadEvent::StreamChanged,
                };
                if sender.send((generation, fed)).await.is_err() {
                    break;
                }
            }
        }
    }
    reader.close().await;
}

/// Identifies the stream.
struct StreamName {
    partition: PartitionId,
    incarnation: Arc<str>,
}

fn decode(
    place: &StreamName,
    raw: RawEntry,
    limits: &DecodeLimits,
    traced: &mut Vec<TracedEntry>,
) -> StreamEntry {
    let (seq, stored_at) = (raw.seq, raw.stored_at());
    let bytes = raw.subject.len() + raw.payload.len() + STORED_OVERHEAD;
    let decoded =
        wire::decode_entry(place.partition, &raw.subject, raw.content_type.as_deref(), &raw.payload, limits);
    if let Ok(decoded) = &decoded
        && traces::is_on()
        && let Some(subject) = traced_subject(decoded)
        && let Some(trace) = raw.trace()
    {
        traced.push(TracedEntry { subject, trace, stored_at_ns: raw.stored_at_ns });
    }
    let body = match decoded {
        Ok(Decoded::Frame(frame)) => EntryBody::Frame(frame),
        Ok(Decoded::Command(command)) => {
            let raw = RawPayload { subject: raw.subject.to_string(), payload: raw.payload };
            EntryBody::Command(command, raw)
        }
        Err(refusal) => {
            report::refused(&raw.subject, seq, &refusal);
            let token = wire::token_of_refused(raw.content_type.as_deref(), &raw.payload);
            let answer = token.and_then(|token| {
                let thread = ThreadId::parse(raw.subject.rsplit('.').next()?).ok()?;
                let dead_letter = format!("entry:{}:{}:{}", place.partition, place.incarnation, seq);
                Some(RefusedAnswer { thread, token, dead_letter })
            });
            EntryBody::Refused { subject: raw.subject.to_string(), payload: raw.payload, refusal, answer }
        }
    };
    StreamEntry { seq, stored_at, bytes, body }
}

/// Subject of an entry that may name a trace. Only the first chunk of an answer can, so that
/// nothing is looked up for the others.
fn traced_subject(decoded: &Decoded) -> Option<TracedSubject> {
    match decoded {
        Decoded::Frame(frame) => {
            let (message, first) = frame.chunks.first().map(|of| (&of.message, &of.chunk))?;
            (first.id == 0).then(|| TracedSubject::Answer(message.clone()))
        }
        Decoded::Command(Command::Turn(opened)) => Some(TracedSubject::Turn(opened.turn.clone())),
        Decoded::Command(Command::Task(task)) => Some(TracedSubject::Task(task.id.clone())),
        Decoded::Command(Command::DelayedTask(_) | Command::Control(_)) => None,
    }
}
