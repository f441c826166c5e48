//! What is to be done in a round.

use std::time::Duration;

use serde::Serialize;

/// What is to be done in a round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct TaskLoad {
    pub(super) agents: u32,
    /// Of each agent.
    pub(super) tasks: u32,
    /// Tasks a second that arrive while the queue works; without it all of them are there before.
    pub(super) rate: Option<f64>,
    /// When the round is cut.
    #[serde(skip)]
    pub(super) limit: Duration,
}

impl TaskLoad {
    pub(super) fn total(self) -> u64 {
        u64::from(self.agents) * u64::from(self.tasks)
    }
}
