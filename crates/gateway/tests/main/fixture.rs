//! NATS, Postgres, gateways, and a scripted owner.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bus::{Bus, BusConfig, StreamOptions};
use gateway::{Gateway, GatewayConfig, GatewayLimits};
use http_server::{AccessConfig, HttpLimits};
use model::{
    BatchType, Chunk, Cut, DeadLetter, DeadLetterSource, FailedMessage, FrameNumber, GatewayId, LiveFrame,
    Message, MessageEnd, MessageFailure, MessageId, MessageKey, MessageOutcome, Metadata, PartialText,
    PartitionCount, PartitionId, Placement, Position, QueryTarget, QueueStatus, Role, Seq, ThreadId,
    Timestamp, TurnId, WaitReason, WaitingTurn,
};
use partition::Commit;
use runtime::{Clock, Health, spawn_named};
use store::{CommitWriter, Grant, Store, StoreConfig, Submission};
use testkit::services::{NatsServer, TestDatabase};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wire::live::FrameBatch;
use wire::query::{ChangedThreads, ChangedThreadsQuery, Query, SnapshotReply, SnapshotRequest};

const OWNER: &str = "test-owner";

pub(crate) struct Fixture {
    pub(crate) nats: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) gateways: Vec<SocketAddr>,
    /// The gateways' ids, as owners know them.
    ids: Vec<GatewayId>,
    pub(crate) drain: CancellationToken,
    pub(crate) thread: ThreadId,
    pub(crate) database: TestDatabase,
    grant: Grant,
    writer: CommitWriter,
    state: Arc<Mutex<PartitionState>>,
}

/// The state of the partition that its scripted owners share.
#[derive(Debug)]
pub(crate) struct PartitionState {
    epoch: u64,
    /// The number of the last frame; `last` has the number of each thread's last frame.
    number: u64,
    last: HashMap<ThreadId, u64>,
    open: BTreeMap<(ThreadId, MessageId), PartialText>,
    committed: HashMap<ThreadId, Position>,
    /// The position of the next failure for which a test names none.
    next_failure: i64,
    /// The owner has read everything.
    pub(crate) is_current: bool,
    /// The owner replies to queries for changed threads.
    pub(crate) replies_to_watch: bool,
    /// The epochs that those queries named.
    pub(crate) watched_epochs: Vec<u64>,
}

impl PartitionState {
    fn new() -> Self {
        let (last, open, committed) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self {
            epoch: 1,
            number: 0,
            last,
            open,
            committed,
            next_failure: 1,
            is_current: true,
            replies_to_watch: true,
            watched_epochs: Vec::new(),
        }
    }

    /// Applies a frame, and gives it its number.
    fn apply(&mut self, frame: &mut LiveFrame) {
        self.number += 1;
        let after = self.last.insert(frame.thread.clone(), self.number).unwrap_or(0);
        frame.number = FrameNumber { epoch: self.epoch, number: self.number, after };
        let key = (frame.thread.clone(), frame.message.clone());
        if let Some(end) = &frame.terminal {
            self.open.remove(&key);
            self.committed.insert(frame.thread.clone(), end.position);
            return;
        }
        let new = || PartialText {
            message: frame.message.clone(),
            attempt: frame.attempt,
            role: frame.role,
            batch_type: frame.batch_type,
            chunks: Vec::new(),
            next: 0,
            input: frame.input.clone(),
        };
        let open = self.open.entry(key).or_insert_with(new);
        if frame.attempt > open.attempt {
            *open = PartialText { input: open.input.take(), ..new() };
        }
        if frame.attempt == open.attempt {
            open.chunks.extend(frame.chunks.iter().filter(|chunk| chunk.id >= open.next).cloned());
            open.next = open.chunks.len() as u32;
        }
    }

    fn answer(&self, ask: &SnapshotRequest) -> SnapshotReply {
        let committed = self.committed.get(&ask.thread).copied().unwrap_or(Position::from_stored(0));
        let cut = Cut { epoch: self.epoch, number: self.number, committed, is_current: self.is_current };
        let open = self.open.iter().filter(|((thread, _), _)| *thread == ask.thread);
        let open = open.map(|(_, text)| beyond(text, ask)).collect();
        SnapshotReply { cut, open, left_out: false, more: false }
    }

