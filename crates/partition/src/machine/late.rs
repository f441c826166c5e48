//! Chunks of runs that are over: their workflow is stopped once more, and the calls of an attempt that began too late are counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{
    AgentId, Frame, IncomingChunk, MessageKey, Seq, TaskKind, ThreadId, Timestamp, TurnId, TurnToken,
    UsageKind,
};
use scheduling::HeadState;

use super::Partition;
use crate::action::Action;
use crate::turn_state::TrackedTurn;
use crate::types::UsageWrite;

/// A workflow that goes on is stopped again after this time, ms.
const STOP_AGAIN_MS: i64 = 5_000;
/// Runs of one partition that ended lately or publish after their end; beyond, the oldest are forgotten and may be stopped sooner again.
const RUNS: usize = 1_024;
/// Turns that ended lately and whose agent does not follow from their thread.
const TURNS: usize = 1_024;
/// Calls of one late run that are counted.
const CALLS: usize = 1_024;

type RunKey = (TurnId, u32);

/// What is known of runs that are over. Lost with the owner.
#[derive(Debug, Default)]
pub(super) struct LateRuns {
    runs: BTreeMap<RunKey, LateRun>,
    order: VecDeque<RunKey>,
    agents: BTreeMap<TurnId, (AgentId, UsageKind)>,
    agents_order: VecDeque<TurnId>,
    /// The highest entry read: what is read again may have counted before its run ended.
    read_to: Seq,
    /// Rows for the next commit.
    usage: Vec<UsageWrite>,
}

/// An attempt, and the delivery of the request that it answers.
type Attempt = (u32, Option<Box<str>>);

#[derive(Debug)]
struct LateRun {
    stopped_at: Timestamp,
    /// The attempt that was open at the end, whose calls are in the ledger.
    in_time: Option<Attempt>,
    /// The attempt whose first chunk came too late, so that none of its calls is in the ledger.
    began: Option<Attempt>,
    /// Numbers of the rows written.
    counted: BTreeSet<u16>,
}

impl LateRuns {
    /// An entry is about to be read. Returns whether it is read for the first time.
    fn is_new(&self, seq: Seq) -> bool {
        seq > self.read_to
    }

    /// The entry has been read.
    pub(super) fn has_read(&mut self, seq: Seq) {
        self.read_to = self.read_to.max(seq);
    }

    pub(super) fn take_usage(&mut self) -> Vec<UsageWrite> {
        std::mem::take(&mut self.usage)
    }

    /// A turn has ended: calls that come later are of its agent.
    pub(super) fn remember(&mut self, turn: &TrackedTurn, kind: UsageKind) {
        if (turn.agent.clone(), kind) == by_thread(&turn.thread) {
            return;
        }
        if self.agents.insert(turn.id.clone(), (turn.agent.clone(), kind)).is_none() {
            self.agents_order.push_back(turn.id.clone());
        }
        if self.agents_order.len() > TURNS
            && let Some(oldest) = self.agents_order.pop_front()
        {
            self.agents.remove(&oldest);
        }
    }

    /// The end of the run is committed, and its workflow knows of it.
    pub(super) fn ended(&mut self, key: &RunKey, in_time: Option<Attempt>, now: Timestamp) {
        self.stop(key, now);
        if let Some(run) = self.runs.get_mut(key) {
            run.in_time = in_time;
        }
    }

    /// Notes that the workflow of the run is stopped now; false when it was stopped a moment ago.
    fn stop(&mut self, key: &RunKey, now: Timestamp) -> bool {
        if let Some(run) = self.runs.get_mut(key) {
            let is_due = now.since_ms(run.stopped_at) >= STOP_AGAIN_MS;
            if is_due {
                run.stopped_at = now;
            }
            return is_due;
        }
        if self.order.len() >= RUNS
            && let Some(oldest) = self.order.pop_front()
        {
            self.runs.remove(&oldest);
        }
        self.order.push_back(key.clone());
        self.runs.insert(
            key.clone(),
            LateRun { stopped_at: now, in_time: None, began: None, counted: BTreeSet::new() },
        );
        true
    }

