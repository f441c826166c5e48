//! Sends chunks of many threads at a steady rate: to the stream with a window of acknowledgements,
//! or over core NATS.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use async_nats::{Client, Subject};
use model::{Chunk, Frame, IncomingChunk, MessageId, PartitionCount, Role, ThreadId};

use super::{
    core,
    load::{self, CHUNKS_PER_MESSAGE, LatencyLoad, PARTITIONS, WARM_UP},
    recorder::{Board, PublishTotals},
};
use crate::{acks::Acks, backlog::CHUNK_BYTES};

/// Pause between bursts, so that a thread's chunks are spread evenly to within a millisecond.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    /// The subject `chunks.<p>.<thread>`, with acknowledgements.
    Stream,
    /// The relay's stream, with acknowledgements.
    Relay,
    /// A subject that no stream stores.
    Core,
}

/// The thread's id for this stream number.
pub(super) fn thread(stream: usize) -> String {
    format!("latency-{stream:05}")
}

pub(super) async fn publish(
    url: &str,
    target: Target,
    load: LatencyLoad,
    board: &Board,
) -> Result<PublishTotals> {
    let client = async_nats::ConnectOptions::new().client_capacity(16 << 10).connect(url).await?;
    let mut acks = Acks::new(&client).await?;
    let inbox = acks.inbox.clone();
    let mut threads =
        (0..load.streams).map(|number| LatencyThread::new(number, load)).collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    let duration = WARM_UP + load.duration;
    let (per_second, mut sent) = (load.rate * load.streams as f64, 0_u64);
    while started.elapsed() < duration {
        let due = (started.elapsed().as_secs_f64() * per_second) as u64;
        while sent < due {
            let thread = &mut threads[(sent % load.streams as u64) as usize];
            thread.send(&client, target, &inbox, board).await?;
            sent += 1;
            if matches!(target, Target::Stream | Target::Relay) {
                acks.sent();
            }
        }
        acks.take().await?;
        tokio::time::sleep(PAUSE).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    acks.take_all().await?;
    client.flush().await?;
    Ok(PublishTotals { chunks: sent, seconds })
}

struct LatencyThread {
    id: ThreadId,
    /// Subjects in the fleet's stream, in the relay's stream, and over core NATS.
    subjects: [Subject; 3],
    message: MessageId,
    messages: u32,
    /// The id of the next chunk, and the number of chunks of the message.
    next: u32,
    length: u32,
    number: u32,
    padding: String,
}

impl LatencyThread {
    /// Creates the state of a thread. The first messages have different lengths, so that the
    /// threads' messages do not all end at once.
    fn new(stream: usize, load: LatencyLoad) -> Result<Self> {
        let id = ThreadId::parse(&thread(stream))?;
        let count = PartitionCount::new(PARTITIONS.into())?;
        let exact = wire::subject::partition_chunks(count, &id);
        let first = 1 + stream * CHUNKS_PER_MESSAGE as usize / load.streams;
        Ok(Self {
            subjects: [
                exact.clone().into(),
                load::relay_subject(&exact, stream)?.into(),
                format!("{}.{stream}", core::SUBJECT).into(),
            ],
            message: message(0)?,
            messages: 0,
            next: 0,
            length: u32::try_from(first)?,
            number: 0,
            padding: " twenty-four characters.".repeat(CHUNK_BYTES.div_ceil(24)),
            id,
        })
    }

    async fn send(&mut self, client: &Client, target: Target, inbox: &str, board: &Board) -> Result<()> {
        let mut text = board.stamp(self.number);
        text.push_str(&self.padding[..CHUNK_BYTES - text.len()]);
        let is_final = self.next + 1 == self.length;
        let arrival = IncomingChunk {
            message: self.message.clone(),
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(self.next, &text, is_final)),
        };
        let payload =
            wire::encode_frame(&Frame { token: None, thread: self.id.clone(), chunks: vec![arrival] });
        let [exact, relay, core] = &self.subjects;
        match target {
            Target::Stream => client.publish_with_reply(exact.clone(), inbox.to_owned(), payload).await?,
            Target::Relay => client.publish_with_reply(relay.clone(), inbox.to_owned(), payload).await?,
            Target::Core => client.publish(core.clone(), payload).await?,
        }
        self.number += 1;
        self.next += 1;
        if is_final {
            self.messages += 1;
            (self.message, self.next, self.length) = (message(self.messages)?, 0, CHUNKS_PER_MESSAGE);
        }
        Ok(())
    }
}

fn message(number: u32) -> Result<MessageId> {
    Ok(MessageId::parse(&format!("message-{number:04}"))?)
}
