//! Facts that agents remember: searched when turns begin; listed, added and deleted over HTTP.

mod by_tools;
mod of_answers;
mod search;

use model::{AgentId, CommandId, ThreadId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::commit::MOST_OF_SCOPE;
use crate::error::StoreError;
use crate::fact_vectors::bucket;
use crate::row::{count, parse_column};
use crate::store::Store;

pub use by_tools::{FactCommand, FactOutcome, NotedFact};
pub use of_answers::AnswerFact;

/// Where a fact applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactScope {
    /// All threads with this `user_id`.
    User(String),
    /// The thread, which has no user.
    Thread(ThreadId),
    /// All threads of the agent.
    Agent,
}

impl FactScope {
    /// The scope as stored in the table.
    fn text(&self) -> String {
        match self {
            Self::User(user) => format!("user:{user}"),
            Self::Thread(thread) => format!("thread:{thread}"),
            Self::Agent => "agent".to_owned(),
        }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "agent" => Ok(Self::Agent),
            Some(("user", user)) => Ok(Self::User(user.to_owned())),
            Some(("thread", thread)) => {
                ThreadId::parse(thread).map(Self::Thread).map_err(|_| "no id of a thread")
            }
            _ => Err("no such scope"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct FactRow {
    pub id: String,
    pub scope: FactScope,
    /// The thread in which the fact was found; `None`: it was added over HTTP.
    pub thread: Option<ThreadId>,
    /// The answer after which it was found.
    pub assistant_message_id: Option<String>,
    pub text: String,
    pub kind: String,
    /// Confidence from 0 to 1.
    pub confidence: f32,
    /// The id of the newer fact.
    pub superseded_by: Option<String>,
    /// Time of creation by the database clock.
    pub created_at: Timestamp,
}

/// A fact found by a search, with its ranks. Rank 1 is the best.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundFact {
    pub fact: FactRow,
    /// The rank by words; `None`: the words do not match well enough.
    pub place_by_words: Option<u32>,
    /// The rank by vector; `None`: the search used words only, or other facts are nearer.
    pub place_by_vector: Option<u32>,
}

/// A fact to add.
#[derive(Debug, Clone, PartialEq)]
pub struct NewFact {
    pub id: String,
    /// `None`: the scope of the superseded fact.
    pub scope: Option<FactScope>,
    pub text: String,
    /// `None`: the kind of the superseded fact, or `note`.
    pub kind: Option<String>,
    /// Confidence from 0 to 1; `None`: the confidence of the superseded fact, or 1.
    pub confidence: Option<f32>,
    /// The id of the fact that it supersedes.
    pub supersedes: Option<String>,
}

/// Filter of fact lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FactFilter {
    /// The scope of the facts; `None`: all scopes.
    pub scope: Option<FactScope>,
    /// True to include superseded facts.
    pub with_superseded: bool,
    /// Maximum number of facts.
    pub limit: u32,
}

impl Store {
    /// Facts of an agent, newest first.
    pub async fn facts(&self, agent: &AgentId, filter: &FactFilter) -> Result<Vec<FactRow>, StoreError> {
        let statement = sqlx::query(concat!(
            include_str!("facts/listed.sql"),
            "AND ($3::text IS NULL OR f.scope = $3) AND ($4 OR f.superseded_by IS NULL)
                 ORDER BY f.created_at DESC, f.fact_id LIMIT $5",
        ))
        .bind(bucket(agent))
        .bind(agent.as_str())
        .bind(filter.scope.as_ref().map(FactScope::text))
        .bind(filter.with_superseded)
        .bind(i64::from(filter.limit));
        self.rows(statement).await?.iter().map(fact).collect()
    }