    /// Whether the chunk is the first that is read of an attempt, which no stop has reached.
    fn begins(&mut self, key: &RunKey, frame: &Frame, arrival: &IncomingChunk) -> bool {
        let Some(run) = self.runs.get_mut(key).filter(|_| arrival.chunk.id == 0) else { return false };
        let attempt: Attempt = (arrival.attempt, delivery_of(frame).map(Into::into));
        // A chunk that is published again, because its acknowledgement was lost, begins nothing.
        if run.in_time.as_ref().is_some_and(|in_time| attempt.0 < in_time.0 || attempt == *in_time) {
            return false;
        }
        let is_new = run.began.as_ref() != Some(&attempt);
        run.began = Some(attempt);
        is_new
    }
}

fn delivery_of(frame: &Frame) -> Option<&str> {
    frame.token.as_ref().and_then(TurnToken::delivery)
}

impl Partition {
    /// A chunk with the right token, of a run whose end is committed. Its workflow may not know of the end: the stop was published once, and
    /// whoever took the request later has not heard it.
    pub(super) fn answer_late_run(
        &mut self,
        frame: &Frame,
        arrival: &IncomingChunk,
        (id, run): (&TurnId, u32),
        seq: Seq,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let is_unsure = || {
            let queue = self.table.queues.get(&frame.thread.agent())?;
            Some(matches!(queue.head_state(now), HeadState::NotLoaded | HeadState::Unsettled))
        };
        // What is not known may stand in entries that are still to be read.
        if !self.may_begin() || self.deferring.is_some() || is_unsure().unwrap_or(false) {
            return;
        }
        let key = (id.clone(), run);
        let is_due = self.late.stop(&key, now);
        let has_begun = self.late.begins(&key, frame, arrival);
        if is_due || has_begun {
            self.counters.late_stops += 1;
            actions.push(Action::Abandon { turn: id.clone(), run });
        }
        if self.late.is_new(seq) {
            self.count_late_calls(frame, arrival, &key);
        }
    }

    /// Each call that the chunk reports is a row, once: its first report counts, and no later one replaces it.
    fn count_late_calls(&mut self, frame: &Frame, arrival: &IncomingChunk, key: &RunKey) {
        let Some(late) = self.late.runs.get_mut(key) else { return };
        let delivery = delivery_of(frame);
        // A call of an attempt that began in time may be in the ledger already.
        if late.began.as_ref().map(|(attempt, began)| (*attempt, began.as_deref()))
            != Some((arrival.attempt, delivery))
        {
            return;
        }
        let (agent, kind) = self.late.agents.get(&key.0).cloned().unwrap_or_else(|| by_thread(&frame.thread));
        for (index, listed) in
            arrival.chunk.metadata.model_calls().unwrap_or_default().into_iter().enumerate()
        {
            let name = match &listed.id {
                Some(id) => id.to_string(),
                None => format!("{}.{index}", arrival.chunk.id),
            };
            let number = number_of(&format!("{}\0{}\0{name}", arrival.attempt, delivery.unwrap_or_default()));
            if late.counted.len() >= CALLS || !late.counted.insert(number) {
                continue;
            }
            self.counters.late_calls += 1;
            self.late.usage.push(UsageWrite {
                turn: key.0.clone(),
                answer: MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() },
                number,
                agent: agent.clone(),
                kind,
                call: listed.call,
                is_partial: true,
            });
        }
    }
}

/// A task takes place in the thread of its queue; a person's message mostly in that of its agent.
fn by_thread(thread: &ThreadId) -> (AgentId, UsageKind) {
    let agent = thread.agent();
    let is_of = |kind: TaskKind| agent == agent.agent().queue_of(kind);
    let kind = match () {
        () if is_of(TaskKind::Compaction) => UsageKind::Summary,
        () if is_of(TaskKind::Memory) => UsageKind::Memory,
        () => UsageKind::Turn,
    };
    (agent, kind)
}

/// A number of the ledger for a call that came too late: a function of its name, so that it is the same whoever counts it.
/// FNV-1a (Fowler, Noll, Vo).
fn number_of(name: &str) -> u16 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let numbers = u32::from(UsageWrite::LAST_LATE - UsageWrite::FIRST_LATE) + 1;
    UsageWrite::FIRST_LATE + (hash % numbers) as u16
}
