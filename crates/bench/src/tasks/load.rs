//! The load of one round.

use std::time::Duration;

use serde::Serialize;

/// The load of one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct TaskLoad {
    pub(super) agents: u32,
    /// Tasks per agent.
    pub(super) tasks: u32,
    /// Tasks per second that arrive while the queue works; `None`: all tasks exist from the start.
    pub(super) rate: Option<f64>,
    /// Maximum duration of the round.
    #[serde(skip)]
    pub(super) limit: Duration,
}

impl TaskLoad {
    pub(super) fn total(self) -> u64 {
        u64::from(self.agents) * u64::from(self.tasks)
    }
}
