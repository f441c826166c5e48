//! Follow-ups and delayed tasks, as people look at them, and delayed tasks as gateways write them.

use model::{AgentId, DelayedTask, Metadata, Task, TaskId, TaskKind, ThreadId, TimerId, Timestamp, TurnId};
use partition::TaskDelay;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{agent_bucket, thread_bucket, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{column_error, object, parse_column};
use crate::store::Store;

/// Most tasks of an agent that wait for their time. Two that come at the same moment may both find room for the last one.
pub const MOST_DELAYED_TASKS: i64 = 10_000;

/// What became of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimerStatus {
    /// It waits.
    Pending,
    /// It has fired.
    Fired,
    /// A message of a person, a client, or a newer timer ended it.
    Cancelled,
    /// It had fired, and what it fired was taken back before anything of it was seen.
    Withdrawn,
    /// A rule was against it.
    Refused,
}

impl TimerStatus {
    /// All of them.
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

    /// The status of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A follow-up as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct FollowUpRow {
    /// Which.
    pub timer: TimerId,
    /// Where it takes place.
    pub thread: ThreadId,
    /// Who speaks.
    pub agent: AgentId,
    /// What became of it.
    pub status: TimerStatus,
    /// See the table.
    pub body: Metadata,
    /// When it was armed, by the database's clock, like all times here.
    pub created_at: Timestamp,
    /// When it is due, or was.
    pub due_at: Timestamp,
    /// When it fired or ended.
    pub ended_at: Option<Timestamp>,
    /// The rule or event that ended it, or keeps it waiting.
    pub ended_by: Option<String>,
    /// The turn that it fired.
    pub fired_turn: Option<TurnId>,
}

/// One that a person has answered is shown as cancelled at once; its owner writes it when it would be due.
const FOLLOW_UP_COLUMNS: &str = "t.timer_id, t.thread_id, t.agent_id, t.body, t.fired_turn,
    CASE WHEN r.created_at IS NULL THEN t.state ELSE 'cancelled' END AS state,
    CASE WHEN r.created_at IS NULL THEN t.ended_by ELSE 'message' END AS ended_by,
    floor(extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
    floor(extract(epoch FROM t.due_at) * 1000)::bigint AS due_ms,
    floor(extract(epoch FROM coalesce(t.ended_at, r.created_at)) * 1000)::bigint AS ended_ms";

/// The first input of a person after the answer that armed a follow-up which waits. Of what came since, only the first messages are looked at:
/// the owner reads all of it when the follow-up is due.
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
    /// The database's clock.
    pub async fn database_time(&self) -> Result<Timestamp, StoreError> {
        let statement =
            sqlx::query("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms");
        let rows = self.rows(statement).await?;
        timestamp(rows.first().ok_or_else(no_row)?, "now_ms")
    }

    /// At most `limit` follow-ups of the thread, the newest first; with `before`, those that were armed before that one.
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

    /// A follow-up of the thread.
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

    /// Ends the follow-up of the thread that waits: a person has written, or has tried to. One that fires at this moment is taken back when its
    /// turn begins.
    pub async fn supersede_follow_up(&self, thread: &ThreadId) -> Result<(), StoreError> {
        // A thread has one that waits, and it is the newest.
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

    /// Writes a follow-up that was read elsewhere, unless it is there; says whether it was written. One that waited there does not fire here.
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

    /// Stores a task that enters the queue later; a command announces it to its owner, which otherwise finds it within a minute.
    pub async fn delay_task(&self, delayed: &DelayedTask) -> Result<TaskDelay, StoreError> {
        let done = match self.try_delay_task(delayed).await? {
            // Another request has stored one of that id at the same moment, and now it is seen.
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

    /// At most `limit` tasks of the agent that wait for their time, in the order in which they are due; with `after`, those behind that one.
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

    /// A task of the agent that waits for its time.
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
            metadata,
        },
        not_before: Timestamp(body["not_before_ms"].as_i64().ok_or_else(|| wrong("no time"))?),
    })
}
