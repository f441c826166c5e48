//! Compaction: selects the batches that contexts omit permanently, and their replacement.
//!
//! A compaction deletes no messages: a [`Compaction`] lists the older batches that contexts still
//! show. Each compaction is complete in itself, so only the newest one that is not undone applies.
//! Undoing it restores the previous one exactly.

mod plan;
#[cfg(test)]
mod tests;
mod transcript;

use model::Position;
use serde::{Deserialize, Serialize};

pub use plan::{Plan, PlanInput, Summary, plan};
pub(crate) use transcript::INDENT;
pub use transcript::{transcript, transcript_for_memory, transcript_of_turn};

/// Selects the batches to compact, and their replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Removes the oldest batches without a replacement.
    #[default]
    DropOldest,
    /// Replaces the oldest batches and the previous summary by a new summary.
    Summarise,
    /// Removes the least important batches without a replacement.
    Importance,
    /// Removes batches that exceed an age, without a replacement.
    Age,
}

impl Strategy {
    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::DropOldest => "drop_oldest",
            Self::Summarise => "summarise",
            Self::Importance => "importance",
            Self::Age => "age",
        }
    }

    /// The strategy with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::DropOldest, Self::Summarise, Self::Importance, Self::Age]
            .into_iter()
            .find(|s| s.name() == name)
    }
}

/// An agent's settings for compaction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionRules {
    /// The strategy that selects batches.
    pub strategy: Strategy,
    /// Compaction starts above this share of the budget, in percent.
    pub high_percent: u8,
    /// Compaction reduces the context to this share of the budget, in percent. The gap between the
    /// marks helps a provider's prompt cache: the start of a context changes only once in many
    /// turns.
    pub low_percent: u8,
    /// Batches that exceed this age are removed; only for `age`.
    pub max_age_ms: Option<i64>,
    /// Number of newest batches that always stay.
    pub keep_newest: u32,
    /// Tokens reserved for a summary.
    pub summary_tokens: u64,
}

impl Default for CompactionRules {
    fn default() -> Self {
        Self {
            strategy: Strategy::DropOldest,
            high_percent: 90,
            low_percent: 60,
            max_age_ms: None,
            keep_newest: 1,
            summary_tokens: 1_000,
        }
    }
}

/// The reason why rules contradict themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRules {
    /// The low mark is not below the high mark, or a mark is out of range.
    #[error("compaction: low_percent ({low}) must be below high_percent ({high}), and both from 1 to 100")]
    Marks {
        /// The given low mark.
        low: u8,
        /// The given high mark.
        high: u8,
    },
    /// The age is missing or not positive.
    #[error("compaction: strategy \"age\" needs max_age_ms above 0")]
    Age,
}

impl CompactionRules {
    /// Checks the rules for contradictions.
    ///
    /// # Errors
    /// The marks or the age are invalid.
    pub fn check(&self) -> Result<(), InvalidRules> {
        let (low, high) = (self.low_percent, self.high_percent);
        if low == 0 || low >= high || high > 100 {
            return Err(InvalidRules::Marks { low, high });
        }
        match (self.strategy, self.max_age_ms) {
            (Strategy::Age, None | Some(..=0)) => Err(InvalidRules::Age),
            _ => Ok(()),
        }
    }
}

/// The input of a compaction.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Provenance {
    /// The removed batches.
    pub batches: Vec<Position>,
    /// Number of messages in these batches.
    pub messages: u64,
    /// Tokens of the context before the compaction.
    pub tokens_before: u64,
    /// Tokens of the context after the compaction.
    pub tokens_after: u64,
}

/// A stored compaction: the part of the older history that contexts of a thread still show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// The id was assigned when the compaction was planned. It is above all positions known then.
    pub id: Position,
    /// Contexts omit batches up to this one, except `kept`.
    pub through: Position,
    /// Older batches that contexts still show.
    pub kept: Vec<Position>,
    /// The text that replaces the omitted batches.
    pub summary: Option<String>,
    /// The strategy that selected the batches.
    pub strategy: Strategy,
    pub provenance: Provenance,
    /// The compaction that applied before this one.
    pub previous: Option<Position>,
    /// The compaction applies to turns that begin when the thread has reached this position. It is
    /// later than the plan if the summary was written later.
    pub counts_from: Position,
    /// The compaction no longer applies from this position on.
    pub undone_at: Option<Position>,
}

impl Compaction {
    /// True if contexts omit a batch whose newest message is at `last`. A batch that has continued
    /// since the compaction is not omitted, because no summary covers its new messages.
    pub fn hides(&self, batch: Position, last: Position) -> bool {
        batch <= self.through && last < self.id && !self.kept.contains(&batch)
    }
}

/// The compaction that applies now: the newest one that is not undone.
pub fn live(compactions: &[Compaction]) -> Option<&Compaction> {
    live_at(compactions, Position::MAX)
}

/// The compaction that applied when a message at this position was the newest.
pub fn live_at(compactions: &[Compaction], at: Position) -> Option<&Compaction> {
    let counted = |one: &&Compaction| one.counts_from <= at && one.undone_at.is_none_or(|undone| undone > at);
    compactions.iter().filter(counted).max_by_key(|one| one.id)
}
