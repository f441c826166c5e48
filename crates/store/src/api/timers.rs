//! Follow-ups and delayed tasks as shown to people, and delayed tasks as written by gateways.

use model::{
    AgentId, DelayedTask, Metadata, Task, TaskId, TaskKind, TaskOrigin, ThreadId, TimerId, Timestamp, TurnId,
};
use partition::TaskDelay;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{agent_bucket, thread_bucket, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{column_error, object, parse_column};
use crate::store::Store;

/// Maximum number of delayed tasks per agent. Two concurrent requests may both find room for the
/// last one.
pub const MOST_DELAYED_TASKS: i64 = 10_000;

/// The status of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimerStatus {
    Pending,
    Fired,
    /// A message of a person, a client, or a newer timer ended this timer.
    Cancelled,
    /// The timer fired, but its turn was withdrawn before any part of the turn was visible.
    Withdrawn,
    /// A rule prevented it from firing.
    Refused,
}

impl TimerStatus {
    pub const ALL: [Self; 5] = [Self::Pending, Self::Fired, Self::Cancelled, Self::Withdrawn, Self::Refused];

    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Fired => "fired",
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
            Self::Refused => "refused",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct FollowUpRow {
    pub timer: TimerId,
    pub thread: ThreadId,
    /// The agent that sends the follow-up.
    pub agent: AgentId,
    pub status: TimerStatus,
    /// The column `timers.body`.
    pub body: Metadata,
    /// When the timer was armed. All times here are by the database clock.
    pub created_at: Timestamp,
    pub due_at: Timestamp,
    /// When the timer fired or ended.
    pub ended_at: Option<Timestamp>,
    /// The rule or event that ended the timer or keeps it waiting.
    pub ended_by: Option<String>,
    /// The turn that the timer started.
    pub fired_turn: Option<TurnId>,
}

/// Columns of a follow-up. When a person has answered, the follow-up is shown as cancelled at once.
/// Its owner records the cancellation only at the due time.
const FOLLOW_UP_COLUMNS: &str = "t.timer_id, t.thread_id, t.agent_id, t.body, t.fired_turn,
    CASE WHEN r.created_at IS NULL THEN t.state ELSE 'cancelled' END AS state,
    CASE WHEN r.created_at IS NULL THEN t.ended_by ELSE 'message' END AS ended_by,
    floor(extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
    floor(extract(epoch FROM t.due_at) * 1000)::bigint AS due_ms,
    floor(extract(epoch FROM coalesce(t.ended_at, r.created_at)) * 1000)::bigint AS ended_ms";

/// The first input of a person after the answer that armed a pending follow-up. Examines only the
/// first messages since that answer; the owner reads all of them when the follow-up is due.
const ANSWERED: &str = "LEFT JOIN LATERAL (
        SELECT m.created_at
        FROM (
            SELECT m.created_at, m.position, m.role, m.batch_type, m.message_id, m.metadata FROM messages AS m
            WHERE t.state = 'pending' AND m.bucket = t.bucket AND m.thread_id = t.thread_id
              AND m.position > (t.body ->> 'armed_position')::bigint
            ORDER BY m.position
            LIMIT 2000
        ) AS m
        WHERE m.role = 'user' AND m.batch_type NOT IN ('agent_to_agent', 'system_trigger') AND m.message_id !~ '^t[0-9a-f]{4}-[0-9]+-q$'
          AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb
        ORDER BY m.position
        LIMIT 1
    ) AS r ON true";

impl Store {
    /// The current time by the database clock.
    pub async fn database_time(&self) -> Result<Timestamp, StoreError> {
        let statement =
            sqlx::query("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms");
        let rows = self.rows(statement).await?;
        timestamp(rows.first().ok_or_else(no_row)?, "now_ms")
    }

