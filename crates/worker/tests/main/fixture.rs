//! Fixture of all tests.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusConfig, StreamOptions, WorkItem, WorkOptions, WorkSubscription};
use bytes::Bytes;
use model::{
    AgentId, Chunk, CommandId, Frame, IncomingChunk, Metadata, PartitionCount, Role, Task, TaskId, TaskKind,
    TaskOrigin, ThreadId, TurnId, TurnOpened, TurnOptions, TurnOrigin, TurnToken, WorkflowName,
};
use runtime::{Clock, Health};
use serde_json::{Value, json};
use store::{PutAgent, Range, Store, StoreConfig, StoredMessage};
use testkit::services::{NatsServer, TestDatabase};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wire::work::TurnRequest;
use worker::{WorkerConfig, WorkerError};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const SOON: Duration = Duration::from_millis(500);

pub(crate) struct Fixture {
    pub(crate) nats: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pool: sqlx::PgPool,
    config: WorkerConfig,
    stop: CancellationToken,
    worker: JoinHandle<Result<(), WorkerError>>,
    _database: TestDatabase,
}

async fn start(
    nats: &NatsServer,
    store: &Store,
    config: WorkerConfig,
) -> (CancellationToken, JoinHandle<Result<(), WorkerError>>) {
    let bus = Bus::connect(&BusConfig::new(nats.url(), "worker")).await.unwrap();
    let (store, stop) = (store.clone(), CancellationToken::new());
    let worker = worker::run(config, bus, store, Health::default(), Clock::start(), stop.clone());
    (stop, tokio::spawn(worker))
}

