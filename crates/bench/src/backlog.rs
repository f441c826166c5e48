//! A backlog of chunks in one partition's stream, like one that real traffic leaves: many
//! interleaved messages, and the chunks of each shuffled within small windows.

use std::{ops::RangeInclusive, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt;
use model::{Chunk, Frame, IncomingChunk, MessageId, PartitionCount, Role, ThreadId};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use testkit::text;

/// Bytes of text per chunk.
pub(super) const CHUNK_BYTES: usize = 256;
/// Default number of messages that are open at a time.
pub(super) const INTERLEAVED: usize = 64;
/// Number of chunks in a window, within which the chunks of a message are shuffled.
const WINDOW: usize = 16;
/// Number of entries of which one requests an acknowledgement, which covers all earlier entries.
const ACK_EVERY: u64 = 512;
/// Maximum number of entries without an acknowledgement. The server refuses more than 10,000
/// entries that it has not stored yet.
const UNACKED: u64 = 6 * ACK_EVERY;

/// The parameters of a backlog.
#[derive(Debug, Clone)]
pub(super) struct BacklogShape {
    pub(super) name: &'static str,
    /// Minimum number of chunks.
    pub(super) chunks: u64,
    /// Chunks per message.
    pub(super) lengths: RangeInclusive<u32>,
    /// Chunks per entry.
    pub(super) frame: usize,
    /// Messages that are open at a time.
    pub(super) open: usize,
    /// Number of threads, used in turn; `None`: a number with which a thread has about eight
    /// messages.
    pub(super) threads: Option<usize>,
}

/// The messages of a backlog. The content of a message is derived from its number.
#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) shape: BacklogShape,
    pub(super) messages: Vec<Planned>,
    pub(super) chunks: u64,
    pub(super) entries: u64,
}

#[derive(Debug)]
pub(super) struct Planned {
    pub(super) thread: ThreadId,
    pub(super) message: MessageId,
    pub(super) chunks: u32,
    number: usize,
}

impl Backlog {
    /// Plans a backlog; the same shape gives the same backlog.
    pub(super) fn plan(shape: &BacklogShape) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(7);
        let (mut messages, mut chunks, mut entries) = (Vec::new(), 0, 0);
        while chunks < shape.chunks {
            let (number, length) = (messages.len(), rng.random_range(shape.lengths.clone()));
            let threads = shape.threads.unwrap_or(number / 8 + INTERLEAVED);
            messages.push(Planned {
                // Neighbouring messages belong to different threads; a thread has several messages.
                thread: thread(number % threads)?,
                message: MessageId::parse(&format!("message-{number:08}"))?,
                chunks: length,
                number,
            });
            chunks += u64::from(length);
            entries += u64::from(length.div_ceil(u32::try_from(shape.frame)?));
        }
        Ok(Self { shape: shape.clone(), messages, chunks, entries })
    }

    /// Publishes the whole backlog and waits until the stream has it.
    pub(super) async fn publish(&self, client: &Client, partitions: PartitionCount) -> Result<()> {
        let acks = client.new_inbox();
        let mut acked = client.subscribe(acks.clone()).await?;
        let (mut sent, mut open) = (0, 0);
        for frame in self.frames() {
            let subject = wire::subject::partition_chunks(partitions, &frame.thread);
            let payload = wire::encode_frame(&frame);
            sent += 1;
            if sent % ACK_EVERY == 0 || sent == self.entries {
                client.publish_with_reply(subject, acks.clone(), payload).await?;
                open += ACK_EVERY;
            } else {
                client.publish(subject, payload).await?;
            }
            while open >= UNACKED || (sent == self.entries && open > 0) {
                let ack = acked.next().await.context("the connection has ended")?;
                ensure!(!contains(&ack.payload, b"\"error\""), "not stored: {ack:?}");
                open -= ACK_EVERY;
            }
        }
        ensure!(sent == self.entries, "{sent} entries were sent instead of {}", self.entries);
        Ok(())
    }

    fn frames(&self) -> Interleaved<'_> {
        Interleaved { backlog: self, next: 0, open: Vec::new(), rng: StdRng::seed_from_u64(11) }
    }
}

pub(super) fn thread(number: usize) -> Result<ThreadId> {
    Ok(ThreadId::parse(&format!("thread-{number:06}"))?)
}

impl Planned {
    /// The complete text of a message.
    pub(super) fn content(&self) -> String {
        (0..self.chunks).map(|id| self.text(id)).collect()
    }

    fn text(&self, id: u32) -> &'static str {
        let offset = (self.number * 7919 + id as usize * 104_729) % (text::LICENSE.len() - CHUNK_BYTES);
        text::LICENSE.get(offset..offset + CHUNK_BYTES).unwrap_or_default()
    }

    fn frame(&self, ids: &[u32]) -> Frame {
        let arrival = |id: &u32| IncomingChunk {
            message: self.message.clone(),
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(*id, self.text(*id), *id + 1 == self.chunks)),
        };
        Frame { token: None, thread: self.thread.clone(), chunks: ids.iter().map(arrival).collect() }
    }
}

/// Yields the next frame of any open message. When a message is complete, the next one is opened.
struct Interleaved<'a> {
    backlog: &'a Backlog,
    next: usize,
    open: Vec<(&'a Planned, Vec<u32>, usize)>,
    rng: StdRng,
}

impl Iterator for Interleaved<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        while self.open.len() < self.backlog.shape.open
            && let Some(message) = self.backlog.messages.get(self.next)
        {
            let mut ids: Vec<u32> = (0..message.chunks).collect();
            text::shuffle_in_windows(&mut ids, WINDOW, &mut self.rng);
            self.open.push((message, ids, 0));
            self.next += 1;
        }
        if self.open.is_empty() {
            return None;
        }
        let at = self.rng.random_range(0..self.open.len());
        let (message, ids, sent) = &mut self.open[at];
        let end = (*sent + self.backlog.shape.frame).min(ids.len());
        let frame = message.frame(&ids[*sent..end]);
        *sent = end;
        if end == ids.len() {
            self.open.swap_remove(at);
        }
        Some(frame)
    }
}

fn contains(payload: &Bytes, needle: &[u8]) -> bool {
    payload.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_has_every_chunk_once_in_the_stated_entries() {
        for frame in [1, 16] {
            let shape = BacklogShape {
                name: "test",
                chunks: 5_000,
                lengths: 50..=500,
                frame,
                open: INTERLEAVED,
                threads: None,
            };
            let backlog = Backlog::plan(&shape).unwrap();
            let mut seen: Vec<(MessageId, u32)> = Vec::new();
            let mut entries = 0;
            for frame in backlog.frames() {
                entries += 1;
                seen.extend(frame.chunks.iter().map(|arrival| (arrival.message.clone(), arrival.chunk.id)));
            }
            assert_eq!((entries, seen.len() as u64), (backlog.entries, backlog.chunks));
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len() as u64, backlog.chunks);
        }
    }
}