    /// Lists at most `limit` follow-ups of the thread, newest first. With `before`, lists those
    /// armed before that one.
    pub async fn follow_ups(
        &self,
        thread: &ThreadId,
        before: Option<&TimerId>,
        limit: u32,
    ) -> Result<Vec<FollowUpRow>, StoreError> {
        let sql = format!(
            "SELECT {FOLLOW_UP_COLUMNS} FROM timers AS t {ANSWERED}
             WHERE t.bucket = $1 AND t.thread_id = $2 AND t.kind = 'follow_up'
               AND ($3::text IS NULL OR (t.created_at, t.timer_id)
                    < (SELECT b.created_at, b.timer_id FROM timers AS b WHERE b.bucket = $1 AND b.timer_id = $3))
             ORDER BY t.created_at DESC, t.timer_id DESC
             LIMIT $4"
        );
        let statement = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(before.map(TimerId::to_string))
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(follow_up).collect()
    }

    pub async fn follow_up(
        &self,
        thread: &ThreadId,
        timer: &TimerId,
    ) -> Result<Option<FollowUpRow>, StoreError> {
        let sql = format!(
            "SELECT {FOLLOW_UP_COLUMNS} FROM timers AS t {ANSWERED}
             WHERE t.bucket = $1 AND t.timer_id = $3 AND t.thread_id = $2 AND t.kind = 'follow_up'"
        );
        let statement = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(timer.to_string());
        self.rows(statement).await?.first().map(follow_up).transpose()
    }

    /// Ends the pending follow-up of the thread, because a person has written or has tried to. If
    /// the follow-up fires at this moment, it is withdrawn when its turn begins.
    pub async fn supersede_follow_up(&self, thread: &ThreadId) -> Result<(), StoreError> {
        // A thread has at most one pending follow-up: the newest one.
        let statement = sqlx::query(
            "UPDATE timers SET state = 'cancelled', ended_at = clock_timestamp(), ended_by = 'message'
             WHERE bucket = $1 AND state = 'pending' AND timer_id = (
                 SELECT t.timer_id FROM timers AS t
                 WHERE t.bucket = $1 AND t.thread_id = $2 AND t.kind = 'follow_up'
                 ORDER BY t.created_at DESC, t.timer_id DESC
                 LIMIT 1)",
        );
        self.rows(statement.bind(thread_bucket(thread)).bind(thread.as_str())).await.map(drop)
    }

    /// Writes a follow-up from an export unless it exists, and returns whether it was written. A
    /// pending follow-up is stored as cancelled, so that it does not fire here.
    pub async fn import_follow_up(&self, row: &FollowUpRow) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("timers/import.sql"))
            .bind(thread_bucket(&row.thread))
            .bind(row.timer.to_string())
            .bind(row.thread.as_str())
            .bind(row.agent.as_str())
            .bind(agent_bucket(&row.agent))
            .bind(row.status.name())
            .bind(row.body.to_value())
            .bind(row.created_at.0)
            .bind(row.due_at.0)
            .bind(row.ended_at.map(|at| at.0))
            .bind(row.ended_by.clone())
            .bind(row.fired_turn.as_ref().map(TurnId::to_string));
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Stores a task that enters the queue later. A command announces its timer to the owner;
    /// without the command the owner finds it within a minute.
    pub async fn delay_task(&self, delayed: &DelayedTask) -> Result<TaskDelay, StoreError> {
        let done = match self.try_delay_task(delayed).await? {
            // A concurrent request has stored a task with this id; the second try sees it.
            None => self.try_delay_task(delayed).await?,
            done => done,
        };
        Ok(done.unwrap_or(TaskDelay::Conflict))
    }

    async fn try_delay_task(&self, delayed: &DelayedTask) -> Result<Option<TaskDelay>, StoreError> {
        let agent = &delayed.task.agent;
        let statement = sqlx::query(include_str!("timers/delay.sql"))
            .bind(agent_bucket(agent))
            .bind(TimerId::of_task(agent, &delayed.task.id).to_string())
            .bind(agent.as_str())
            .bind(delayed.not_before.0)
            .bind(delayed.timer_body())
            .bind(MOST_DELAYED_TASKS);
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(no_row)?;
        let known: Option<Value> = row.try_get("known")?;
        let is = |column: &str| row.try_get::<bool, _>(column);
        let (is_added, is_full, is_erased) = (is("is_added")?, is("is_full")?, is("is_erased")?);
        Ok(match known {
            _ if is_erased => Some(TaskDelay::Erased),
            Some(known) if known == delayed.timer_body() => Some(TaskDelay::Stored),
            Some(_) => Some(TaskDelay::Conflict),
            None if is_added => Some(TaskDelay::Stored),
            None => is_full.then_some(TaskDelay::Full),
        })
    }

