//! What a model sees of a thread: whole batches, as many as fit, and why each is in or out.
//!
//! [`Builder`] is fed with rows, newest first, until [`Builder::next_read`] says that it has enough, so that a context costs
//! the same however long the thread is. The active batch is always in, even incomplete; of the others only complete ones are,
//! newest first until the budget is used. What is older than a batch without room is out as well: a context has no holes but those
//! that a compaction made.

mod builder;
mod last_messages;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;

use model::{Position, Timestamp};

pub use builder::{Builder, NextRead};
pub use last_messages::LastMessages;
pub use settings::{ContextRules, DEFAULT_TIMEOUT_MS, DEFAULT_TOKENS, Tokenizer, compaction, input};

use crate::compaction::Compaction;
use crate::{Batch, IncompleteReason, Item};

/// What a context is built for.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRequest {
    /// The agent's instructions.
    pub system: Option<String>,
    /// The batch that the model is to go on with. [`Position::MAX`] for an input that is not stored yet.
    pub active: Option<Position>,
    /// Tokens that the context may have.
    pub budget: u64,
    /// The compaction that counts.
    pub compaction: Option<Compaction>,
    /// Decides what is abandoned.
    pub now: Timestamp,
    /// Without progress for so long an incomplete batch is abandoned; `timeout_ms` of its metadata goes first.
    pub timeout_ms: i64,
    /// What came after this position was not there yet: for the context of a past turn.
    pub until: Option<Position>,
}

/// What a model sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// The agent's instructions.
    pub system: Option<String>,
    /// Stands for what was compacted.
    pub summary: Option<String>,
    /// The batches that are in, by position.
    pub batches: Vec<Batch>,
    /// The one to go on with.
    pub active: Option<Position>,
    /// Of every batch that was read, by position.
    pub decisions: Vec<Decision>,
    /// What it takes.
    pub tokens: u64,
    /// What it may take. Instructions, summary and the active batch are in even when they take more.
    pub budget: u64,
    /// What there is before the oldest decision.
    pub older: Older,
}

impl Context {
    /// Tokens above the budget; 0 when it fits.
    pub fn over_budget(&self) -> u64 {
        self.tokens.saturating_sub(self.budget)
    }

    /// Whether the batch to go on with had been given up before the input that is not stored yet: what comes of it comes late.
    pub fn comes_late(&self, now: Timestamp, timeout_ms: i64) -> bool {
        let active = self.batches.iter().find(|batch| self.active == Some(batch.id()));
        active.is_some_and(|active| {
            let stored = active.items().iter().filter(|item| item.position != Position::MAX).cloned();
            let stored = Batch::new(active.id(), stored.collect());
            !stored.items().is_empty() && stored.abandoned_since(now, timeout_ms).is_some()
        })
    }
}

/// What is known of the messages before those that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Older {
    /// There are none.
    Nothing,
    /// They are compacted up to here.
    Compacted {
        /// The last batch that is.
        through: Position,
    },
    /// Not read: there was no room left for them.
    Unread {
        /// The oldest message that was read; `None` when none was.
        before: Option<Position>,
    },
}

/// Why a batch is in a context, or is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The batch.
    pub batch: Position,
    /// Messages of it that were read.
    pub messages: usize,
    /// The lowest and the highest number in the thread among these; `None` where none has a number.
    pub numbers: Option<(u64, u64)>,
    /// Tokens that these take.
    pub tokens: u64,
    /// In or out.
    pub inclusion: Inclusion,
}

/// In or out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inclusion {
    /// The model sees all of it.
    In,
    /// The model sees nothing of it.
    Out(Reason),
}

/// Why a batch is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It is incomplete, and is not the active one.
    Incomplete(IncompleteReason),
    /// It is incomplete, and the rest is not waited for any more.
    Abandoned(IncompleteReason),
    /// A compaction has put it away.
    Compacted {
        /// Which.
        by: Position,
    },
    /// A later batch has taken its place.
    Superseded {
        /// Which.
        by: Position,
    },
    /// Newer batches have used the budget.
    BudgetUsed,
    /// It alone is larger than what the budget leaves for batches.
    LargerThanBudget {
        /// What it leaves.
        room: u64,
    },
    /// The fleet's own work, and no part of what the thread is about.
    Maintenance,
    /// Only its end was read: there was no room left for it in any case.
    Unread,
}

impl Reason {
    /// For machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Incomplete(_) => "incomplete",
            Self::Abandoned(_) => "abandoned",
            Self::Compacted { .. } => "compacted",
            Self::Superseded { .. } => "superseded",
            Self::BudgetUsed => "budget_used",
            Self::LargerThanBudget { .. } => "larger_than_budget",
            Self::Maintenance => "maintenance",
            Self::Unread => "unread",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete(why) => write!(f, "incomplete: {why}"),
            Self::Abandoned(why) => write!(f, "abandoned: {why}, and nothing came for its timeout"),
            Self::Compacted { by } => write!(f, "compacted by {by}"),
            Self::Superseded { by } => write!(f, "batch {by} has taken its place"),
            Self::BudgetUsed => f.write_str("newer batches have used the budget"),
            Self::LargerThanBudget { room } => {
                write!(f, "it is larger than the {room} tokens that the budget leaves for batches")
            }
            Self::Maintenance => f.write_str("it is the fleet's own work"),
            Self::Unread => f.write_str("older than what was read"),
        }
    }
}

/// The context of these messages, all of the thread's.
pub fn build(
    request: ContextRequest,
    counter: &dyn crate::TokenCounter,
    items: impl IntoIterator<Item = Item>,
) -> Context {
    let mut builder = Builder::new(request, counter);
    builder.page(items);
    builder.end();
    builder.build()
}
