//! What a partition writes to the store, and in which order.

use std::collections::VecDeque;

use bytes::Bytes;
use model::{
    AgentId, AnswerReport, MessageKey, MessageOutcome, PartitionId, Position, PositionMark, Positions,
    QueuedTask, RejectedEntry, Seq, ThreadId, TimerId, Timestamp, TurnId,
};

use crate::commit::Takeover;
use crate::messages::Slot;
use crate::saves::Saving;
use crate::types::{OpenTurn, OutboxBatch};

/// Inputs that have ended, the commit in flight, and the positions given to what is stored.
#[derive(Debug)]
pub(crate) struct Committing {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: u64,
    pub(crate) positions: Positions,
    /// Every position up to this mark is committed, or never will be.
    pub(crate) applied: PositionMark,
    /// Checkpoint of the last commit returned.
    pub(crate) checkpoint: Seq,
    pub(crate) committed_at: Timestamp,
    pub(crate) ended: EndedInputs,
    pub(crate) in_flight: Option<InFlightCommit>,
    /// Saved answers without a turn; their rows are deleted.
    pub(crate) orphans: Vec<MessageKey>,
    pub(crate) saving: Saving,
}

impl Committing {
    pub(crate) fn new(takeover: &Takeover, now: Timestamp) -> Self {
        let positions = Positions::above(takeover.position_high_water);
        Self {
            partition: takeover.partition,
            epoch: takeover.epoch,
            applied: positions.given(),
            positions: positions.by_clock(takeover.granted_at, now),
            checkpoint: takeover.checkpoint,
            committed_at: now,
            ended: EndedInputs::default(),
            in_flight: None,
            orphans: Vec::new(),
            saving: Saving::default(),
        }
    }

    /// Ended inputs that are in the commit in flight.
    pub(crate) fn in_flight_turns(&self) -> impl Iterator<Item = &TurnId> {
        self.in_flight.iter().flat_map(|commit| &commit.ended).filter_map(|ended| match ended {
            InFlight::Turn(turn) => Some(&turn.id),
            InFlight::Message { .. } => None,
        })
    }

    /// Tasks that are in the commit in flight.
    pub(crate) fn in_flight_tasks(&self) -> impl Iterator<Item = &QueuedTask> {
        self.in_flight.iter().flat_map(|commit| &commit.tasks)
    }
}

/// Ended inputs that wait for a commit, in the order in which they ended.
#[derive(Debug, Default)]
pub(crate) struct EndedInputs {
    pub(crate) queue: VecDeque<EndedInput>,
    /// Bytes of the chunks in `queue`.
    pub(crate) bytes: usize,
    /// Bytes of the refused entries in `queue`.
    pub(crate) refused_bytes: usize,
}

#[derive(Debug)]
pub(crate) enum EndedInput {
    Message(Slot),
    Turn(TurnId),
    Entry { seq: Seq, subject: String, payload: Bytes, refusal: RejectedEntry },
}

#[derive(Debug)]
pub(crate) enum InFlight {
    Message { slot: Slot, position: Position, outcome: MessageOutcome, report: AnswerReport },
    Turn(TurnInFlight),
}

/// A turn whose commit is under way.
#[derive(Debug)]
pub(crate) struct TurnInFlight {
    pub(crate) id: TurnId,
    pub(crate) position: Position,
    /// `None`: the turn leaves nothing, and nothing of it is shown.
    pub(crate) outcome: Option<MessageOutcome>,
    pub(crate) report: AnswerReport,
    /// Backoff of the agent from the commit on, ms.
    pub(crate) wait_ms: Option<i64>,
}

/// What follows from the commit in flight once it is applied.
#[derive(Debug, Default)]
pub(crate) struct InFlightCommit {
    pub(crate) ended: Vec<InFlight>,
    pub(crate) tasks: Vec<QueuedTask>,
    /// Inputs that the commit itself opens.
    pub(crate) opened: Vec<OpenTurn>,
    /// Agents whose pending tasks are changed, one item per change.
    pub(crate) agents_with_changed_tasks: Vec<AgentId>,
    pub(crate) outbox: Option<OutboxBatch>,
    /// Timers written, with the time in ms until they are due if they stay pending.
    pub(crate) timers: Vec<(TimerId, Option<i64>)>,
    /// Threads with a follow-up that the commit arms.
    pub(crate) armed: Vec<ThreadId>,
    /// Mark of the positions assigned when the commit was built.
    pub(crate) given: Option<PositionMark>,
    /// Bytes of the chunks of the ended inputs.
    pub(crate) bytes: usize,
}

/// Approximate bytes of a refused entry in memory.
pub(crate) fn refused_size(payload: &Bytes) -> usize {
    payload.len() + 256
}
