//! What a session holds while it has its partition.

use std::collections::VecDeque;
use std::sync::Arc;

use bus::QueryServer;
use model::{Mark, MessageKey, Seq, Timestamp, TokenKeys, TurnId};
use partition::Partition;
use runtime::Condition;
use store::{Applied, StreamGap};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reader_task::EntryReader;
use super::turn_log::TurnLog;
use super::turn_traces::TurnTraces;
use crate::background::BackgroundTasks;
use crate::committer::CommitOutcome;
use crate::context::Context;
use crate::lease::Lease;
use crate::metrics::WorkerMetrics;
use crate::model_usage::ModelUsage;
use crate::open_message_limit::Reservation;
use crate::purge::Purge;
use crate::queries::PendingQueries;
use crate::retention::RetentionSweep;

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Asked to; what was in flight is committed.
    Drained,
    /// The partition belongs to a newer grant.
    Lost,
    /// The store is not what this session thought: start again from it under a new epoch, if the lease is still ours.
    Rebuild,
}

/// The last entry that sessions of one hold have read, with its stream: more than the store may know.
pub(super) type LastRead = Option<(Arc<str>, Mark)>;

pub(super) struct PartitionSession<'a> {
    pub(super) context: &'a Context,
    pub(super) lease: Lease,
    pub(super) readable: &'a Condition,
    /// What the store has, as far as it has said.
    pub(super) applied: Applied,
    /// Which keys of turn tokens the machine was given last; `None`: those of its takeover.
    pub(super) token_keys: Option<TokenKeys>,
    pub(super) machine: Partition,
    pub(super) reader: EntryReader,
    pub(super) background: BackgroundTasks,
    /// Most bytes of chunks in a frame, whatever the server takes.
    pub(super) frame_bytes: usize,
    pub(super) query_server: QueryServer,
    pub(super) queries: PendingQueries,
    pub(super) metrics: WorkerMetrics,
    pub(super) purge: Purge,
    pub(super) reservation: Reservation<'a>,
    pub(super) incarnation: Arc<str>,
    /// The highest entry that was read.
    pub(super) read: Option<Mark>,
    /// The entry that was read last: below the highest one while entries are read again.
    pub(super) reached: Seq,
    /// What the stream jumped over and no commit has named yet.
    pub(super) gone: Vec<StreamGap>,
    pub(super) in_flight: Option<InFlight>,
    pub(super) rounds: u32,
    pub(super) retention: RetentionSweep,
    /// The last answers of which viewers were shown that their chunks contradict each other.
    pub(super) conflicts: VecDeque<MessageKey>,
    /// `None` in a process that sends no traces.
    pub(super) traces: Option<TurnTraces>,
    pub(super) turn_log: TurnLog,
}

pub(super) struct InFlight {
    pub(super) settled: oneshot::Receiver<CommitOutcome>,
    pub(super) checkpoint: Seq,
    pub(super) submitted: Instant,
    pub(super) usage: ModelUsage,
    /// Tokens of each turn that ends.
    pub(super) tokens: Vec<(TurnId, u64)>,
    /// Turns that end.
    pub(super) finished: Vec<TurnId>,
    /// Answers since which facts are remembered.
    pub(super) remembered: Vec<MessageKey>,
}

pub(super) fn now(context: &Context) -> Timestamp {
    Timestamp(context.clock.now_ms())
}
