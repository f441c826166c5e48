//! A workflow that answers turn requests at once, with one chunk each, so that only the round trip
//! is measured.
//!
//! It follows the contract: it publishes chunks until the stream has them, and only then
//! acknowledges the request. It takes many requests at a time, like a service that only waits for
//! other services.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_nats::jetstream::{
    self, Message,
    consumer::{AckPolicy, pull},
    context::{ContextBuilder, PublishAckFuture},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use model::{
    AgentId, Chunk, ChunkKind, Frame, IncomingChunk, MessageId, Role, ThreadId, TurnToken, WorkflowName,
};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};
use wire::{subject, work::TurnRequest};

use super::{antiphon_runs, load::TaskLoad};
use testkit::live_follower::LiveFollower;
use testkit::locked;

const ANSWER_BYTES: usize = 400;
/// Maximum number of requests that the server sends ahead.
const AHEAD: usize = 256;
/// Maximum number of answers that are being stored.
const IN_FLIGHT: usize = 4 * AHEAD;
const ACK_WAIT: Duration = Duration::from_secs(30);

/// Answers until it is dropped, and records requests and completions.
#[derive(Debug)]
pub(super) struct EchoWorkflow {
    pub(super) notes: Notes,
    serving: Vec<JoinHandle<()>>,
}

/// The records of one round. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    load: TaskLoad,
    /// If `Some(n)`, every n-th agent fails forever.
    failing: Option<u32>,
    seen: Arc<Mutex<RecordedTurns>>,
    /// Notified when all tasks are done.
    pub(super) done: Arc<Notify>,
}

#[derive(Debug, Default)]
struct RecordedTurns {
    /// The marks in order: 2n when task n was requested, 2n + 1 when it was answered. n = agent *
    /// tasks + seq.
    marks: Vec<u64>,
    answered: u64,
    due_at: HashMap<(u32, u32), Instant>,
    /// The tasks, keyed by the ids of their answers.
    asked: HashMap<String, (u32, u32)>,
    latencies_us: Vec<u64>,
    failures: u64,
}

impl Notes {
    /// Number of tasks that will be completed.
    pub(super) fn wanted(&self) -> u64 {
        let failing = self.failing.map_or(0, |nth| self.load.agents.div_ceil(nth));
        u64::from(self.load.agents - failing) * u64::from(self.load.tasks)
    }

    pub(super) fn due(&self, place: (u32, u32), at: Instant) {
        locked(&self.seen).due_at.insert(place, at);
    }

    /// Takes the marks, and the latencies of completed tasks.
    pub(super) fn take(&self) -> (Vec<u64>, Vec<u64>) {
        let seen = std::mem::take(&mut *locked(&self.seen));
        (seen.marks, seen.latencies_us)
    }

    /// Number of failures of agents.
    pub(super) fn failures(&self) -> u64 {
        locked(&self.seen).failures
    }

    fn fails(&self, (agent, _): (u32, u32)) -> bool {
        self.failing.is_some_and(|nth| agent.is_multiple_of(nth))
    }

    fn number(&self, (agent, seq): (u32, u32)) -> u64 {
        u64::from(agent) * u64::from(self.load.tasks) + u64::from(seq)
    }

    fn begin(&self, place: (u32, u32), answer: &str) {
        let mark = 2 * self.number(place);
        let mut seen = locked(&self.seen);
        if self.fails(place) {
            seen.failures += 1;
            return;
        }
        seen.marks.push(mark);
        if self.load.rate.is_some() {
            seen.asked.insert(answer.to_owned(), place);
        }
    }

    /// Records the end of a task. Called before the answer is sent, because the next task may
    /// arrive at once.
    fn end(&self, place: (u32, u32)) {
        if self.fails(place) {
            return;
        }
        let mark = 2 * self.number(place) + 1;
        let mut seen = locked(&self.seen);
        seen.marks.push(mark);
        seen.answered += 1;
        if self.load.rate.is_none() && seen.answered == self.wanted() {
            self.done.notify_one();
        }
    }

    fn completed(&self, message: &str) {
        let mut seen = locked(&self.seen);
        let place = seen.asked.remove(message);
        let Some(due_at) = place.and_then(|place| seen.due_at.get(&place).copied()) else { return };
        seen.latencies_us.push(u64::try_from(due_at.elapsed().as_micros()).unwrap_or(u64::MAX));
        if seen.latencies_us.len() as u64 == self.wanted() {
            self.done.notify_one();
        }
    }
}

