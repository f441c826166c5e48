//! Applies commits. One statement applies a group of commits. Each commit is fenced by the epoch of
//! its lease and the number of earlier commits.
//!
//! Each table has a module with its rows, one struct per kind, and `.sql` files that write them.
//! `statement.rs` lists the tables. [`CommitWriter`] is the entry type.

mod agents;
mod audit;
mod columns;
mod dead_letters;
mod facts;
mod failed_messages;
mod failed_tasks;
mod failed_turns;
mod incidents;
mod messages;
mod outbox;
mod partitions;
mod rows;
mod save;
mod spills;
mod statement;
mod submission;
mod task_changes;
mod tasks;
mod timers;
mod turns;
mod usage;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{Connection, PgConnection, Row};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use crate::config::StoreConfig;
use crate::connect::{self, run_uncancelled};
use crate::error::{Cause, sqlstate};
use crate::error::{Disposition, StoreError};
use crate::statement::Statement;
use crate::store::Store;

use self::rows::{Checks, CommitGroup};
pub use self::submission::{StreamGap, Submission};
pub use facts::MOST_OF_SCOPE;

/// After this idle time the connection is probed before use. Otherwise a dead connection would lead
/// to an unknown outcome.
const IDLE_BEFORE_PROBE: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const UNIQUE_VIOLATION: &str = "23505";

/// The outcome of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The whole commit is durable.
    Applied,
    /// The commit is durable, except for queues whose stored heads were no longer below their
    /// guards, and except for the turns and marks that belong to them. The owner's state of these
    /// queues is wrong: rebuild the partition from the store.
    Stale,
    /// Nothing was written, because the lease is lost or the store has gone back in time.
    /// [`crate::Store::reclaim`] finds out which.
    Fenced,
}

/// A group of commits was not applied, or its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Nothing was sent, or the server reports that nothing was applied.
    #[error("not committed, may be tried again: {0}")]
    Retry(String),
    /// The statement timeout expired; nothing was applied.
    #[error("not committed in time: {0}")]
    TooSlow(String),
    /// The connection broke or timed out after the statement was sent.
    #[error("the outcome of the commit is unknown: {0}")]
    Unknown(String),
    /// Something in the group cannot be stored; nothing was applied.
    #[error("not committed, the store refuses the data: {sqlstate} {detail}")]
    Data {
        sqlstate: String,
        /// The message of Postgres.
        detail: String,
    },
    /// The server found damaged data; nothing was applied.
    #[error("not committed, something in the store is damaged: {sqlstate} {detail}")]
    Damaged {
        sqlstate: String,
        /// The message of Postgres.
        detail: String,
    },
    /// A defect or a foreign database; nothing was applied.
    #[error("not committed: {0}")]
    Fatal(String),
}

impl CommitError {
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Retry(_) => Disposition::Retry,
            Self::TooSlow(_) => Disposition::TooSlow,
            Self::Unknown(_) => Disposition::Unknown,
            Self::Data { .. } => Disposition::Data,
            Self::Damaged { .. } => Disposition::Damaged,
            Self::Fatal(_) => Disposition::Fatal,
        }
    }

    /// Error for a group of which nothing was sent, because no connection could be opened.
    fn unsent(error: sqlx::Error) -> Self {
        match StoreError::of_connect(error) {
            error @ (StoreError::Url(_) | StoreError::Refused(_)) => Self::Fatal(error.to_string()),
            error => Self::Retry(error.to_string()),
        }
    }

    /// Error for a statement that failed after it may have been sent.
    fn sent(error: &sqlx::Error) -> Self {
        match (Cause::of(error), error) {
            (Cause::Data, sqlx::Error::Database(error)) => Self::Data {
                sqlstate: sqlstate(error.as_ref()).into_owned(),
                detail: error.message().to_owned(),
            },
            (Cause::Damaged, sqlx::Error::Database(error)) => Self::Damaged {
                sqlstate: sqlstate(error.as_ref()).into_owned(),
                detail: error.message().to_owned(),
            },
            // A statement too large for the protocol. sqlx detects this before it sends anything.
            // The error is permanent, like data that the server refuses.
            (_, sqlx::Error::Encode(error)) => {
                Self::Data { sqlstate: "54000".to_owned(), detail: error.to_string() }
            }
            (Cause::NotNow | Cause::Connect, error) => Self::Retry(error.to_string()),
            (Cause::TooSlow, error) => Self::TooSlow(error.to_string()),
            (Cause::Lost, error) => Self::Unknown(error.to_string()),
            (Cause::Data | Cause::Damaged | Cause::Other, error) => Self::Fatal(error.to_string()),
        }
    }
}

/// Commits as one owner over one connection, on which the statements stay prepared.
///
/// Groups are applied one after the other. The connection opens on demand and is never reused after
/// an uncertain outcome.
#[derive(Debug)]
pub struct CommitWriter {
    owner: String,
    options: PgConnectOptions,
    answer_timeout: Duration,
    session: Arc<Mutex<Option<WriterSession>>>,
}

