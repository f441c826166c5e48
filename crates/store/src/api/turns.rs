//! Turns: idempotency keys, the state of a turn, and failed turns.

use model::{AnswerReport, MessageId, ThreadId, Timestamp, TurnId, TurnOpened};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{thread_bucket, timestamp};
use crate::error::StoreError;
use crate::row::{metadata, opened, parse_column, unsigned};
use crate::store::Store;

/// The first use of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyClaim {
    pub turn: TurnId,
    /// Digest of the payload of the first use.
    pub digest: Vec<u8>,
}

/// The state of a turn as far as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnState {
    /// The messages of the turn are in the history.
    Done {
        answer: MessageId,
        /// Finish reason and usage.
        report: AnswerReport,
    },
    /// The last run of the turn failed.
    Failed {
        /// The run that failed.
        run: u32,
    },
    /// The turn has been waiting or running for long enough to be saved.
    Open {
        /// The current run.
        run: u32,
    },
    /// The turn failed, and an operator dropped it.
    Dropped,
}

/// The times of a turn, as far as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredTurnTimes {
    /// When its input was accepted.
    pub accepted_at: Option<Timestamp>,
    /// When the run that answered it began.
    pub started_at: Option<Timestamp>,
    /// When the answer was complete or the last run failed.
    pub ended_at: Option<Timestamp>,
}

/// Number of turns whose median duration is the usual one.
const USUAL_TURNS: i64 = 8;
/// Number of messages among which these turns are looked for.
const USUAL_MESSAGES: i64 = 500;

