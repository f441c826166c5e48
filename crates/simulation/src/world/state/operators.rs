//! The state that operators act on.

use model::{AgentId, ThreadId, TurnId};

#[derive(Default)]
pub(crate) struct Operators {
    /// Turns that owners have begun.
    pub(crate) begun: Vec<(ThreadId, TurnId)>,
    pub(crate) controls: usize,
    /// Agents that the caretaker has resumed, and when.
    pub(crate) resumed: std::collections::BTreeMap<AgentId, i64>,
}