#[derive(Debug)]
struct WriterSession {
    connection: PgConnection,
    used_at: Instant,
}

impl Store {
    /// Creates a writer that commits as `owner`, over a connection of its own. The connection opens
    /// with the first commit.
    pub fn writer(&self, owner: &str) -> Result<CommitWriter, StoreError> {
        CommitWriter::new(owner, self.config())
    }
}

impl CommitWriter {
    /// Creates a writer that commits as `owner`. The connection opens with the first commit.
    pub fn new(owner: &str, config: &StoreConfig) -> Result<Self, StoreError> {
        Ok(Self {
            owner: owner.to_owned(),
            options: connect::session_options(config)?,
            answer_timeout: config.answer_timeout(),
            session: Arc::default(),
        })
    }

    /// Applies a group of commits, each whole or not at all, and returns their outcomes in order.
    ///
    /// A group may hold at most one commit per partition, and at most one commit of a partition may
    /// be in flight. On an error nothing was applied, unless its disposition is
    /// [`Disposition::Unknown`]. Dropping the future does not stop the statement.
    pub async fn commit(&self, group: &[Submission<'_>]) -> Result<Vec<Committed>, CommitError> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        check_distinct(group)?;
        let of =
            |checks| statement::statement(CommitGroup { owner: &self.owner, submissions: group, checks });
        let rows = match self.apply(of(Checks::None)).await? {
            Ok(rows) => rows,
            // One of the messages is stored already, by an earlier statement with an unknown
            // outcome.
            Err(_) => {
                let checked = self.apply(of(Checks::Stored)).await?;
                checked.map_err(|twice| CommitError::Fatal(twice.0))?
            }
        };
        outcomes(&rows, group.len())
    }

    async fn apply(&self, statement: Statement) -> Result<Result<Vec<PgRow>, StoredTwice>, CommitError> {
        let (options, limit) = (self.options.clone(), self.answer_timeout);
        let session = Arc::clone(&self.session);
        let work = async move { apply(session.lock_owned().await, &options, limit, statement).await };
        let rows = run_uncancelled(work).await;
        rows.unwrap_or_else(|| Err(CommitError::Unknown("the process is stopping".into())))
    }
}

/// A unique key has rejected the statement, with this message; nothing was applied.
struct StoredTwice(String);

fn check_distinct(group: &[Submission<'_>]) -> Result<(), CommitError> {
    let mut seen = HashSet::new();
    match group.iter().find(|submission| !seen.insert(submission.commit.partition)) {
        None => Ok(()),
        Some(twice) => {
            Err(CommitError::Fatal(format!("partition {} is in the group twice", twice.commit.partition)))
        }
    }
}

/// Holds the session while the statement runs. Returns the session to its slot only after a certain
/// outcome.
async fn apply(
    mut slot: OwnedMutexGuard<Option<WriterSession>>,
    options: &PgConnectOptions,
    limit: Duration,
    statement: Statement,
) -> Result<Result<Vec<PgRow>, StoredTwice>, CommitError> {
    let mut connection = match usable(slot.take()).await {
        Some(connection) => connection,
        None => connect::open(options).await.map_err(CommitError::unsent)?,
    };
    // Reads to the very end: rows arrive before the transaction is committed, and an error may
    // follow them.
    let outcome = match timeout(limit, statement.fetch_all(&mut connection)).await {
        Ok(Ok(rows)) => Ok(Ok(rows)),
        Ok(Err(sqlx::Error::Database(error))) if sqlstate(error.as_ref()) == UNIQUE_VIOLATION => {
            Ok(Err(StoredTwice(error.message().to_owned())))
        }
        Ok(Err(error)) => Err(CommitError::sent(&error)),
        Err(_) => Err(CommitError::Unknown("no answer in time".to_owned())),
    };
    if matches!(outcome, Ok(_) | Err(CommitError::Data { .. })) {
        *slot = Some(WriterSession { connection, used_at: Instant::now() });
    }
    outcome
}

async fn usable(session: Option<WriterSession>) -> Option<PgConnection> {
    let WriterSession { mut connection, used_at } = session?;
    if used_at.elapsed() < IDLE_BEFORE_PROBE {
        return Some(connection);
    }
    let probe = timeout(PROBE_TIMEOUT, connection.ping()).await;
    matches!(probe, Ok(Ok(()))).then_some(connection)
}

fn outcomes(rows: &[PgRow], count: usize) -> Result<Vec<Committed>, CommitError> {
    let mut outcomes = vec![Committed::Fenced; count];
    for row in rows {
        let number: i64 = row.try_get("number").map_err(|error| CommitError::Unknown(error.to_string()))?;
        let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
        let is_stale: bool =
            row.try_get("is_stale").map_err(|error| CommitError::Unknown(error.to_string()))?;
        if let Some(outcome) = outcomes.get_mut(index) {
            *outcome = if is_stale { Committed::Stale } else { Committed::Applied };
        }
    }
    Ok(outcomes)
}