    fn sent(&self, after: ChangedThreadsQuery) -> ChangedThreads {
        let after = if after.epoch == self.epoch { after.number } else { 0 };
        let threads = self.last.iter().filter(|(_, number)| **number > after);
        let threads = threads.map(|(thread, number)| (thread.clone(), *number)).collect();
        ChangedThreads { epoch: self.epoch, number: self.number, threads, is_complete: true }
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(GatewayLimits::default(), 2).await
    }

    pub(crate) async fn with(limits: GatewayLimits, gateways: usize) -> Self {
        Self::with_limits(limits, HttpLimits::default(), gateways).await
    }

    /// A fixture whose gateways have these limits of connections.
    pub(crate) async fn with_http(http: HttpLimits, gateways: usize) -> Self {
        Self::with_limits(GatewayLimits::default(), http, gateways).await
    }

    async fn with_limits(limits: GatewayLimits, http: HttpLimits, gateways: usize) -> Self {
        let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
        store::migrate(database.url(), PartitionCount::new(1).unwrap()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(database.url())).await.unwrap();
        let bus = Bus::connect(&BusConfig::new(nats.url(), "test")).await.unwrap();
        bus.ensure_streams(PartitionCount::new(1).unwrap(), &StreamOptions::default()).await.unwrap();
        let grant = store.acquire(OWNER, Duration::from_secs(600), 1).await.unwrap().remove(0);
        let writer = store.writer(OWNER).unwrap();
        let mut fixture = Self {
            nats,
            bus,
            store,
            gateways: Vec::new(),
            ids: Vec::new(),
            drain: CancellationToken::new(),
            thread: ThreadId::parse("t1").unwrap(),
            grant,
            writer,
            database,
            state: Arc::new(Mutex::new(PartitionState::new())),
        };
        for _ in 0..gateways {
            fixture.open_gateway(limits, http).await;
        }
        fixture
    }

