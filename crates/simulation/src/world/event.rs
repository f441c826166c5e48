//! The events of the world, and their addressees.

use model::{AgentId, DelayedTask, MessageKey, PartitionId, Position, Seq, ThreadId, TimerId, TurnId};
use partition::{ChangedThreadsQuery, Input, Lookup, Outgoing, Save, SnapshotRequest, Start, Takeover};

use super::state::compaction::DueCompaction;
use super::state::going_back::Back;
use super::state::retention::RetentionRound;
use super::state::workflows::Writing;
use crate::gateway::{Fetched, StoreReader};
use crate::store::Grant;
use crate::store::fence::AcknowledgedState;

/// A session of one incarnation of a worker; events for another incarnation are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) worker: usize,
    pub(crate) incarnation: u64,
    pub(crate) partition: PartitionId,
    pub(crate) session: u64,
}

pub(crate) enum WorldEvent {
    Quiet,
    Restart(usize),
    Acquire(usize, u64),
    Resume(usize, u64),
    Session(Address, SessionEvent),
    Statement(StatementEvent),
    Lookup(Address, Vec<MessageKey>),
    Load(Address, Grant),
    Client(usize, u64, ClientEvent),
    Gateway(usize, GatewayEvent),
    Join(usize),
    /// The next planned entry is published.
    Planned,
    Check(Address),
    LoadTasks(Address, AgentId, Position, usize),
    /// A turn request arrives.
    Request(Address, Box<Start>),
    Work(WorkEvent),
    /// A message of the outbox arrives, with its batch and the number of messages left in the
    /// batch.
    Relay(Address, Position, Box<Outgoing>, usize),
    Operators,
    Caretaker,
    GoBack(Back),
    /// The next statement of an erasure, with its number and run.
    Erase(usize, u64),
    /// The next step of a round of retention, or a new round.
    Retain(Address, Option<Box<RetentionRound>>),
    /// A compaction arrives at the store.
    Compact(Address, Box<DueCompaction>),
    /// The summary of a compaction was written, or never will be.
    Summary(Address, ThreadId, Position),
    /// A worker's waiting commits are sent, if none is in progress.
    Gather(Address),
    /// The data to decide about due timers is read.
    DecideTimers(Address, Vec<TimerId>),
    /// The next timers are read, from this time on, ms.
    LoadTimers(Address, i64, usize),
    /// Open messages and inputs are saved; with the state that the store had acknowledged to the
    /// owner.
    Save(Address, AcknowledgedState, Box<Save>),
    /// A delayed task is stored; with the sequence of its entry.
    DelayTask(Address, Seq, Box<DelayedTask>),
    /// If everything is idle, the clocks are advanced.
    GoAhead,
    /// A person writes.
    Person(ThreadId),
    /// A client creates a schedule.
    PutSchedule(AgentId, usize),
    PutTask(AgentId, usize),
    GroupAgain(usize),
    GroupOver(usize),
}

pub(crate) enum WorkEvent {
    Deliver(usize),
    /// Redelivers the request if the delivery with that number has not been answered.
    Again(usize, u32),
    Frame(usize, u32, Box<Writing>),
    Ack(usize, u32),
    Stop(TurnId, u32),
}

pub(crate) enum SessionEvent {
    Tick,
    Fetch {
        generation: u64,
    },
    Arrive {
        generation: u64,
        first: u64,
        last: u64,
        is_tail: bool,
    },
    ReaderLost {
        generation: u64,
        resume_after: i64,
    },
    Found(Vec<(MessageKey, Lookup)>),
    Loaded(Box<Takeover>),
    Reply(usize, StoreReply),
    Timeout(usize),
    Snapshot(SnapshotRequest),
    ChangedThreads(ChangedThreadsQuery),
    /// With the number of saves of the partition.
    Saved(u64),
    Input(Box<Input>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum StatementEvent {
    Arrive(usize),
    Done(usize),
}

#[derive(Debug, Clone)]
pub(crate) enum StoreReply {
    Granted(Option<Grant>),
    Renewed(bool),
    /// Everything is applied except these turns, whose messages are refused.
    Applied(Vec<(TurnId, String)>),
    Fenced,
    Refused,
    Unknown,
}

pub(crate) enum ClientEvent {
    Read,
    Connect,
    Fault,
}

/// Events of a gateway. Most carry the thread and the number of its follower.
#[derive(Debug)]
pub(crate) enum GatewayEvent {
    Frame(ThreadId, u64, Box<model::LiveFrame>),
    /// With the number of the query.
    Reply(ThreadId, u64, u64, Box<wire::query::SnapshotReply>),
    Unanswered(ThreadId, u64, u64),
    Fetch(ThreadId, u64, StoreReader, feed::StoreRead),
    Fetched(ThreadId, u64, StoreReader, Fetched),
    Tick(ThreadId, u64),
    Watch(PartitionId),
    ChangedThreads(PartitionId, u64, wire::query::ChangedThreads),
    /// The partition, the incarnation of the gateway, and the epoch of the owner.
    Owner(PartitionId, u64, u64),
}
