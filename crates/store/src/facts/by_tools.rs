//! Facts that tools of an agent remember, correct and forget. They are limited to the scope of one
//! thread, and each command is applied once.

use model::{AgentId, Bucket, CommandId, MessageId, ThreadId};
use sqlx::Row;

use super::{FactRow, FactScope, fact};
use crate::commit::MOST_OF_SCOPE;
use crate::error::StoreError;
use crate::fact_vectors::bucket;
use crate::statement::Statement;
use crate::store::Store;

/// The agent, the thread and the command, which is applied once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactCommand<'a> {
    pub agent: &'a AgentId,
    /// The facts are about the user of this thread, or about the thread if it has no user.
    pub thread: &'a ThreadId,
    /// The answer of the current turn, if known.
    pub answer: Option<&'a MessageId>,
    pub command: &'a CommandId,
    /// The actor in the audit log.
    pub actor: &'a str,
}

/// A fact given by a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct NotedFact<'a> {
    /// The id of the fact; a repeated request must give the same id.
    pub id: &'a str,
    pub text: &'a str,
    /// `None`: the kind of the corrected fact, or `note`.
    pub kind: Option<&'a str>,
    /// Confidence from 0 to 1; `None`: the confidence of the corrected fact, or 1.
    pub confidence: Option<f32>,
    /// The id of the fact that this one supersedes.
    pub corrects: Option<&'a str>,
}

/// The outcome of a command about a fact.
#[derive(Debug, Clone, PartialEq)]
pub enum FactOutcome {
    Done,
    /// The command had already been applied.
    Before,
    /// The fact with this id has the same words already.
    Known(String),
    /// The command id was used before for another action.
    Reused,
    /// The thread was erased.
    NoThread,
    /// No such fact applies to the thread, or it is superseded.
    NoFact,
    /// The fact applies to all threads of the agent, so one thread must not change it.
    OfAllThreads,
}

/// Maximum number of tries. Of two concurrent calls with the same command, one has to try again.
const TRIES: u32 = 2;

impl Store {
    /// Remembers or corrects a fact about the thread's user, with an entry in the audit log of the
    /// agent.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn note_fact(
        &self,
        of: &FactCommand<'_>,
        noted: &NotedFact<'_>,
    ) -> Result<FactOutcome, StoreError> {
        for _ in 0..TRIES {
            let statement = sqlx::query(include_str!("note.sql"))
                .bind(bucket(of.agent))
                .bind(of.agent.as_str())
                .bind(noted.id.to_owned())
                .bind(of.thread.as_str())
                .bind(of.thread.bucket().get() as i16)
                .bind(noted.text.to_owned())
                .bind(noted.kind.map(str::to_owned))
                .bind(noted.confidence)
                .bind(of.answer.map(|answer| answer.as_str().to_owned()))
                .bind(Bucket::of_key(of.agent.as_str()).get() as i16)
                .bind(of.command.as_str())
                .bind(of.actor.to_owned())
                .bind(MOST_OF_SCOPE)
                .bind(noted.corrects.map(str::to_owned));
            // No row has two possible causes. A concurrent command has just written the fact, which
            // the next try finds, or the corrected fact does not exist.
            if let Some(outcome) = self.outcome(statement, noted.id).await? {
                return Ok(outcome);
            }
        }
        match noted.corrects {
            Some(id) => self.why_not(of.agent, id).await,
            None => Ok(FactOutcome::NoFact),
        }
    }

    /// Forgets a fact about the thread's user and all facts that it superseded, with an entry in
    /// the audit log of the agent.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn forget_fact(&self, of: &FactCommand<'_>, id: &str) -> Result<FactOutcome, StoreError> {
        for _ in 0..TRIES {
            let statement = sqlx::query(include_str!("forget.sql"))
                .bind(bucket(of.agent))
                .bind(of.agent.as_str())
                .bind(id.to_owned())
                .bind(of.thread.as_str())
                .bind(of.thread.bucket().get() as i16)
                .bind(Bucket::of_key(of.agent.as_str()).get() as i16)
                .bind(of.command.as_str())
                .bind(of.actor.to_owned());
            if let Some(outcome) = self.outcome(statement, id).await? {
                return Ok(outcome);
            }
        }
        self.why_not(of.agent, id).await
    }

    /// The fact with this id, which may be superseded.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn fact(&self, agent: &AgentId, id: &str) -> Result<Option<FactRow>, StoreError> {
        let statement = sqlx::query(concat!(include_str!("listed.sql"), "AND f.fact_id = $3"))
            .bind(bucket(agent))
            .bind(agent.as_str())
            .bind(id.to_owned());
        self.rows(statement).await?.first().map(fact).transpose()
    }

    /// Reads the outcome of a command from its statement; `None`: the statement changed nothing.
    /// `wanted` is the target in the command's audit entry.
    async fn outcome(&self, statement: Statement, wanted: &str) -> Result<Option<FactOutcome>, StoreError> {
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(match row.try_get::<Option<&str>, _>("before")? {
            Some(before) if before == wanted => Some(FactOutcome::Before),
            Some(_) => Some(FactOutcome::Reused),
            None if !row.try_get::<bool, _>("has_thread")? => Some(FactOutcome::NoThread),
            None if row.try_get::<bool, _>("is_done")? => Some(FactOutcome::Done),
            None => row.try_get::<Option<String>, _>("known")?.map(FactOutcome::Known),
        })
    }

    async fn why_not(&self, agent: &AgentId, id: &str) -> Result<FactOutcome, StoreError> {
        let found = self.fact(agent, id).await?;
        Ok(match found.filter(|fact| fact.superseded_by.is_none()) {
            Some(FactRow { scope: FactScope::Agent, .. }) => FactOutcome::OfAllThreads,
            // A thread must not learn of facts of another user or thread.
            Some(_) | None => FactOutcome::NoFact,
        })
    }
}