pub(crate) fn count() -> PartitionCount {
    PartitionCount::new(2).unwrap()
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut WorkerConfig)) -> Self {
        let nats = NatsServer::start().await.unwrap();
        let database = TestDatabase::create().await.unwrap();
        store::migrate(database.url(), count()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(database.url())).await.unwrap();
        let bus = Bus::connect(&BusConfig::new(nats.url(), "test")).await.unwrap();
        let streams = StreamOptions { max_bytes: 64 << 20, ..StreamOptions::default() };
        bus.ensure_streams(count(), &streams).await.unwrap();
        let default = WorkflowName::parse("default").unwrap();
        let mut config = WorkerConfig::new("w-1".to_owned(), count(), default);
        change(&mut config);
        let pool = database.pool().await.unwrap();
        let (stop, worker) = start(&nats, &store, config.clone()).await;
        Self { nats, bus, store, pool, config, stop, worker, _database: database }
    }

    /// Stops the worker and starts another one.
    pub(crate) async fn another_worker(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    /// Stops the worker.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        timeout(TEST_TIMEOUT, &mut self.worker).await.expect("it drains").unwrap().unwrap();
    }

    /// Starts another worker.
    pub(crate) async fn start_again(&mut self) {
        self.config.worker_id.push_str("-2");
        (self.stop, self.worker) = start(&self.nats, &self.store, self.config.clone()).await;
    }

    /// Stops the worker as a signal does.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        timeout(TEST_TIMEOUT, self.worker).await.expect("it drains").unwrap().unwrap();
    }

    pub(crate) fn work(&self, workflow: &str) -> WorkSubscription {
        self.bus.work(&WorkflowName::parse(workflow).unwrap(), WorkOptions::default())
    }

    pub(crate) async fn put(&self, agent: &str, settings: Value) {
        let put = PutAgent {
            agent: AgentId::parse(agent).unwrap(),
            workflow: WorkflowName::parse("default").unwrap(),
            settings: settings.as_object().unwrap().clone(),
            act: CommandId::parse("put-1").unwrap(),
            actor: "test".to_owned(),
        };
        self.store.put_agent(&put).await.unwrap();
    }

    pub(crate) async fn send_task(&self, agent: &str, id: &str, content: &str) {
        let task = Task {
            agent: AgentId::parse(agent).unwrap(),
            id: TaskId::parse(id).unwrap(),
            kind: TaskKind::Task,
            content: content.to_owned(),
            origin: TaskOrigin::SENT,
            metadata: Metadata::EMPTY,
        };
        let subject = wire::subject::partition_tasks(count(), &task.agent);
        self.publish(&subject, wire::encode_task(&task)).await;
    }

    pub(crate) async fn open_turn(&self, thread: &str, unique: &str, content: &str) -> TurnId {
        let thread = ThreadId::parse(thread).unwrap();
        let turn = TurnId::foreground(&thread, unique).unwrap();
        let opened = TurnOpened {
            turn: turn.clone(),
            agent: AgentId::parse("helper-1").unwrap(),
            run: 0,
            content: content.to_owned(),
            origin: TurnOrigin::PERSON,
            metadata: Metadata::EMPTY,
            actor: None,
            options: TurnOptions { correlation_id: Some("c-1".into()), ..TurnOptions::default() },
            thread,
        };
        let subject = wire::subject::partition_commands(count(), opened.thread.as_str());
        self.publish(&subject, wire::encode_opened(&opened)).await;
        turn
    }

    pub(crate) async fn publish(&self, subject: &str, payload: Bytes) {
        self.bus.publish_acked(subject, payload, None, TEST_TIMEOUT).await.unwrap();
    }

    /// Answers like a workflow service: one chunk per text, the last one final.
    pub(crate) async fn answer(&self, request: &TurnRequest, texts: &[&str]) {
        self.answer_with(request, &request.turn_token, texts).await;
    }

    pub(crate) async fn answer_with(&self, request: &TurnRequest, token: &str, texts: &[&str]) {
        let last = texts.len() - 1;
        let chunks = texts.iter().enumerate().map(|(id, text)| Chunk::content(id as u32, text, id == last));
        self.publish_chunks(request, token, chunks.collect()).await;
    }

    /// Publishes a single chunk.
    pub(crate) async fn answer_part(&self, request: &TurnRequest, id: u32, text: &str, is_final: bool) {
        let chunk = Chunk::content(id, text, is_final);
        self.publish_chunks(request, &request.turn_token, vec![chunk]).await;
    }

    async fn publish_chunks(&self, request: &TurnRequest, token: &str, chunks: Vec<Chunk>) {
        let arrival = |chunk| IncomingChunk {
            message: model::MessageId::parse(&request.message_id).unwrap(),
            attempt: request.attempt,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(chunk),
        };
        let frame = Frame {
            thread: ThreadId::parse(&request.thread_id).unwrap(),
            chunks: chunks.into_iter().map(arrival).collect(),
            token: Some(TurnToken::received(token)),
        };
        self.publish(&request.subject, wire::encode_json(&frame)).await;
    }

    pub(crate) async fn history(&self, thread: &str) -> Vec<StoredMessage> {
        let thread = ThreadId::parse(thread).unwrap();
        self.store.history(&thread, Range::default(), 1_000).await.unwrap().unwrap_or_default()
    }

    /// Waits for this number of messages in a thread; returns role and text of each.
    pub(crate) async fn said(&self, thread: &str, messages: usize) -> Vec<(Role, String)> {
        until("the thread has its messages", async || self.history(thread).await.len() >= messages).await;
        self.history(thread).await.into_iter().map(|message| (message.role, message.item.content)).collect()
    }

    /// Payload and Nats-Msg-Id of everything in a stream, read with the client library itself.
    pub(crate) async fn stored(&self, stream: &str) -> Vec<(Value, String)> {
        let jetstream = async_nats::jetstream::new(async_nats::connect(self.nats.url()).await.unwrap());
        let stream = jetstream.get_stream(stream).await.unwrap();
        let state = stream.cached_info().state.clone();
        let mut all = Vec::new();
        for seq in state.first_sequence..=state.last_sequence {
            let Ok(message) = stream.get_raw_message(seq).await else { continue };
            let id = message.headers.get("Nats-Msg-Id").map(|id| id.as_str().to_owned()).unwrap_or_default();
            all.push((serde_json::from_slice(&message.payload).unwrap_or(json!(null)), id));
        }
        all
    }
}

/// The next turn request and its content.
pub(crate) async fn next(work: &mut WorkSubscription) -> (WorkItem, TurnRequest) {
    let item = timeout(TEST_TIMEOUT, work.next()).await.expect("a turn request").unwrap();
    let request = serde_json::from_slice(&item.payload).unwrap();
    (item, request)
}

pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let give_up_at = Instant::now() + TEST_TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < give_up_at, "still waiting: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

impl Fixture {
    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.pool).await.unwrap();
    }

    /// Rows of a table.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }
}
