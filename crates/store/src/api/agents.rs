//! Agents: what operators say of them, and where their queues stand.

use model::{AgentId, Bucket, CommandId, Position, TaskId, Timestamp, WorkflowName};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{agent_bucket, object, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{parse_column, unsigned};
use crate::store::Store;

/// Counts of tasks go no higher: a queue that is longer is long.
pub const COUNTED_TASKS: i64 = 10_000;

/// An agent as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRow {
    /// Which.
    pub agent: AgentId,
    /// What operators say of it, if they have said something.
    pub settings: Option<AgentSettings>,
    /// Tasks that wait; at most [`COUNTED_TASKS`] are counted.
    pub pending: i64,
    /// Tasks marked failed; likewise.
    pub failed: i64,
    /// The oldest task that waits.
    pub head: Option<(TaskId, Position)>,
    /// Its tasks do not start.
    pub paused: bool,
    /// Failures since the last success.
    pub backoff_attempt_count: u32,
    /// When the head may run again, by the database's clock.
    pub backoff_next_run_at: Option<Timestamp>,
    /// For how long it backs off still, ms by the database's clock; `None`: it does not.
    pub backoff_left_ms: Option<i64>,
    /// Why the head failed last.
    pub error: Option<AgentError>,
}

/// See [`AgentRow::settings`].
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSettings {
    /// Whose services think for it.
    pub workflow: WorkflowName,
    /// The rest.
    pub settings: Map<String, Value>,
    /// One more with each change, from 1.
    pub version: u64,
    /// When they were first put, by the database's clock.
    pub created_at: Timestamp,
    /// When they were put last.
    pub updated_at: Timestamp,
}

/// Why an agent's head failed last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentError {
    /// A code for machines.
    pub code: String,
    /// For people.
    pub text: Option<String>,
    /// When, by the database's clock.
    pub at: Option<Timestamp>,
}

/// What agents are listed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentWaiting {
    /// Those that back off.
    Backoff,
    /// Those that are paused.
    Paused,
}

/// What decides whether and how an agent takes an input.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentAdmission {
    /// See [`AgentSettings::settings`]; empty when there are none.
    pub settings: Map<String, Value>,
    /// See [`AgentRow::backoff_left_ms`].
    pub backoff_left_ms: Option<i64>,
    /// Its tenant has budgets: see [`Store::over_budget`].
    pub has_budgets: bool,
}

/// Settings as they are put, with the row of the audit that goes with them.
#[derive(Debug, Clone, PartialEq)]
pub struct PutAgent {
    /// Whose.
    pub agent: AgentId,
    /// See [`AgentSettings::workflow`].
    pub workflow: WorkflowName,
    /// See [`AgentSettings::settings`].
    pub settings: Map<String, Value>,
    /// The act's id.
    pub act: CommandId,
    /// Who does it.
    pub actor: String,
}

impl Store {
    /// Writes an agent's settings and the audit in one statement; says which version they are, from 1. `None`: the agent's own thread is being
    /// erased, and nothing was written.
    pub async fn put_agent(&self, put: &PutAgent) -> Result<Option<u64>, StoreError> {
        let statement = sqlx::query(include_str!("agents/put.sql"))
            .bind(agent_bucket(&put.agent))
            .bind(put.agent.as_str())
            .bind(put.workflow.as_str())
            .bind(Value::Object(put.settings.clone()))
            .bind(put.act.to_string())
            .bind(put.actor.clone());
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        let version: Option<i64> = row.try_get("version")?;
        Ok(version.map(i64::unsigned_abs))
    }

    /// An agent; `None` when there is neither settings, nor a queue, nor a thread of that name or that it answers in.
    pub async fn agent(&self, agent: &AgentId) -> Result<Option<AgentRow>, StoreError> {
        Ok(self.agent_rows(vec![agent.to_string()]).await?.pop())
    }

