//! State of a session while it holds its partition.

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
    /// Drained on request; what was in flight is committed.
    Drained,
    /// The partition belongs to a newer grant.
    Lost,
    /// The store differs from what the session assumed: start again from the store under a new
    /// epoch, if the lease is still held.
    Rebuild,
}

/// Last entry that was read while the worker held the partition, with its stream; the store may not
/// know it yet.
pub(super) type LastRead = Option<(Arc<str>, Mark)>;

pub(super) struct PartitionSession<'a> {
    pub(super) context: &'a Context,
    pub(super) lease: Lease,
    pub(super) readable: &'a Condition,
    /// State acknowledged by the store.
    pub(super) applied: Applied,
    /// Keys of turn tokens last given to the machine; `None`: those of its takeover.
    pub(super) token_keys: Option<TokenKeys>,
    pub(super) machine: Partition,
    pub(super) reader: EntryReader,
    pub(super) background: BackgroundTasks,
    /// Maximum bytes of chunks in a frame, independent of the server's limit.
    pub(super) frame_bytes: usize,
    pub(super) query_server: QueryServer,
    pub(super) queries: PendingQueries,
    pub(super) metrics: WorkerMetrics,
    pub(super) purge: Purge,
    pub(super) reservation: Reservation<'a>,
    pub(super) incarnation: Arc<str>,
    /// Highest entry read.
    pub(super) read: Option<Mark>,
    /// Last entry read: below the highest one while entries are read again.
    pub(super) reached: Seq,
    /// Sequences that the stream skipped and that no commit has recorded yet.
    pub(super) gone: Vec<StreamGap>,
    pub(super) in_flight: Option<InFlight>,
    pub(super) rounds: u32,
    pub(super) retention: RetentionSweep,
    /// Last answers whose subscribers were notified of contradicting chunks.
    pub(super) conflicts: VecDeque<MessageKey>,
    /// `None` if the process sends no traces.
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
    /// Answers for which facts were remembered.
    pub(super) remembered: Vec<MessageKey>,
}

pub(super) fn now(context: &Context) -> Timestamp {
    Timestamp(context.clock.now_ms())
}
