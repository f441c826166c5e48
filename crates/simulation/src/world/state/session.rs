//! The state that a worker keeps for one partition that it holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{Chunk, Mark, MessageKey, Seq, TimerId, TurnId};
use partition::{Action, CommandKey, Partition};

use crate::store::fence::{AcknowledgedState, Decided};
use crate::world::event::Address;
use crate::world::state::promises::Promises;

pub(crate) struct WorkerSession {
    pub(crate) address: Address,
    /// The state that the store has acknowledged.
    pub(crate) known: AcknowledgedState,
    /// The incarnation of the stream that it reads, the last entry that it has read, and the holes
    /// of the stream.
    pub(crate) incarnation: String,
    pub(crate) read: Option<Mark>,
    pub(crate) gone: Vec<(Seq, Seq)>,
    /// `None` until the takeover is loaded.
    pub(crate) machine: Option<Partition>,
    /// Actions that were decided but not executed: a worker may die or pause between any two of
    /// them.
    pub(crate) actions: VecDeque<Action>,
    pub(crate) in_flight: Option<(usize, Arc<Decided>)>,
    pub(crate) reclaiming: Option<usize>,
    pub(crate) reader: StreamReader,
    /// Queries about commands in flight, when the last one is sent, and when the last answer
    /// arrives.
    pub(crate) questions: VecDeque<Vec<CommandKey>>,
    pub(crate) checked_at: i64,
    pub(crate) answered_at: i64,
    /// When the last query about timers is sent or answered.
    pub(crate) timers_at: i64,
    /// When the machine last read its timers again, as every worker does periodically.
    pub(crate) timers_reread_at: i64,
    /// Waiting time of due timers, ms, by timer and due time. It counts only time in which nothing
    /// blocked the owner.
    pub(crate) overdue: BTreeMap<(TimerId, i64), i64>,
    /// Runs whose requests must no longer be stored.
    pub(crate) unwanted: BTreeSet<(TurnId, u32)>,
    pub(crate) is_caught_up: bool,
    pub(crate) renewed_at: i64,
    pub(crate) ticked_at: i64,
    /// Age of each gap that only its timeout can end, ms. It counts only time in which nothing
    /// blocked the owner.
    pub(crate) watch: BTreeMap<MessageKey, i64>,
    pub(crate) promises: Promises,
    pub(crate) planted: Planted,
}

/// State of a reader: what it has requested. The machine's `last_seq` shows what it has handed
/// over.
#[derive(Default)]
pub(crate) struct StreamReader {
    pub(crate) generation: u64,
    pub(crate) next: u64,
    pub(crate) arrive_at: i64,
    pub(crate) told_tail: bool,
    /// The reader was set back from the end of the stream, and the machine does not know yet that
    /// it is behind.
    pub(crate) must_report_behind: bool,
    /// The reader has read everything and waits to be woken.
    pub(crate) is_waiting: bool,
    /// The stream's count of restorations when the reader last checked.
    pub(crate) restorations: u64,
}

/// State that only planted bugs need.
#[derive(Default)]
pub(crate) struct Planted {
    pub(crate) frozen_ms: i64,
    pub(crate) has_entries: bool,
    pub(crate) arrivals: BTreeMap<MessageKey, (u32, Vec<Arc<Chunk>>)>,
}

impl WorkerSession {
    pub(crate) fn new(address: Address, known: AcknowledgedState, time: i64) -> Self {
        Self {
            address,
            known,
            incarnation: String::new(),
            read: None,
            gone: Vec::new(),
            machine: None,
            actions: VecDeque::new(),
            in_flight: None,
            reclaiming: None,
            reader: StreamReader::default(),
            questions: VecDeque::new(),
            checked_at: 0,
            answered_at: 0,
            timers_at: 0,
            timers_reread_at: time,
            overdue: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            is_caught_up: false,
            renewed_at: time,
            ticked_at: time,
            watch: BTreeMap::new(),
            promises: Promises::default(),
            planted: Planted::default(),
        }
    }
}

impl WorkerSession {
    /// The session to wake because there is something to read; returned once.
    pub(crate) fn woken(&mut self) -> Option<(Address, u64)> {
        let is_waiting = std::mem::take(&mut self.reader.is_waiting);
        is_waiting.then_some((self.address, self.reader.generation))
    }
}

impl WorkerSession {
    /// True if its commit is that statement.
    pub(crate) fn waits_for(&self, number: usize) -> bool {
        self.in_flight.as_ref().is_some_and(|(sent, _)| *sent == number)
    }

    pub(crate) fn machine(&self) -> Option<&Partition> {
        self.machine.as_ref()
    }

    pub(crate) fn looked_at_stream(&mut self, restorations: u64) {
        self.reader.restorations = restorations;
    }

    pub(crate) fn has_looked_at_stream(&self, restorations: u64) -> bool {
        self.reader.restorations == restorations
    }
}