#[derive(Debug, Clone, PartialEq)]
pub struct FailedTurnRow {
    /// The input, with the run that failed.
    pub opened: TurnOpened,
    pub code: String,
    pub text: String,
    /// Whether a retry may succeed.
    pub is_retryable: bool,
    /// The text of the answer received before the failure.
    pub partial: String,
    /// Time of the failure by the database clock.
    pub failed_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFailure {
    pub code: String,
    pub text: String,
    /// Whether a retry may succeed.
    pub is_retryable: bool,
}

impl Store {
    /// Median duration of the thread's last turns in ms; `None` if no turn has been answered.
    pub async fn usual_turn_ms(&self, thread: &ThreadId) -> Result<Option<i64>, StoreError> {
        let statement = sqlx::query(include_str!("turns/usual.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(USUAL_TURNS)
            .bind(USUAL_MESSAGES);
        let rows = self.rows(statement).await?;
        Ok(rows.first().map(|row| row.try_get("usual_ms")).transpose()?.flatten())
    }

    /// Claims an idempotency key for a turn, or returns the earlier claim.
    pub async fn claim_key(
        &self,
        thread: &ThreadId,
        key: &str,
        digest: &[u8],
        turn: &TurnId,
    ) -> Result<KeyClaim, StoreError> {
        // DO UPDATE, not DO NOTHING: of two concurrent claims the later one must see the row of the
        // first.
        let statement = sqlx::query(
            "INSERT INTO idempotency_keys AS k (bucket, thread_id, key, digest, turn_id)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (bucket, thread_id, key) DO UPDATE SET turn_id = k.turn_id
             RETURNING turn_id, digest",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(key.to_owned())
        .bind(digest.to_vec())
        .bind(turn.to_string());
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        claim(row)
    }

    /// The first claim of an idempotency key.
    pub async fn key_claim(&self, thread: &ThreadId, key: &str) -> Result<Option<KeyClaim>, StoreError> {
        let statement = sqlx::query(
            "SELECT turn_id, digest FROM idempotency_keys WHERE bucket = $1 AND thread_id = $2 AND key = $3",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(key.to_owned());
        self.rows(statement).await?.first().map(claim).transpose()
    }

    /// The state of a turn of the thread. `None` when nothing of the turn is stored, for example
    /// because it has just begun.
    pub async fn turn_state(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
    ) -> Result<Option<TurnState>, StoreError> {
        Ok(self.timed_turn(thread, turn).await?.map(|(state, _)| state))
    }

    /// [`Store::turn_state`] with the times of the turn.
    pub async fn timed_turn(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
    ) -> Result<Option<(TurnState, StoredTurnTimes)>, StoreError> {
        let statement = sqlx::query(include_str!("turns/state.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(turn.to_string())
            .bind(turn.input().to_string());
        let rows = self.rows(statement).await?;
        rows.first().map(|row| Ok((state(row)?, times(row)?))).transpose()
    }

    /// Why a run of a turn failed; `None` when no failure is stored. Only the last failure of a
    /// turn is kept, and it is returned for earlier runs too.
    pub async fn run_failure(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
        run: u32,
    ) -> Result<Option<RunFailure>, StoreError> {
        let bucket = thread_bucket(thread);
        let statement = match task_position(turn) {
            None => sqlx::query(include_str!("turns/failure.sql"))
                .bind(bucket)
                .bind(thread.as_str())
                .bind(turn.to_string()),
            Some(position) => sqlx::query(include_str!("turns/failure_of_task.sql"))
                .bind(bucket)
                .bind(thread.as_str())
                .bind(position),
        };
        let rows = self.rows(statement.bind(i64::from(run))).await?;
        let failure = |row: &PgRow| -> Result<RunFailure, StoreError> {
            Ok(RunFailure {
                code: row.try_get("code")?,
                text: row.try_get("text")?,
                is_retryable: row.try_get("is_retryable")?,
            })
        };
        rows.first().map(failure).transpose()
    }

    /// The thread of a turn that is saved as open because it has been waiting or running for long.
    pub async fn thread_of_open_turn(&self, turn: &TurnId) -> Result<Option<ThreadId>, StoreError> {
        let statement = sqlx::query("SELECT thread_id FROM spilled_turns WHERE bucket = $1 AND turn_id = $2")
            .bind(turn.bucket().get() as i16)
            .bind(turn.to_string());
        let rows = self.rows(statement).await?;
        rows.first().map(|row| parse_column(row, "thread_id", ThreadId::parse)).transpose()
    }

    /// The thread whose history has a message of this turn, or whose failed turns include it.
    pub async fn thread_of_turn(
        &self,
        turn: &TurnId,
        message: &MessageId,
    ) -> Result<Option<ThreadId>, StoreError> {
        let statement = sqlx::query(
            "SELECT thread_id FROM messages WHERE bucket = $1 AND message_id = $2
             UNION ALL
             SELECT thread_id FROM failed_turns WHERE bucket = $1 AND turn_id = $3
             LIMIT 1",
        )
        .bind(turn.bucket().get() as i16)
        .bind(message.to_string())
        .bind(turn.to_string());
        let rows = self.rows(statement).await?;
        rows.first().map(|row| parse_column(row, "thread_id", ThreadId::parse)).transpose()
    }

    /// The text of a turn's input, whether the turn is done or has failed; `None`: neither is
    /// stored.
    pub async fn input_of_turn(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
    ) -> Result<Option<String>, StoreError> {
        let statement = sqlx::query(
            "SELECT content FROM messages WHERE bucket = $1 AND message_id = $3 AND thread_id = $2
             UNION ALL
             SELECT content FROM failed_turns WHERE bucket = $1 AND thread_id = $2 AND turn_id = $4
             LIMIT 1",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str().to_owned())
        .bind(turn.input().to_string())
        .bind(turn.to_string());
        let rows = self.rows(statement).await?;
        rows.first().map_or(Ok(None), |row| Ok(row.try_get("content")?))
    }

    /// Lists at most `limit` failed turns of the thread with ids after `after`, ordered by id;
    /// `None` when there is no such thread.
    pub async fn failed_turns(
        &self,
        thread: &ThreadId,
        after: Option<&TurnId>,
        limit: u32,
    ) -> Result<Option<Vec<FailedTurnRow>>, StoreError> {
        let statement = sqlx::query(include_str!("turns/failed.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(after.map(TurnId::to_string).unwrap_or_default())
            .bind(i64::from(limit));
        let rows = self.rows(statement).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        // For a thread without failed turns the statement returns one row without a turn.
        rows.iter().filter_map(|row| failed(row).transpose()).collect::<Result<_, _>>().map(Some)
    }

    pub async fn failed_turn(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
    ) -> Result<Option<FailedTurnRow>, StoreError> {
        let statement = sqlx::query(
            "SELECT *, (extract(epoch FROM failed_at) * 1000)::bigint AS failed_ms
             FROM failed_turns WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(turn.to_string());
        let rows = self.rows(statement).await?;
        Ok(rows.first().map(failed).transpose()?.flatten())
    }
}

/// The queue position of the task that the turn runs; `None` for a turn with another origin.
fn task_position(turn: &TurnId) -> Option<i64> {
    let (kind, position) = turn.as_str().split_once('-')?;
    if kind.starts_with('t') { position.parse().ok() } else { None }
}

fn claim(row: &PgRow) -> Result<KeyClaim, StoreError> {
    Ok(KeyClaim { turn: parse_column(row, "turn_id", TurnId::parse)?, digest: row.try_get("digest")? })
}

fn state(row: &PgRow) -> Result<TurnState, StoreError> {
    let number = || unsigned::<u32>(row, "run");
    Ok(match row.try_get("state")? {
        "done" => TurnState::Done {
            answer: parse_column(row, "answer", MessageId::parse)?,
            report: AnswerReport::of_stored(&metadata(row)?),
        },
        "failed" => TurnState::Failed { run: number()? },
        "open" => TurnState::Open { run: number()? },
        _ => TurnState::Dropped,
    })
}

fn times(row: &PgRow) -> Result<StoredTurnTimes, StoreError> {
    let at = |column| row.try_get::<Option<i64>, _>(column).map(|ms| ms.map(Timestamp));
    Ok(StoredTurnTimes {
        accepted_at: at("accepted_ms")?,
        started_at: at("started_ms")?,
        ended_at: at("ended_ms")?,
    })
}

fn failed(row: &PgRow) -> Result<Option<FailedTurnRow>, StoreError> {
    if row.try_get::<Option<&str>, _>("turn_id")?.is_none() {
        return Ok(None);
    }
    Ok(Some(FailedTurnRow {
        opened: opened(row)?,
        code: row.try_get("code")?,
        text: row.try_get("text")?,
        is_retryable: row.try_get("is_retryable")?,
        partial: row.try_get("partial")?,
        failed_at: timestamp(row, "failed_ms")?,
    }))
}
