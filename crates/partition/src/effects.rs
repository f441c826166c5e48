//! Effects of one input: actions for the driver, and counts for metrics.

use model::Timestamp;

use crate::action::Action;
use crate::stats::{Counters, TurnTimes};

/// Time of the input being handled, and everything that handling it has caused so far.
#[derive(Debug)]
pub(crate) struct Effects {
    /// The caller's clock at this input.
    pub(crate) now: Timestamp,
    actions: Vec<Action>,
    pub(crate) counters: Counters,
    pub(crate) turn_times: TurnTimes,
}

impl Effects {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { now, actions: Vec::new(), counters: Counters::default(), turn_times: TurnTimes::default() }
    }

    pub(crate) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(crate) fn extend(&mut self, actions: impl IntoIterator<Item = Action>) {
        self.actions.extend(actions);
    }

    /// The actions in the order in which they were added.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}
