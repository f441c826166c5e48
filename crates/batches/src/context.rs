//! Builds the context of a thread for a model: the whole batches that fit, and a reason for each
//! batch.
//!
//! [`Builder`] reads rows newest first until [`Builder::next_read`] reports that it has enough, so
//! the cost of a context does not depend on the length of the thread. The active batch is always
//! included, even if incomplete. Other batches must be complete. They are included newest first
//! until the budget is used. If a batch does not fit, all older ones are excluded too: only
//! compactions leave holes in a context.

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

/// The parameters of a context.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRequest {
    /// The agent's instructions.
    pub system: Option<String>,
    /// The batch that the model continues. It is [`Position::MAX`] for an input that is not stored
    /// yet.
    pub active: Option<Position>,
    /// Maximum tokens of the context.
    pub budget: u64,
    /// The compaction that applies.
    pub compaction: Option<Compaction>,
    /// The current time, which decides which batches are abandoned.
    pub now: Timestamp,
    /// Time in ms without progress after which an incomplete batch is abandoned; `timeout_ms` of
    /// its metadata overrides it.
    pub timeout_ms: i64,
    /// Messages after this position are ignored: for the context of a past turn.
    pub until: Option<Position>,
}

/// The context that a model receives.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// The agent's instructions.
    pub system: Option<String>,
    /// The text that replaces the compacted batches.
    pub summary: Option<String>,
    /// The included batches, ordered by position.
    pub batches: Vec<Batch>,
    /// The batch that the model continues.
    pub active: Option<Position>,
    /// One decision for each batch that was read, ordered by position.
    pub decisions: Vec<Decision>,
    pub tokens: u64,
    /// Maximum tokens. Instructions, summary and the active batch are included even if they exceed
    /// it.
    pub budget: u64,
    /// The state of the messages before the oldest decision.
    pub older: Older,
}

impl Context {
    /// Tokens above the budget; 0 if the context fits.
    pub fn over_budget(&self) -> u64 {
        self.tokens.saturating_sub(self.budget)
    }

    /// True if the active batch was abandoned before the new input arrived, so that the input is
    /// late.
    pub fn comes_late(&self, now: Timestamp, timeout_ms: i64) -> bool {
        let active = self.batches.iter().find(|batch| self.active == Some(batch.id()));
        active.is_some_and(|active| {
            let stored = active.items().iter().filter(|item| item.position != Position::MAX).cloned();
            let stored = Batch::new(active.id(), stored.collect());
            !stored.items().is_empty() && stored.abandoned_since(now, timeout_ms).is_some()
        })
    }
}

/// The state of the messages older than those that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Older {
    /// There are no older messages.
    Nothing,
    /// The older messages are compacted.
    Compacted {
        /// The last compacted batch.
        through: Position,
    },
    /// The older messages were not read because no room was left.
    Unread {
        /// The oldest message that was read; `None` if none was.
        before: Option<Position>,
    },
}

/// The reason why a batch is included in a context or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub batch: Position,
    /// Number of messages of the batch that were read.
    pub messages: usize,
    /// The lowest and highest thread number of these messages; `None` if none has a number.
    pub numbers: Option<(u64, u64)>,
    /// Tokens of these messages.
    pub tokens: u64,
    pub inclusion: Inclusion,
}

/// Whether the model sees a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inclusion {
    /// The model sees the whole batch.
    In,
    /// The model does not see the batch.
    Out(Reason),
}

/// Why a batch is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The batch is incomplete and is not the active one.
    Incomplete(IncompleteReason),
    /// The batch is incomplete and no longer awaited.
    Abandoned(IncompleteReason),
    /// A compaction omits the batch.
    Compacted {
        /// Id of the compaction.
        by: Position,
    },
    /// A later batch replaces the batch.
    Superseded {
        /// Id of the later batch.
        by: Position,
    },
    /// Newer batches have used the budget.
    BudgetUsed,
    /// The batch alone exceeds the budget that is left for batches.
    LargerThanBudget {
        /// Tokens left for batches.
        room: u64,
    },
    /// Work for the fleet itself, which does not belong to the thread's subject.
    Maintenance,
    /// Only the end of the batch was read, because the batch does not fit in any case.
    Unread,
}

impl Reason {
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

/// The context of all messages of a thread.
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