    async fn open_gateway(&mut self, limits: GatewayLimits, http: HttpLimits) {
        let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap(), AccessConfig::insecure());
        config.limits = limits;
        config.http.limits = http;
        self.open_as(config).await;
    }

    /// Adds a gateway with this access configuration.
    pub(crate) async fn open_for(&mut self, access: AccessConfig, limits: GatewayLimits) -> Health {
        let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap(), access);
        config.limits = limits;
        self.open_as(config).await
    }

    pub(crate) async fn open_as(&mut self, config: GatewayConfig) -> Health {
        let gateway = Gateway::bind(&config).unwrap();
        self.gateways.push(gateway.addr());
        self.ids.push(gateway.id().clone());
        let bus = Bus::connect(&BusConfig::new(self.nats.url(), "gateway")).await.unwrap();
        let (health, clock) = (Health::default(), Clock::start());
        health.set_started();
        health.set_ready("gateway", false);
        let ready = health.clone();
        spawn_named("gateway", gateway.serve(bus, self.store.clone(), health, clock, self.drain.clone()));
        while !ready.readyz().ok {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        ready
    }

    pub(crate) async fn send(&self, message: &str, first: u32, text: &str) {
        self.send_frame(&self.frame(message, 0, first, text)).await;
    }

    pub(crate) async fn send_frame(&self, frame: &LiveFrame) {
        let mut frame = frame.clone();
        self.state().apply(&mut frame);
        self.publish(&frame).await;
    }

    /// Publishes a frame, whose number is already set.
    pub(crate) async fn publish(&self, frame: &LiveFrame) {
        for id in &self.ids {
            let mut batch = FrameBatch::default();
            batch.push(&wire::live::encode(frame));
            self.bus.publish_live_frames(id, batch.into_payload()).await.unwrap();
        }
    }

    /// A position below 10 that no other failure has.
    pub(crate) fn next_failure(&self) -> i64 {
        let mut state = self.state();
        state.next_failure += 1;
        assert!(state.next_failure <= 10);
        state.next_failure - 1
    }

    /// A frame that is lost in transit.
    pub(crate) fn lose(&self, message: &str, first: u32, text: &str) {
        self.state().apply(&mut self.frame(message, 0, first, text));
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, PartitionState> {
        self.state.lock().unwrap()
    }

    /// One chunk per word; a `.` at the end makes the last one final.
    pub(crate) fn frame(&self, message: &str, attempt: u32, first: u32, text: &str) -> LiveFrame {
        LiveFrame {
            thread: self.thread.clone(),
            message: id(message),
            attempt,
            role: Role::Assistant,
            batch_type: batch_type(&id(message)),
            // Assigned when the frame is sent.
            number: FrameNumber { epoch: 0, number: 0, after: 0 },
            chunks: chunks(first, text),
            terminal: None,
            input: None,
        }
    }

    pub(crate) async fn send_end(&self, message: &str, chunks: u32, position: i64) {
        self.send_frame(&self.end(message, chunks, position, MessageOutcome::Complete)).await;
    }

    /// The end of a message, as its owner sends it.
    pub(crate) fn end(
        &self,
        message: &str,
        chunks: u32,
        position: i64,
        outcome: MessageOutcome,
    ) -> LiveFrame {
        let (position, report) = (Position::from_stored(position), model::AnswerReport::default());
        let end = MessageEnd { position, chunks, outcome, report };
        LiveFrame { terminal: Some(end), chunks: Vec::new(), ..self.frame(message, 0, 0, "") }
    }

    /// The end is stored, but its frame is lost in transit.
    pub(crate) fn lose_end(&self, message: &str, position: i64) {
        self.state().apply(&mut self.end(message, 0, position, MessageOutcome::Complete));
    }

    pub(crate) async fn commit(&self, message: &str, position: i64, content: &str) {
        let placement = Placement {
            position: Position::from_stored(position),
            batch_id: Position::from_stored(position),
            sequence_num: 0,
            // The message is not the answer of a turn.
            batch_type: BatchType::SystemTrigger,
        };
        let message = Message {
            tool_call_id: None,
            key: self.key(message),
            placement,
            role: Role::Assistant,
            content: content.to_owned(),
            tool_calls: None,
            metadata: Metadata::EMPTY,
            token_count: None,
            attempt: 0,
            times: model::MessageTimes::default(),
        };
        self.apply(Commit { messages: vec![message], ..self.empty_commit() }).await;
    }

    /// Like [`Fixture::commit`], but the frame of the end is lost.
    pub(crate) async fn commit_unheard(&self, message: &str, position: i64, content: &str) {
        self.commit(message, position, content).await;
        self.lose_end(message, position);
    }

    pub(crate) async fn give_up(&self, message: &str, position: i64) {
        let source = DeadLetterSource::Message {
            key: self.key(message),
            attempt: 0,
            chunks: Vec::new(),
            failure: MessageFailure::Stalled,
        };
        let dead_letters = vec![DeadLetter { seq: Seq(1), source }];
        let failed_messages = vec![self.failed(message, position, MessageFailure::Stalled)];
        self.apply(Commit { dead_letters, failed_messages, ..self.empty_commit() }).await;
    }

    /// Stores the failure of an answer, as the commit of a failed run does.
    pub(crate) async fn keep_failure(&self, message: &str, position: i64, failure: MessageFailure) {
        let failed_messages = vec![self.failed(message, position, failure)];
        self.apply(Commit { failed_messages, ..self.empty_commit() }).await;
    }

    fn failed(&self, message: &str, position: i64, failure: MessageFailure) -> FailedMessage {
        FailedMessage {
            key: self.key(message),
            position: Position::from_stored(position),
            attempt: 0,
            role: Role::Assistant,
            batch_type: batch_type(&id(message)),
            failure,
        }
    }

    fn key(&self, message: &str) -> MessageKey {
        MessageKey { thread: self.thread.clone(), message: id(message) }
    }

    fn empty_commit(&self) -> Commit {
        Commit::empty(self.grant.partition, self.grant.epoch, Seq(1), Timestamp(0))
    }

    async fn apply(&self, commit: Commit) {
        let status = self.store.partitions_status().await.unwrap();
        let commits = status[usize::from(commit.partition.0)].commits;
        let submission =
            Submission { commit: &commit, commits, saves: 0, incarnation: "stream", read: None, gone: &[] };
        let outcome = self.writer.commit(&[submission]).await.unwrap();
        assert_eq!(outcome, [store::Committed::Applied]);
    }

    /// Answers queries from the state of the partition, counting them, until it is dropped. `open`
    /// adds messages to what was sent. The frames of another epoch are numbered from the beginning.
    pub(crate) async fn owner(&self, epoch: u64, open: Vec<(&str, u32, &str)>) -> Owner {
        {
            let mut state = self.state();
            if state.epoch != epoch {
                (state.epoch, state.number) = (epoch, 0);
                state.last.clear();
            }
            for (message, attempt, text) in open {
                let (message, chunks) = (id(message), chunks(0, text));
                let (next, batch_type) = (chunks.len() as u32, batch_type(&message));
                let key = (self.thread.clone(), message.clone());
                let role = Role::Assistant;
                let text = PartialText { message, attempt, role, batch_type, chunks, next, input: None };
                state.open.insert(key, text);
            }
        }
        let mut asks = self.bus.serve_queries(PartitionId(0)).await.unwrap();
        let asked: Arc<Mutex<Vec<SnapshotRequest>>> = Arc::default();
        let explanation = Arc::new(Mutex::new(idle()));
        let questions: Arc<Mutex<Vec<QueryTarget>>> = Arc::default();
        let (log, thread, state) = (Arc::clone(&asked), self.thread.clone(), Arc::clone(&self.state));
        let (says, hears) = (Arc::clone(&explanation), Arc::clone(&questions));
        let task = spawn_named("owner", async move {
            while let Some(request) = asks.next().await {
                let ask = match wire::query::decode_query(&request.payload).unwrap() {
                    Query::Snapshot(_, ask) => ask,
                    Query::ChangedThreads(_, after) => {
                        let sent = {
                            let mut state = state.lock().unwrap();
                            state.watched_epochs.push(after.epoch);
                            state.replies_to_watch.then(|| state.sent(after))
                        };
                        if let Some(sent) = sent {
                            request.respond(wire::query::encode_changed_threads(&sent)).await.unwrap();
                        }
                        continue;
                    }
                    Query::Status(target) => {
                        hears.lock().unwrap().push(target);
                        let said = says.lock().unwrap().clone();
                        request.respond(wire::status::encode_reply(epoch, &said)).await.unwrap();
                        continue;
                    }
                };
                let reply = wire::query::encode_snapshot(&state.lock().unwrap().answer(&ask));
                if ask.thread == thread {
                    log.lock().unwrap().push(ask);
                }
                request.respond(reply).await.unwrap();
            }
        });
        // The server must know the subscription before the test goes on.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Owner { asked, explanation, questions, task }
    }
}

/// Everything has been read; nothing is in progress and nothing waits.
pub(crate) fn idle() -> QueueStatus {
    QueueStatus {
        active: None,
        waiting: Vec::new(),
        reason: None,
        paused: false,
        head: None,
        applied_seq: Seq(u64::MAX),
        open: Vec::new(),
        inputs: None,
        busy: None,
    }
}

/// An input that waits behind another one.
pub(crate) fn behind(turn: TurnId) -> WaitingTurn {
    WaitingTurn { turn, reason: WaitReason::HeadOfLine, age_ms: 5, yields: false }
}

/// Stops when it is dropped, like an owner that is killed.
pub(crate) struct Owner {
    pub(crate) asked: Arc<Mutex<Vec<SnapshotRequest>>>,
    /// Its reply to queries about why something waits.
    pub(crate) explanation: Arc<Mutex<QueueStatus>>,
    /// The targets of those queries.
    pub(crate) questions: Arc<Mutex<Vec<QueryTarget>>>,
    task: JoinHandle<()>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The part of the text that the asker lacks.
fn beyond(text: &PartialText, ask: &SnapshotRequest) -> PartialText {
    let known = ask.known.iter().find(|known| known.message == text.message);
    let same = known.filter(|known| known.attempt == text.attempt);
    let from = same.map_or(0, |known| known.next as usize).min(text.chunks.len());
    let input = text.input.clone().filter(|_| known.is_none_or(|known| !known.has_input));
    PartialText { chunks: text.chunks[from..].to_vec(), input, ..text.clone() }
}

/// A message whose id is not that of an answer was not requested by a person.
fn batch_type(message: &MessageId) -> BatchType {
    match TurnId::of_answer(message) {
        Some(_) => BatchType::UserRequest,
        None => BatchType::SystemTrigger,
    }
}

fn chunks(first: u32, text: &str) -> Vec<Arc<Chunk>> {
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let chunk = |(n, word): (usize, &&str)| {
        let is_final = word.ends_with('.') && n + 1 == words.len();
        Arc::new(Chunk::content(first + n as u32, word, is_final))
    };
    words.iter().enumerate().map(chunk).collect()
}

fn id(text: &str) -> MessageId {
    MessageId::parse(text).unwrap()
}
