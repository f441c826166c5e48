//! Facts found with answers, for subscribers that receive the answers.

use model::{AgentId, MessageId, ThreadId};
use sqlx::postgres::PgRow;

use super::{FactRow, fact};
use crate::error::StoreError;
use crate::row::parse_column;
use crate::store::Store;

/// A fact found with an answer, and the agent that remembers it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerFact {
    pub agent: AgentId,
    pub answer: MessageId,
    pub fact: FactRow,
}

/// Maximum number of facts shown with the answers of one page.
const MOST_OF_ANSWERS: i64 = 1_000;

impl Store {
    /// The current facts found with these answers of a thread, ordered by id.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn facts_of_answers(
        &self,
        thread: &ThreadId,
        answers: &[MessageId],
    ) -> Result<Vec<AnswerFact>, StoreError> {
        if answers.is_empty() {
            return Ok(Vec::new());
        }
        let statement = sqlx::query(include_str!("of_answers.sql"))
            .bind(thread.as_str())
            .bind(answers.iter().map(|answer| answer.as_str().to_owned()).collect::<Vec<_>>())
            .bind(MOST_OF_ANSWERS);
        let of = |row: &PgRow| {
            Ok(AnswerFact {
                agent: parse_column(row, "agent_id", AgentId::parse)?,
                answer: parse_column(row, "assistant_message_id", MessageId::parse)?,
                fact: fact(row)?,
            })
        };
        self.rows(statement).await?.iter().map(of).collect()
    }
}
