//! The keys in metadata by which people, models and exports see what opened a turn or a task. They
//! are written and read by `TurnOrigin` and `TaskOrigin` alone.

pub(crate) const SYNTHETIC: &str = "synthetic";
pub(crate) const TRIGGER_TYPE: &str = "trigger_type";
pub(crate) const TRIGGER_REASON: &str = "trigger_reason";
pub(crate) const TIMER: &str = "timer_id";
pub(crate) const CONTINUES: &str = "continues";
pub(crate) const NUMBER: &str = "continuation_number";
pub(crate) const HEARTBEAT: &str = "heartbeat";
pub(crate) const THREAD: &str = "thread_id";
pub(crate) const TURN: &str = "turn_id";
pub(crate) const ANSWER: &str = "assistant_message_id";
pub(crate) const BATCH: &str = "batch_id";
pub(crate) const COMPACTION: &str = "compaction_id";

/// Keys that the system sets on messages it creates.
pub(crate) const RESERVED: [&str; 3] = [SYNTHETIC, TRIGGER_TYPE, TRIGGER_REASON];

/// Keys that the system sets on its own tasks. The same list is in SQL (`antiphon_edited_task`).
pub(crate) const OF_SYSTEM_TASKS: [&str; 8] =
    [THREAD, TURN, ANSWER, BATCH, COMPACTION, CONTINUES, NUMBER, SYNTHETIC];
