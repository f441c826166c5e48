//! Compaction: which batches leave the context for good, what stands for them, and what counts now.
//!
//! Nothing is destroyed: the messages stay where they are, and a [`Compaction`] says which of them a context shows. Each one
//! says it completely, so the newest that is not undone is all that counts, and undoing it makes the one before it count
//! again, exactly as it did.

mod plan;
#[cfg(test)]
mod tests;
mod transcript;

use model::Position;
use serde::{Deserialize, Serialize};

pub use plan::{Plan, PlanInput, Summary, plan};
pub(crate) use transcript::INDENT;
pub use transcript::{transcript, transcript_for_memory, transcript_of_turn};

/// How batches are chosen that leave, and what stands for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The oldest leave; nothing stands for them.
    #[default]
    DropOldest,
    /// The oldest leave; a summary of them, and of the summary before, stands for them.
    Summarise,
    /// The least important leave; nothing stands for them.
    Importance,
    /// Those above an age leave; nothing stands for them.
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

    /// The strategy of that name.
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
    /// How batches are chosen.
    pub strategy: Strategy,
    /// Nothing is done below this part of the budget, in percent.
    pub high_percent: u8,
    /// What is done goes down to this part of the budget, in percent. The space between the two is what a provider's cache of
    /// prompts lives on: the beginning of a context changes once for many turns.
    pub low_percent: u8,
    /// Above this age a batch leaves; only for `age`.
    pub max_age_ms: Option<i64>,
    /// So many of the newest batches always stay.
    pub keep_newest: u32,
    /// Room that is left for a summary, tokens.
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

/// Rules that contradict themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRules {
    /// The marks.
    #[error("compaction: low_percent ({low}) must be below high_percent ({high}), and both from 1 to 100")]
    Marks {
        /// As it was put.
        low: u8,
        /// As it was put.
        high: u8,
    },
    /// The age.
    #[error("compaction: strategy \"age\" needs max_age_ms above 0")]
    Age,
}

impl CompactionRules {
    /// Whether they make sense.
    ///
    /// # Errors
    /// They do not.
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

/// What a compaction was made from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Provenance {
    /// The batches that left.
    pub batches: Vec<Position>,
    /// Messages in them.
    pub messages: u64,
    /// Tokens of the context before.
    pub tokens_before: u64,
    /// Tokens of the context after.
    pub tokens_after: u64,
}

/// A compaction that was done: what a thread's contexts show of what is older.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// Given when it was planned: above everything that it knew of.
    pub id: Position,
    /// Batches up to this one are out of contexts.
    pub through: Position,
    /// But not these.
    pub kept: Vec<Position>,
    /// Stands for what is out.
    pub summary: Option<String>,
    /// How it was chosen.
    pub strategy: Strategy,
    /// What it was made from.
    pub provenance: Provenance,
    /// The one that counted before.
    pub previous: Option<Position>,
    /// Turns that began when the thread had come so far saw it: later than it was planned, when its summary came late.
    pub counts_from: Position,
    /// From here on it does not count any more.
    pub undone_at: Option<Position>,
}

impl Compaction {
    /// Whether a batch whose newest message is at `last` is out of contexts. One that has gone on since is not: nothing stands
    /// for what it says now.
    pub fn hides(&self, batch: Position, last: Position) -> bool {
        batch <= self.through && last < self.id && !self.kept.contains(&batch)
    }
}

/// The compaction that counts now: the newest that is not undone.
pub fn live(compactions: &[Compaction]) -> Option<&Compaction> {
    live_at(compactions, Position::MAX)
}

/// The compaction that counted when a message at this position was the newest.
pub fn live_at(compactions: &[Compaction], at: Position) -> Option<&Compaction> {
    let counted = |one: &&Compaction| one.counts_from <= at && one.undone_at.is_none_or(|undone| undone > at);
    compactions.iter().filter(counted).max_by_key(|one| one.id)
}
