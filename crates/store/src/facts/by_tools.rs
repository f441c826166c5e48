//! What tools of an agent remember, correct and forget: within what counts in one thread, each command once.

use model::{AgentId, Bucket, CommandId, MessageId, ThreadId};
use sqlx::Row;

use super::{FactRow, FactScope, fact};
use crate::commit::MOST_OF_SCOPE;
use crate::error::StoreError;
use crate::fact_vectors::bucket;
use crate::statement::Statement;
use crate::store::Store;

/// Which agent acts in which thread, and the command that is done once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactCommand<'a> {
    /// The agent.
    pub agent: &'a AgentId,
    /// The thread, whose user the facts are about; without one they are about the thread.
    pub thread: &'a ThreadId,
    /// The answer in whose turn it is done, if that is known.
    pub answer: Option<&'a MessageId>,
    /// The command.
    pub command: &'a CommandId,
    /// For the audit log.
    pub actor: &'a str,
}

/// A fact as a tool gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct NotedFact<'a> {
    /// Its id: of the same request always the same.
    pub id: &'a str,
    /// What is remembered.
    pub text: &'a str,
    /// What it is about; `None`: as the one whose place it takes, else a `note`.
    pub kind: Option<&'a str>,
    /// From 0 to 1; `None`: as the one whose place it takes, else 1.
    pub confidence: Option<f32>,
    /// The fact whose place it takes.
    pub corrects: Option<&'a str>,
}

/// What became of a command about a fact.
#[derive(Debug, Clone, PartialEq)]
pub enum FactOutcome {
    /// It is done.
    Done,
    /// It was done before, by the same command.
    Before,
    /// The fact with this id has the same words.
    Known(String),
    /// The command has done something else before.
    Reused,
    /// The thread was erased.
    NoThread,
    /// No such fact counts in the thread, or another one has taken its place.
    NoFact,
    /// The fact counts in all threads of the agent: it is not for one thread to change.
    OfAllThreads,
}

/// Two that come at once with the same command: one of them has to look again.
const TRIES: u32 = 2;

impl Store {
    /// Remembers a fact of the thread's user, or corrects one, with its line in the audit log of the agent.
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
            // Where there is none another command has just done it, and the next look finds that; or there is no such fact.
            if let Some(outcome) = self.outcome(statement, noted.id).await? {
                return Ok(outcome);
            }
        }
        match noted.corrects {
            Some(id) => self.why_not(of.agent, id).await,
            None => Ok(FactOutcome::NoFact),
        }
    }

    /// Forgets a fact of the thread's user and all whose place it has taken, with a line in the audit log of the agent.
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

    /// The fact of this id, also one whose place another one has taken.
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

    /// What a statement says of its command; `None`: it has changed nothing. `wanted`: what the command's line in the audit log names.
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
            // Of another user or thread: to this one it is unknown.
            Some(_) | None => FactOutcome::NoFact,
        })
    }
}