    /// Lists at most `limit` delayed tasks of the agent, ordered by due time. With `after`, lists
    /// those after that one.
    pub async fn delayed_tasks(
        &self,
        agent: &AgentId,
        after: Option<&TaskId>,
        limit: u32,
    ) -> Result<Vec<DelayedTask>, StoreError> {
        let statement = sqlx::query(
            "SELECT t.agent_id, t.body FROM timers AS t
             WHERE t.bucket = $1 AND t.agent_id = $2 AND t.kind = 'task' AND t.state = 'pending'
               AND ($3::text IS NULL OR (t.due_at, t.timer_id)
                    > (SELECT b.due_at, b.timer_id FROM timers AS b WHERE b.bucket = $1 AND b.timer_id = $3))
             ORDER BY t.due_at, t.timer_id
             LIMIT $4",
        )
        .bind(agent_bucket(agent))
        .bind(agent.as_str())
        .bind(after.map(|task| TimerId::of_task(agent, task).to_string()))
        .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(delayed).collect()
    }

    /// Reads a delayed task of the agent that has not entered the queue yet.
    pub async fn delayed_task(
        &self,
        agent: &AgentId,
        task: &TaskId,
    ) -> Result<Option<DelayedTask>, StoreError> {
        let statement = sqlx::query(
            "SELECT t.agent_id, t.body FROM timers AS t
             WHERE t.bucket = $1 AND t.timer_id = $3 AND t.agent_id = $2 AND t.state = 'pending'",
        )
        .bind(agent_bucket(agent))
        .bind(agent.as_str())
        .bind(TimerId::of_task(agent, task).to_string());
        self.rows(statement).await?.first().map(delayed).transpose()
    }
}

fn no_row() -> StoreError {
    StoreError::Row("no row was returned".to_owned())
}

fn follow_up(row: &PgRow) -> Result<FollowUpRow, StoreError> {
    let turn = row.try_get::<Option<&str>, _>("fired_turn")?.map(TurnId::parse).transpose();
    Ok(FollowUpRow {
        timer: parse_column(row, "timer_id", TimerId::parse)?,
        thread: parse_column(row, "thread_id", ThreadId::parse)?,
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        status: parse_column(row, "state", |name| TimerStatus::from_name(name).ok_or("no such state"))?,
        body: object(row, "body")?,
        created_at: timestamp(row, "created_ms")?,
        due_at: timestamp(row, "due_ms")?,
        ended_at: timestamp_opt(row, "ended_ms")?,
        ended_by: row.try_get("ended_by")?,
        fired_turn: turn.map_err(|error| column_error("fired_turn", &error))?,
    })
}

fn delayed(row: &PgRow) -> Result<DelayedTask, StoreError> {
    let body: Value = row.try_get("body")?;
    let wrong = |what: &str| column_error("body", &what);
    let task = &body["task"];
    let metadata = match task["metadata"].as_str() {
        None => Metadata::EMPTY,
        Some(json) => {
            let map = serde_json::from_str(json).map_err(|error| column_error("body", &error))?;
            Metadata::new(map).map_err(|error| column_error("body", &error))?
        }
    };
    let id = task["id"].as_str().and_then(|id| TaskId::parse(id).ok());
    Ok(DelayedTask {
        task: Task {
            agent: parse_column(row, "agent_id", AgentId::parse)?,
            id: id.ok_or_else(|| wrong("no id of a task"))?,
            kind: TaskKind::Task,
            content: task["content"].as_str().ok_or_else(|| wrong("no text"))?.to_owned(),
            origin: TaskOrigin::of_sender(&metadata),
            metadata,
        },
        not_before: Timestamp(body["not_before_ms"].as_i64().ok_or_else(|| wrong("no time"))?),
    })
}
