//! A database per test, and short constructors for the values that tests commit.

use std::time::Duration;

use batches::Item;
use model::{
    BatchType, DeadLetter, DeadLetterSource, FailedMessage, Message, MessageFailure, MessageId, MessageKey,
    Metadata, PartitionCount, PartitionId, Placement, Position, RejectedEntry, Role, Seq, ThreadId,
    Timestamp,
};
use partition::Commit;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use store::{
    Applied, CommitError, CommitWriter, Committed, Grant, ImportOutcome, NewThread, Store, StoreConfig,
    Submission, ThreadImport,
};

pub(crate) const TTL: Duration = Duration::from_secs(60);
pub(crate) const INCARNATION: &str = "stream-1";

/// Creates the role unless it exists, because several tests create it concurrently.
const OWNER: &str = "DO $$ BEGIN
    CREATE ROLE antiphon LOGIN PASSWORD 'antiphon' IN ROLE pg_monitor, pg_signal_backend, pg_checkpoint;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$";

/// A database that is dropped with the value.
pub(crate) struct Database {
    pub(crate) url: String,
    server: String,
    name: String,
}

impl Database {
    /// A new database without tables.
    pub(crate) async fn empty() -> Self {
        #[allow(clippy::disallowed_methods, reason = "`cargo xtask test` sets where Postgres is")]
        let server =
            std::env::var("DATABASE_URL").expect("DATABASE_URL; run the tests with `cargo xtask test`");
        Self::empty_on(server).await
    }

    /// A new database without tables, on the server of this URL.
    pub(crate) async fn empty_on(server: String) -> Self {
        let name = format!("store_{:016x}", rand::random::<u64>());
        let (front, query) = server
            .split_once('?')
            .map_or((server.as_str(), String::new()), |(front, query)| (front, format!("?{query}")));
        let slash = front
            .rfind('/')
            .filter(|at| *at > front.find("//").map_or(0, |at| at + 1))
            .unwrap_or(front.len());
        // The owner of the tables is not a superuser, as in production, so row-level security
        // applies to it.
        let (scheme, host) = front[..slash].split_once("://").unwrap();
        let host = &host[host.rfind('@').map_or(0, |at| at + 1)..];
        let joint = if query.is_empty() { '?' } else { '&' };
        let all = "options=-c%20antiphon.tenant%3D*";
        let url = format!("{scheme}://antiphon:antiphon@{host}/{name}{query}{joint}{all}");
        execute_at(&server, OWNER).await;
        execute_at(&server, &format!("CREATE DATABASE {name} OWNER antiphon")).await;
        Self { url, server, name }
    }

    /// A new database laid out for `count` partitions.
    pub(crate) async fn new(count: u64) -> (Self, Store) {
        let database = Self::empty().await;
        store::migrate(&database.url, PartitionCount::new(count).unwrap()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(&database.url)).await.unwrap();
        (database, store)
    }

    /// Runs SQL as the superuser of the server.
    pub(crate) async fn execute_as_superuser(&self, sql: &str) {
        execute_at(&self.superuser_url(), sql).await;
    }

    /// The URL of the same database for the superuser, to whom row-level security does not apply.
    pub(crate) fn superuser_url(&self) -> String {
        let (front, _) = self.server.rsplit_once('/').unwrap();
        format!("{front}/{}", self.name)
    }

    pub(crate) async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    pub(crate) async fn execute(&self, sql: &str) {
        execute_at(&self.url, sql).await;
    }

    /// Every row of a query as JSON text.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<String> {
        let sql = AssertSqlSafe(format!("SELECT row_to_json(q)::text AS row FROM ({sql}) AS q"));
        let rows = sqlx::query(sql).fetch_all(&mut self.session().await).await.unwrap();
        rows.iter().map(|row| row.get("row")).collect()
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let row =
            sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(&mut self.session().await).await.unwrap();
        row.get(0)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let remove = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(execute_at(&server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")));
        };
        std::thread::spawn(remove).join().ok();
    }
}

async fn execute_at(url: &str, sql: &str) {
    let mut session = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut session).await.unwrap();
}

/// An owner with its writer and one partition.
pub(crate) struct Owner {
    pub(crate) writer: CommitWriter,
    pub(crate) grant: Grant,
    pub(crate) store: Store,
}

impl Owner {
    /// Creates the owner `name` of the lowest free partition.
    pub(crate) async fn new(store: &Store, name: &str) -> Self {
        let grant = store.acquire(name, TTL, 1).await.unwrap().remove(0);
        Self { writer: store.writer(name).unwrap(), grant, store: store.clone() }
    }

    /// The stored state of its partition, with the epoch of its grant.
    pub(crate) async fn applied(&self) -> Applied {
        Applied { commits: commits(&self.store, self.grant.partition).await, ..Applied::from(&self.grant) }
    }