    /// Facts of an agent ordered by id, including superseded ones. Returns at most `limit` facts
    /// after this id.
    pub async fn facts_after(
        &self,
        agent: &AgentId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<FactRow>, StoreError> {
        let statement = sqlx::query(concat!(
            include_str!("facts/listed.sql"),
            "AND f.fact_id > $3 ORDER BY f.fact_id LIMIT $4"
        ))
        .bind(bucket(agent))
        .bind(agent.as_str())
        .bind(after.to_owned())
        .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(fact).collect()
    }

    /// Stores exported facts, with one entry in the audit log, and returns how many are new. Skips
    /// facts that exist already or were found in an erased thread. Call [`Store::trim_facts`]
    /// afterwards.
    pub async fn import_facts(
        &self,
        agent: &AgentId,
        facts: &[FactRow],
        command: &CommandId,
        actor: &str,
    ) -> Result<u64, StoreError> {
        let thread_bucket = |fact: &FactRow| fact.thread.as_ref().map(|thread| thread.bucket().get() as i16);
        let statement = sqlx::query(include_str!("facts/import.sql"))
            .bind(bucket(agent))
            .bind(agent.as_str())
            .bind(model::Bucket::of_key(agent.as_str()).get() as i16)
            .bind(command.as_str())
            .bind(actor.to_owned())
            .bind(facts.iter().map(|fact| fact.id.clone()).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.scope.text()).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.thread.as_ref().map(ThreadId::to_string)).collect::<Vec<_>>())
            .bind(facts.iter().map(thread_bucket).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.assistant_message_id.clone()).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.text.clone()).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.kind.clone()).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.confidence).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.superseded_by.clone()).collect::<Vec<_>>())
            .bind(facts.iter().map(|fact| fact.created_at.0).collect::<Vec<_>>());
        count(&self.rows(statement).await?)
    }

    /// Deletes the oldest facts in each scope of an agent that exceeds the limit per scope, and
    /// returns how many.
    pub async fn trim_facts(&self, agent: &AgentId) -> Result<u64, StoreError> {
        let statement = sqlx::query(
            "WITH ranked AS (
                 SELECT f.fact_id, row_number() OVER (PARTITION BY f.scope ORDER BY f.created_at DESC, f.fact_id) AS place
                 FROM facts AS f WHERE f.bucket = $1 AND f.agent_id = $2
             )
             , gone AS (
                 DELETE FROM facts AS f USING ranked AS r
                 WHERE f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = r.fact_id AND r.place > $3 RETURNING 1
             )
             SELECT count(*) AS count FROM gone",
        )
        .bind(bucket(agent))
        .bind(agent.as_str())
        .bind(MOST_OF_SCOPE);
        count(&self.rows(statement).await?)
    }

    /// Adds a fact, with an entry in the audit log of the agent, and deletes the oldest facts of
    /// its scope beyond the limit. Returns `None` if the fact to be superseded does not exist or is
    /// superseded already.
    pub async fn add_fact(
        &self,
        agent: &AgentId,
        new: &NewFact,
        command: &CommandId,
        actor: &str,
    ) -> Result<Option<FactRow>, StoreError> {
        let statement = sqlx::query(include_str!("facts/add.sql"))
            .bind(bucket(agent))
            .bind(agent.as_str())
            .bind(new.id.as_str())
            .bind(new.scope.as_ref().map(FactScope::text))
            .bind(new.text.as_str())
            .bind(new.kind.as_deref())
            .bind(new.confidence)
            .bind(new.supersedes.as_deref())
            .bind(model::Bucket::of_key(agent.as_str()).get() as i16)
            .bind(command.as_str())
            .bind(actor.to_owned())
            .bind(MOST_OF_SCOPE);
        self.rows(statement).await?.first().map(fact).transpose()
    }

    /// Deletes a fact, with an entry in the audit log. Returns false if no fact has that id. The
    /// facts that it superseded are deleted too, or become current again if `restores` is true.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn delete_fact(
        &self,
        agent: &AgentId,
        id: &str,
        restores: bool,
        command: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("facts/delete.sql"))
            .bind(bucket(agent))
            .bind(agent.as_str())
            .bind(id.to_owned())
            .bind(model::Bucket::of_key(agent.as_str()).get() as i16)
            .bind(command.as_str())
            .bind(actor.to_owned())
            .bind(restores);
        Ok(count(&self.rows(statement).await?)? > 0)
    }
}

fn fact(row: &PgRow) -> Result<FactRow, StoreError> {
    let thread = row.try_get::<Option<&str>, _>("thread_id")?.map(ThreadId::parse).transpose();
    Ok(FactRow {
        id: row.try_get("fact_id")?,
        scope: parse_column(row, "scope", FactScope::parse)?,
        thread: thread.map_err(|error| crate::row::column_error("thread_id", &error))?,
        assistant_message_id: row.try_get("assistant_message_id")?,
        text: row.try_get("text")?,
        kind: row.try_get("kind")?,
        confidence: row.try_get("confidence")?,
        superseded_by: row.try_get("superseded_by")?,
        created_at: Timestamp(row.try_get("created_ms")?),
    })
}
