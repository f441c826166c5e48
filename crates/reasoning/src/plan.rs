//! The agent's plan: ordered items with their state.

use model::quoting;

use crate::text::{check_text, is_blank};
use crate::{MAX_PLAN_ITEM_BYTES, MAX_PLAN_ITEMS, Reason, Refusal};

/// The state of a plan's item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanState {
    Pending,
    /// The item is being worked on.
    InProgress,
    Done,
    /// The item is no longer wanted.
    Dropped,
}

impl PlanState {
    pub const ALL: [Self; 4] = [Self::Pending, Self::InProgress, Self::Done, Self::Dropped];

    /// The name in Postgres, JSON and views.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Done => "done",
            Self::Dropped => "dropped",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanItem {
    /// The text: one line, never blank.
    pub text: String,
    pub state: PlanState,
}

/// An agent's plan, in order. It is replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    items: Vec<PlanItem>,
}

impl Plan {
    /// A plan with these items.
    ///
    /// # Errors
    /// There are too many items, or one is blank, too long, or has more than one line.
    pub fn new(items: Vec<PlanItem>) -> Result<Self, Refusal> {
        if items.len() > MAX_PLAN_ITEMS {
            let (count, max) = (items.len() as u64, MAX_PLAN_ITEMS as u64);
            return Err(Reason::TooMany { what: "items of a plan", count, max }.into());
        }
        for item in &items {
            check_text("an item of the plan", &item.text, MAX_PLAN_ITEM_BYTES)?;
            if is_blank(&item.text) || quoting::not_of_one_line(&item.text).is_some() {
                return Err(Reason::Name { what: "an item of the plan" }.into());
            }
        }
        Ok(Self { items })
    }

    pub fn items(&self) -> &[PlanItem] {
        &self.items
    }
}
