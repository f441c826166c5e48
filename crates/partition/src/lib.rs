//! One partition as one state machine: `handle(input, now) -> actions`.
//!
//! Entry type: [`Partition`]. The machine reads the entries of the stream in order, orders the
//! chunks of each message and releases them. It writes ended messages and turns in one [`Commit`]
//! at a time, with the checkpoint up to which the stream is not needed again.
//!
//! Invariants: no checkpoint passes an entry that is still needed; a message leaves memory only
//! after its commit; a machine whose commit was not applied is dropped, never repaired. The crate
//! uses neither NATS nor SQL nor a clock.

mod action;
mod chunk_times;
mod commit;
mod committing;
mod due_timer;
mod effects;
mod followers;
mod frames;
mod halves;
pub mod isolate;
mod late_runs;
mod limits;
mod look_ups;
mod machine;
mod messages;
mod noted_facts;
mod open;
mod outbox;
mod place;
mod publishing;
mod reading;
mod recent;
mod request_state;
mod saves;
mod snapshot;
mod stats;
mod stream_clock;
mod timer_decision;
mod timer_window;
mod timers;
mod turn_state;
mod turn_table;
mod types;
mod wait_counts;

pub use action::{
    Action, BufferState, ChangedThreads, ChangedThreadsQuery, EntryBody, Input, MachineReport, MessageEnded,
    ReadyChunks, RefusedAnswer, SnapshotReply, SnapshotRequest, StreamEntry, TimerOutcome,
};
pub use commit::{Commit, Lookup, Save, SavedItem, SpilledMessage, Takeover};
pub use due_timer::{DueSchedule, DueTimer, TimerState};
pub use followers::FOLLOWER_EXPIRY_MS;
pub use limits::PartitionLimits;
pub use machine::Partition;
pub use noted_facts::{InvalidFacts, NotedFacts};
pub use place::{Compared, Found, Incident, IncidentKind, Kept, StreamPlace, place};
pub use request_state::RequestNews;
pub use stats::{Counters, Stats, TurnTimes};
pub use timer_decision::decide_timer;
pub use timers::{
    ArmedTimer, NextDue, PendingTimer, TimerDecision, TimerEnd, TimerPage, TimerVerdict, TimerWrite,
};
pub use types::{
    AgentWrite, AuditWrite, BackoffChange, CommandKey, CommandVerdict, FailedTask, FailedTurn, Fallback,
    NewWork, NotNow, OpenTurn, OutboxBatch, Outgoing, Pause, RawPayload, SavedAgent, Start, Started,
    StatusQuery, StatusReply, TaskChange, TaskDelay, TaskWrite, TurnCause, TurnEnded, TurnRules, TurnStatus,
    TurnWrite, UsageWrite,
};
pub use wait_counts::WaitCounts;
