//! Many answers at a steady rate.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use async_nats::Client;
use model::{Chunk, Frame, IncomingChunk, MessageId, PartitionCount, Role, ThreadId};

use crate::acks::Acks;

/// Pause between bursts.
const PAUSE: Duration = Duration::from_millis(2);

/// The parameters of the answers to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerLoad {
    /// Number of threads; each has one answer at a time.
    pub(super) streams: usize,
    /// Chunks per second of each thread.
    pub(super) rate: f64,
    /// Chunks per answer.
    pub(super) chunks: u32,
    /// Bytes of text per chunk.
    pub(super) text_bytes: usize,
    /// True if a new answer follows each one that has ended, and the first ones have different
    /// lengths. Otherwise each thread has one answer.
    pub(super) is_endless: bool,
}

/// A load and the number that is part of its threads' names.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedLoad {
    load: AnswerLoad,
    name: usize,
}

/// The publishing thread, which returns the number of chunks sent.
pub(super) type Publishing = thread::JoinHandle<Result<u64>>;

impl AnswerLoad {
    pub(super) fn named(self, name: usize) -> NamedLoad {
        NamedLoad { load: self, name }
    }

    pub(super) fn start(self, url: &str, count: PartitionCount, duration: Duration) -> Result<Publishing> {
        self.named(0).start(url, count, duration)
    }
}

impl NamedLoad {
    /// Publishes for `duration`, or until every thread has had its answer. Uses a separate thread
    /// and connection.
    pub(super) fn start(self, url: &str, count: PartitionCount, duration: Duration) -> Result<Publishing> {
        let url = url.to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || runtime.block_on(self.publish(&url, count, duration));
        Ok(thread::Builder::new().name("answers".to_owned()).spawn(work)?)
    }

    async fn publish(self, url: &str, count: PartitionCount, duration: Duration) -> Result<u64> {
        let client = async_nats::ConnectOptions::new().client_capacity(16 << 10).connect(url).await?;
        let mut acks = Acks::new(&client).await?;
        let answer = |number| AnsweredThread::new(number, self, count);
        let mut answers = (0..self.load.streams).map(answer).collect::<Result<Vec<_>>>()?;
        let all = self.load.streams as u64 * u64::from(self.load.chunks);
        let most = if self.load.is_endless { u64::MAX } else { all };
        let per_second = self.load.rate * self.load.streams as f64;
        let (started, mut sent) = (Instant::now(), 0);
        loop {
            let elapsed = started.elapsed().min(duration);
            let due = ((elapsed.as_secs_f64() * per_second) as u64).min(most).max(1);
            while sent < due {
                let number = (sent % self.load.streams as u64) as usize;
                answers[number].send(&client, &acks.inbox, &self.load).await?;
                sent += 1;
                acks.sent();
            }
            acks.take().await?;
            if elapsed == duration || sent == most {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        acks.take_all().await?;
        Ok(sent)
    }
}

struct AnsweredThread {
    thread: ThreadId,
    subject: String,
    answers: u32,
    next: u32,
    length: u32,
}

impl AnsweredThread {
    fn new(number: usize, load: NamedLoad, count: PartitionCount) -> Result<Self> {
        let thread = ThreadId::parse(&format!("answers-{}-{number:05}", load.name))?;
        let (chunks, streams) = (load.load.chunks, load.load.streams);
        let first = 1 + number as u64 * u64::from(chunks) / streams as u64;
        let length = if load.load.is_endless { u32::try_from(first)? } else { chunks };
        let subject = wire::subject::partition_chunks(count, &thread);
        Ok(Self { thread, subject, answers: 0, next: 0, length })
    }

    async fn send(&mut self, client: &Client, inbox: &str, load: &AnswerLoad) -> Result<()> {
        let text = format!("{:>width$}", self.next, width = load.text_bytes);
        let is_final = self.next + 1 == self.length;
        let chunk = IncomingChunk {
            message: MessageId::parse(&format!("answer-{:05}", self.answers))?,
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(self.next, &text, is_final)),
        };
        let frame = Frame { token: None, thread: self.thread.clone(), chunks: vec![chunk] };
        let payload = wire::encode_frame(&frame);
        client.publish_with_reply(self.subject.clone(), inbox.to_owned(), payload).await?;
        self.next += 1;
        if is_final {
            (self.answers, self.next, self.length) = (self.answers + 1, 0, load.chunks);
        }
        Ok(())
    }
}

/// Waits for the end of the publishing thread.
pub(super) async fn join(publishing: Publishing) -> Result<u64> {
    let joined = tokio::task::spawn_blocking(move || publishing.join()).await?;
    joined.map_err(|_| anyhow!("the publisher panicked"))?
}
