//! NATS, Postgres, gateways, and an owner that does what a test tells it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::{Bus, BusConfig, StreamOptions};
use gateway::{Gateway, GatewayConfig, Limits};
use model::{
    BatchType, Chunk, DeadLetter, DeadLetterSource, Failure, Message, MessageId, MessageKey, Metadata,
    OpenText, Outcome, PartitionCount, PartitionId, Placement, Position, Role, Seq, ThreadId, Timestamp,
};
use partition::Commit;
use runtime::{Clock, Health, spawn_named};
use store::{Grant, Store, StoreConfig, Submission, Writer};
use testkit::services::{NatsServer, TestDatabase};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wire::ask::{Ask, AskReply, Question};
use wire::explain::{About, Explanation};
use wire::out::{End, OutFrame};

const OWNER: &str = "test-owner";

pub(crate) struct Town {
    pub(crate) nats: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) gateways: Vec<SocketAddr>,
    pub(crate) drain: CancellationToken,
    pub(crate) thread: ThreadId,
    pub(crate) database: TestDatabase,
    grant: Grant,
    writer: Writer,
}

impl Town {
    pub(crate) async fn new() -> Self {
        Self::with(Limits::default(), 2).await
    }

    pub(crate) async fn with(limits: Limits, gateways: usize) -> Self {
        let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
        store::migrate(database.url(), PartitionCount::new(1).unwrap()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(database.url())).await.unwrap();
        let bus = Bus::connect(&BusConfig::new(nats.url(), "town")).await.unwrap();
        bus.ensure_streams(PartitionCount::new(1).unwrap(), &StreamOptions::default()).await.unwrap();
        let grant = store.acquire(OWNER, Duration::from_secs(600), 1).await.unwrap().remove(0);
        let writer = store.writer(OWNER).unwrap();
        let mut town = Self {
            nats,
            bus,
            store,
            gateways: Vec::new(),
            drain: CancellationToken::new(),
            thread: ThreadId::parse("t1").unwrap(),
            grant,
            writer,
            database,
        };
        for _ in 0..gateways {
            town.open_gateway(limits).await;
        }
        town
    }

    async fn open_gateway(&mut self, limits: Limits) {
        self.open_for(gateway::AccessConfig::insecure(), limits).await;
    }

    /// One more gateway, which lets these in.
    pub(crate) async fn open_for(&mut self, access: gateway::AccessConfig, limits: Limits) -> Health {
        let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap(), access);
        config.limits = limits;
        let gateway = Gateway::bind(&config).unwrap();
        self.gateways.push(gateway.addr());
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

    pub(crate) async fn send_frame(&self, frame: &OutFrame) {
        self.bus.publish_out(&frame.thread, wire::out::encode(frame)).await.unwrap();
    }

    /// One chunk per word; a `.` at the end makes the last one final.
    pub(crate) fn frame(&self, message: &str, attempt: u32, first: u32, text: &str) -> OutFrame {
        OutFrame {
            thread: self.thread.clone(),
            message: id(message),
            attempt,
            role: Role::Assistant,
            chunks: chunks(first, text),
            terminal: None,
        }
    }

    pub(crate) async fn send_end(&self, message: &str, chunks: u32, position: i64) {
        let outcome = Outcome::Complete(Position::from_stored(position));
        let frame = OutFrame { terminal: Some(End { chunks, outcome }), ..self.frame(message, 0, 0, "") };
        self.send_frame(&frame).await;
    }

    pub(crate) async fn commit(&self, message: &str, position: i64, content: &str) {
        let placement = Placement {
            position: Position::from_stored(position),
            batch_id: Position::from_stored(position),
            sequence_num: 0,
            // Nobody asked for it: it is not the answer of a turn.
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
        };
        self.apply(Commit { messages: vec![message], ..self.empty_commit() }).await;
    }

    pub(crate) async fn give_up(&self, message: &str) {
        let source = DeadLetterSource::Message {
            key: self.key(message),
            attempt: 0,
            chunks: Vec::new(),
            failure: Failure::Stalled,
        };
        let dead_letters = vec![DeadLetter { seq: Seq(1), source }];
        self.apply(Commit { dead_letters, ..self.empty_commit() }).await;
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
            Submission { commit: &commit, commits, incarnation: "stream", read: None, gone: &[] };
        let outcome = self.writer.commit(&[submission]).await.unwrap();
        assert_eq!(outcome, [store::Committed::Applied]);
    }

    /// Answers questions from `open`, counting them, until it is dropped.
    pub(crate) async fn owner(&self, epoch: u64, open: Vec<(&str, u32, &str)>) -> Owner {
        let text = |(message, attempt, text): (&str, u32, &str)| {
            let chunks = chunks(0, text);
            let next = chunks.len() as u32;
            OpenText { message: id(message), attempt, role: Role::Assistant, chunks, next }
        };
        let open: Vec<_> = open.into_iter().map(text).collect();
        let mut asks = self.bus.serve_asks(PartitionId(0)).await.unwrap();
        let asked: Arc<Mutex<Vec<Ask>>> = Arc::default();
        let explanation = Arc::new(Mutex::new(idle()));
        let questions: Arc<Mutex<Vec<About>>> = Arc::default();
        let (log, thread) = (Arc::clone(&asked), self.thread.clone());
        let (says, hears) = (Arc::clone(&explanation), Arc::clone(&questions));
        let task = spawn_named("owner", async move {
            while let Some(request) = asks.next().await {
                let ask = match wire::ask::decode_question(&request.payload).unwrap() {
                    Question::Open(ask) => ask,
                    Question::Why(about) => {
                        hears.lock().unwrap().push(about);
                        let said = says.lock().unwrap().clone();
                        request.respond(wire::explain::encode_explanation(epoch, &said)).await.unwrap();
                        continue;
                    }
                };
                let open = if ask.thread == thread { beyond(&open, &ask) } else { Vec::new() };
                if ask.thread == thread {
                    log.lock().unwrap().push(ask);
                }
                let reply = wire::ask::encode_reply(&AskReply { epoch, open, more: false });
                request.respond(reply).await.unwrap();
            }
        });
        // The server knows of the subscription before the test goes on.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Owner { asked, explanation, questions, task }
    }
}

/// Nothing is under way and nothing waits.
pub(crate) fn idle() -> Explanation {
    Explanation {
        active: None,
        waiting: Vec::new(),
        reason: None,
        paused: false,
        head: None,
        known_up_to: Seq(0),
    }
}

/// Ends with its value, as an owner does that is killed.
pub(crate) struct Owner {
    pub(crate) asked: Arc<Mutex<Vec<Ask>>>,
    /// What it says when it is asked why something waits.
    pub(crate) explanation: Arc<Mutex<Explanation>>,
    /// What it was asked about then.
    pub(crate) questions: Arc<Mutex<Vec<About>>>,
    task: JoinHandle<()>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn beyond(open: &[OpenText], ask: &Ask) -> Vec<OpenText> {
    let rest = |text: &OpenText| {
        let known = ask
            .have
            .iter()
            .find(|(message, attempt, _)| *message == text.message && *attempt == text.attempt);
        let from = known.map_or(0, |(_, _, next)| *next as usize).min(text.chunks.len());
        OpenText { chunks: text.chunks[from..].to_vec(), ..text.clone() }
    };
    open.iter().map(rest).collect()
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