    /// What decides whether an agent takes an input now; one that is not known has no settings and does not back off.
    pub async fn agent_admission(&self, agent: &AgentId) -> Result<AgentAdmission, StoreError> {
        let statement =
            sqlx::query(include_str!("agents/admission.sql")).bind(agent_bucket(agent)).bind(agent.as_str());
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(AgentAdmission::default()) };
        let left = row.try_get::<Option<i64>, _>("left_ms")?;
        Ok(AgentAdmission {
            settings: object(row, "settings")?,
            backoff_left_ms: left.filter(|left| *left > 0),
            has_budgets: row.try_get("has_budgets")?,
        })
    }

    /// At most `limit` agents after `after`, in the order of buckets and ids; only those that this handle sees.
    pub async fn agents(
        &self,
        waiting: Option<AgentWaiting>,
        after: Option<&AgentId>,
        limit: u32,
    ) -> Result<Vec<AgentRow>, StoreError> {
        let which = match waiting {
            None => "all",
            Some(AgentWaiting::Backoff) => "backoff",
            Some(AgentWaiting::Paused) => "paused",
        };
        let statement = sqlx::query("SELECT agent_id FROM antiphon_agents_page($1, $2, $3, $4, $5)")
            .bind(which)
            .bind(after.map_or(-1, agent_bucket))
            .bind(after.map(AgentId::to_string).unwrap_or_default())
            .bind(i64::from(limit))
            .bind(self.tenant_setting());
        // The function passes row-level security; what is shown of the agents is read behind it.
        let rows = self.unscoped().rows(statement).await?;
        let ids = rows.iter().map(|row| row.try_get("agent_id")).collect::<Result<_, sqlx::Error>>()?;
        self.agent_rows(ids).await
    }

    async fn agent_rows(&self, ids: Vec<String>) -> Result<Vec<AgentRow>, StoreError> {
        let buckets: Vec<_> = ids.iter().map(|id| Bucket::of_key(id).get() as i16).collect();
        // The settings of a queue that follows turns are those of its agent.
        let owners: Vec<String> = ids
            .iter()
            .map(|id| AgentId::parse(id).map_or_else(|_| id.clone(), |queue| queue.agent().to_string()))
            .collect();
        let owner_buckets: Vec<_> = owners.iter().map(|id| Bucket::of_key(id).get() as i16).collect();
        let statement = sqlx::query(include_str!("agents/rows.sql")).bind(buckets).bind(ids);
        let statement = statement.bind(COUNTED_TASKS).bind(owner_buckets).bind(owners);
        self.rows(statement).await?.iter().map(agent_row).collect()
    }
}

fn agent_row(row: &PgRow) -> Result<AgentRow, StoreError> {
    let head = match row.try_get::<Option<i64>, _>("next_position")? {
        Some(position) => {
            Some((parse_column(row, "next_task_id", TaskId::parse)?, Position::from_stored(position)))
        }
        None => None,
    };
    let error = match row.try_get::<Option<String>, _>("error_code")? {
        Some(code) => {
            Some(AgentError { code, text: row.try_get("error_text")?, at: timestamp_opt(row, "error_ms")? })
        }
        None => None,
    };
    Ok(AgentRow {
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        settings: settings(row)?,
        pending: row.try_get("pending")?,
        failed: row.try_get("failed")?,
        head,
        paused: row.try_get("paused")?,
        backoff_attempt_count: unsigned(row, "attempts")?,
        backoff_next_run_at: timestamp_opt(row, "next_run_ms")?,
        backoff_left_ms: row.try_get::<Option<i64>, _>("left_ms")?.filter(|left| *left > 0),
        error,
    })
}

fn settings(row: &PgRow) -> Result<Option<AgentSettings>, StoreError> {
    if row.try_get::<Option<&str>, _>("workflow")?.is_none() {
        return Ok(None);
    }
    Ok(Some(AgentSettings {
        workflow: parse_column(row, "workflow", WorkflowName::parse)?,
        settings: object(row, "settings")?,
        version: unsigned(row, "version")?,
        created_at: timestamp(row, "created_ms")?,
        updated_at: timestamp(row, "updated_ms")?,
    }))
}