    pub(crate) fn empty(&self) -> Commit {
        commit(self.grant.partition, self.grant.epoch)
    }

    pub(crate) async fn commit(&self, commit: &Commit) -> Result<Committed, CommitError> {
        self.commit_of(INCARNATION, commit).await
    }

    /// Applies a commit to the current state of the store, for the stream with this incarnation.
    pub(crate) async fn commit_of(
        &self,
        incarnation: &str,
        commit: &Commit,
    ) -> Result<Committed, CommitError> {
        let submission = Submission { incarnation, ..submission(commit, self.applied().await.commits) };
        self.writer.commit(&[submission]).await.map(|mut all| all.remove(0))
    }
}

/// The number of commits of the partition.
pub(crate) async fn commits(store: &Store, partition: PartitionId) -> u64 {
    let all = store.partitions_status().await.unwrap();
    all.iter().find(|status| status.partition == partition).map_or(0, |status| status.commits)
}

/// A commit that expects this many earlier commits.
pub(crate) fn submission(commit: &Commit, commits: u64) -> Submission<'_> {
    Submission { commit, commits, saves: 0, incarnation: INCARNATION, read: None, gone: &[] }
}

pub(crate) fn commit(partition: PartitionId, epoch: u64) -> Commit {
    Commit::empty(partition, epoch, Seq(0), Timestamp(0))
}

pub(crate) fn thread(id: &str) -> ThreadId {
    ThreadId::parse(id).unwrap()
}

/// Imports batches into a thread, which is created unless it exists, and returns how many messages
/// are new.
pub(crate) async fn import_batches(
    store: &Store,
    thread: &ThreadId,
    items: &[Item],
    beside: &[Position],
) -> u64 {
    let metadata = Metadata::EMPTY;
    let named = NewThread { thread: thread.clone(), agent: None, policy: None, metadata };
    let import = ThreadImport {
        beside: beside.to_vec(),
        ..ThreadImport::new(thread.clone(), Some(named), items.to_vec())
    };
    let outcome = store.import_thread(&import, None).await.unwrap();
    let stored = match &outcome {
        ImportOutcome::Stored(rows) => Some(rows.messages),
        ImportOutcome::Refused(_) => None,
    };
    assert!(stored.is_some(), "{outcome:?}");
    stored.unwrap_or_default()
}

pub(crate) fn key(thread: &str, message: &str) -> MessageKey {
    MessageKey { thread: ThreadId::parse(thread).unwrap(), message: MessageId::parse(message).unwrap() }
}

pub(crate) fn message(thread: &str, id: &str, position: i64) -> Message {
    Message {
        key: key(thread, id),
        placement: Placement {
            position: Position::from_stored(position),
            batch_id: Position::from_stored(position),
            sequence_num: 0,
            batch_type: BatchType::SystemTrigger,
        },
        role: Role::Assistant,
        content: format!("text of {id}"),
        tool_calls: None,
        tool_call_id: None,
        metadata: metadata(serde_json::json!({"tokens_used": 15})),
        token_count: Some(15),
        attempt: 0,
        times: model::MessageTimes::default(),
    }
}

pub(crate) fn metadata(value: serde_json::Value) -> Metadata {
    Metadata::new(value.as_object().unwrap().clone()).unwrap()
}

pub(crate) fn dead_entry(seq: u64, payload: &[u8]) -> DeadLetter {
    let refusal = RejectedEntry { code: "malformed", detail: "not\0JSON".to_owned() };
    let payload = bytes::Bytes::copy_from_slice(payload);
    DeadLetter {
        seq: Seq(seq),
        source: DeadLetterSource::Entry { subject: "chunks.0.t".to_owned(), payload, refusal },
    }
}

pub(crate) fn dead_message(key: MessageKey, seq: u64, failure: MessageFailure) -> DeadLetter {
    let chunks =
        vec![model::Chunk::content(0, "a", false).into(), model::Chunk::content(2, "c\0", true).into()];
    DeadLetter { seq: Seq(seq), source: DeadLetterSource::Message { key, attempt: 3, chunks, failure } }
}

pub(crate) fn failed(key: MessageKey, position: i64, failure: MessageFailure) -> FailedMessage {
    FailedMessage {
        key,
        position: Position::from_stored(position),
        attempt: 3,
        role: Role::Assistant,
        batch_type: BatchType::SystemTrigger,
        failure,
    }
}

/// A thread id that belongs to the partition.
pub(crate) fn thread_of(partition: PartitionId, count: u64, number: usize) -> String {
    let count = PartitionCount::new(count).unwrap();
    let ids = (0..).map(|n| format!("thread-{n}"));
    ids.filter(|id| thread(id).bucket().partition(count) == partition).nth(number).unwrap()
}