impl EchoWorkflow {
    /// Creates the consumer and begins to answer.
    pub(super) async fn start(nats_url: &str, load: TaskLoad, failing: Option<u32>) -> Result<Self> {
        let notes = Notes { load, failing, seen: Arc::default(), done: Arc::default() };
        let client = async_nats::connect(nats_url).await?;
        let context = ContextBuilder::new().max_ack_inflight(IN_FLIGHT).build(client.clone());
        let workflow = WorkflowName::parse("default")?;
        let config = pull::Config {
            durable_name: Some(subject::work_consumer(&workflow)),
            filter_subject: subject::work(&workflow),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: 10_000,
            ..pull::Config::default()
        };
        let consumer = context.create_consumer_on_stream(config, subject::WORK_STREAM).await?;
        let requests = consumer.stream().max_messages_per_batch(AHEAD).messages().await?;
        let serving = vec![tokio::spawn(answer_all(requests, context, notes.clone()))];
        Ok(Self { notes, serving })
    }

    /// Records completions from now on, when answers are committed. The partitions must have
    /// owners, or get them soon.
    pub(super) async fn follow(&mut self, nats_url: &str) -> Result<()> {
        let client = async_nats::connect(nats_url).await?;
        let (notes, partitions) = (self.notes.clone(), antiphon_runs::partitions()?);
        let agents = (0..notes.load.agents).map(antiphon_runs::agent).collect::<Result<Vec<_>>>()?;
        let threads = agents.iter().map(AgentId::thread).collect();
        let mut live = LiveFollower::start(&client, partitions, threads).await?;
        self.serving.push(tokio::spawn(async move {
            while let Some(frames) = live.next().await {
                // Ends are sent after the commit.
                for ended in frames.iter().filter(|frame| frame.terminal.is_some()) {
                    notes.completed(ended.message.as_str());
                }
            }
        }));
        Ok(())
    }
}

impl Drop for EchoWorkflow {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

async fn answer_all(mut requests: pull::Stream, context: jetstream::Context, notes: Notes) {
    let mut storing = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(()) = storing.next() => {}
            // With the maximum number in flight, `answer` would wait for one of them, and only this
            // loop polls them.
            request = requests.next(), if storing.len() < IN_FLIGHT => {
                // The loop continues after an error, because requests in flight are redelivered.
                let Some(request) = request else { return };
                let Ok(request) = request else { continue };
                match answer(&context, &notes, &request).await {
                    Ok(stored) => storing.push(acknowledge(request, stored)),
                    Err(error) => eprintln!("    a turn request was not answered: {error:#}"),
                }
            }
        }
    }
}

async fn answer(context: &jetstream::Context, notes: &Notes, message: &Message) -> Result<PublishAckFuture> {
    let request: TurnRequest = serde_json::from_slice(&message.payload)?;
    let task = request.task.as_ref().context("no task")?;
    let place = antiphon_runs::place(&task.task_id).context("an unknown task")?;
    notes.begin(place, &request.message_id);
    let text = "y".repeat(ANSWER_BYTES);
    let chunk = match notes.fails(place) {
        true => Chunk { kind: ChunkKind::Error, ..Chunk::content(0, "it always fails", true) },
        false => Chunk::content(0, &text, true),
    };
    let arrival = IncomingChunk {
        message: MessageId::parse(&request.message_id)?,
        attempt: request.attempt,
        step: 0,
        role: Role::Assistant,
        chunk: Arc::new(chunk),
    };
    let token = Some(TurnToken::received(&request.turn_token));
    let frame = Frame { thread: ThreadId::parse(&request.thread_id)?, chunks: vec![arrival], token };
    notes.end(place);
    Ok(context.publish(request.subject.clone(), wire::encode_frame(&frame)).await?)
}

async fn acknowledge(request: Message, stored: PublishAckFuture) {
    let stored = stored.await;
    if stored.is_ok() {
        // The ack need not be confirmed: a redelivered request is answered again, and its owner
        // drops the second answer.
        let _ = request.ack().await;
    }
}
