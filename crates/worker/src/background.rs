//! Background tasks of a session: store queries, turn requests and the outbox. The session loop
//! itself never blocks on I/O.
//!
//! Each kind of work has its own task, and all tasks send their answers as [`Input`]s on one
//! channel. The tasks end with the session.

mod compaction;
mod fact_vectors;
mod memory;
mod outbox_publisher;
mod publish_queue;
mod saves;
mod store_lookups;
mod thread_cache;
mod timers;
mod turn_context;
mod turn_request;
mod turn_starter;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::{AgentId, DelayedTask, Message, MessageKey, Position, Seq, TimerId, TurnId};
use partition::{CommandKey, Input, OutboxBatch, Save, Start};
use runtime::spawn_named;
use runtime::traces::TraceContext;
use store::{Applied, QueueRead};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) use outbox_publisher::OutboxBacklog;

use crate::context::Context;
use saves::SaveTask;
use store_lookups::StoreReader;
use timers::TimerTask;
use turn_starter::TurnTask;

/// Maximum number of answers queued for the session.
const AHEAD: usize = 64;

/// The background tasks of one session. Their queues need no limits: the machine asks once for each
/// item, and it holds a bounded number of items.
#[derive(Debug)]
pub(crate) struct BackgroundTasks {
    look_ups: mpsc::UnboundedSender<Vec<MessageKey>>,
    checks: mpsc::UnboundedSender<Vec<CommandKey>>,
    loads: mpsc::UnboundedSender<Vec<QueueRead>>,
    starts: mpsc::UnboundedSender<TurnTask>,
    sends: mpsc::UnboundedSender<OutboxBatch>,
    timers: mpsc::UnboundedSender<TimerTask>,
    saves: mpsc::UnboundedSender<SaveTask>,
    acknowledged_saves: Arc<AtomicU64>,
    answers: mpsc::Receiver<Input>,
    tasks: FuturesUnordered<JoinHandle<()>>,
    /// True once a turn has started; until then no thread is cached.
    has_begun: AtomicBool,
}

impl BackgroundTasks {
    /// `owner`: the state of the partition with which the session identifies itself to the store;
    /// `incarnation`: the incarnation of the partition's stream.
    pub(crate) fn start(
        context: &Context,
        owner: Applied,
        incarnation: Arc<str>,
        backlog: OutboxBacklog,
    ) -> Self {
        let (answered, answers) = mpsc::channel(AHEAD);
        let (look_ups, keys) = mpsc::unbounded_channel();
        let (checks, commands) = mpsc::unbounded_channel();
        let (loads, queues) = mpsc::unbounded_channel();
        let (starts, wishes) = mpsc::unbounded_channel();
        let (sends, batches) = mpsc::unbounded_channel();
        let (timers, due) = mpsc::unbounded_channel();
        let (saves, parts) = mpsc::unbounded_channel();
        let acknowledged_saves = Arc::new(AtomicU64::new(owner.saves));
        let store = context.store.clone();
        let reader = StoreReader { refusals: context.refusals.clone(), answered: answered.clone() };
        let tasks = [
            spawn_named("look-ups", store_lookups::look_up_all(context.clone(), owner, keys, reader.clone())),
            spawn_named("checks", store_lookups::check_all(context.clone(), owner, commands, reader.clone())),
            spawn_named("queues", store_lookups::load_all(store.clone(), owner, queues, reader.clone())),
            spawn_named("starts", turn_starter::run(context.clone(), wishes, reader.clone())),
            spawn_named("timers", timers::run(store.clone(), owner, due, reader.clone())),
            spawn_named(
                "saves",
                saves::run(store, incarnation, Arc::clone(&acknowledged_saves), parts, reader.clone()),
            ),
            spawn_named("outbox", outbox_publisher::run(context.clone(), backlog, batches, reader.clone())),
        ];
        let vectors = context.config.embeddings.clone().map(|embeddings| {
            spawn_named(
                "vectors of facts",
                fact_vectors::run(context.clone(), embeddings, owner.partition, reader),
            )
        });
        let tasks = tasks.into_iter().chain(vectors).collect();
        let has_begun = AtomicBool::new(false);
        Self {
            look_ups,
            checks,
            loads,
            starts,
            sends,
            timers,
            saves,
            acknowledged_saves,
            answers,
            tasks,
            has_begun,
        }
    }

    // The tasks outlive every sender below. If a task has ended early anyway, `next` reports it.

    pub(crate) fn lookup(&self, keys: Vec<MessageKey>) {
        let _ = self.look_ups.send(keys);
    }

    pub(crate) fn check(&self, keys: Vec<CommandKey>) {
        let _ = self.checks.send(keys);
    }

    pub(crate) fn load(&self, agent: AgentId, after: Position, limit: usize) {
        let _ = self.loads.send(vec![QueueRead { agent, after, limit }]);
    }

    /// `trace`: the trace that the request belongs to.
    pub(crate) fn begin(&self, start: Start, trace: Option<TraceContext>) {
        self.has_begun.store(true, Ordering::Relaxed);
        let _ = self.starts.send(TurnTask::Start(Arc::new(start), trace));
    }

    /// Passes on messages that a commit has added to threads, so that the next turns of these
    /// threads need not read them.
    pub(crate) fn written(&self, messages: Vec<Message>) {
        if self.has_begun.load(Ordering::Relaxed) && !messages.is_empty() {
            let _ = self.starts.send(TurnTask::Written(messages));
        }
    }

    pub(crate) fn abandon(&self, turn: TurnId, run: u32) {
        let _ = self.starts.send(TurnTask::Abandon(turn, run));
    }

    pub(crate) fn send(&self, batch: OutboxBatch) {
        let _ = self.sends.send(batch);
    }

    pub(crate) fn decide_timers(&self, due: Vec<TimerId>) {
        let _ = self.timers.send(TimerTask::Decide(due));
    }

    pub(crate) fn load_timers(&self, from_ms: i64, limit: usize) {
        let _ = self.timers.send(TimerTask::Load { from_ms, limit });
    }

    /// `applied`: the state acknowledged by the store.
    pub(crate) fn save(&self, applied: Applied, save: Save) {
        let _ = self.saves.send(SaveTask { applied, save });
    }

    /// Number of the partition's saves acknowledged by the store.
    pub(crate) fn acknowledged_saves(&self) -> u64 {
        self.acknowledged_saves.load(Ordering::Relaxed)
    }

    pub(crate) fn delay_task(&self, seq: Seq, delayed: DelayedTask) {
        let _ = self.timers.send(TimerTask::Delay(seq, delayed));
    }

    /// Returns the next answer; `None` if a task has ended, because some answers would then never
    /// come. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        tokio::select! {
            answer = self.answers.recv() => answer,
            _ = self.tasks.next() => None,
        }
    }
}
