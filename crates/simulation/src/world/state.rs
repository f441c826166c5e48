//! The state of the world for each of its concerns; the module of each concern handles its events.

pub(crate) mod budgets;
pub(crate) mod compaction;
pub(crate) mod erasure;
pub(crate) mod follow_ups;
pub(crate) mod going_back;
pub(crate) mod groups;
pub(crate) mod long_answers;
pub(crate) mod operators;
pub(crate) mod promises;
pub(crate) mod refused_rows;
pub(crate) mod retention;
pub(crate) mod session;
pub(crate) mod statement;
pub(crate) mod workflows;
