//! State of runs that have ended: when their workflows were last stopped, and which calls of late
//! attempts were counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{AgentId, IncomingChunk, MessageKey, Timestamp, TurnId, UsageKind};

use crate::types::UsageWrite;

/// Minimum interval between two stops of a workflow that continues an ended run, ms.
const STOP_AGAIN_MS: i64 = 5_000;
/// Maximum number of remembered runs of one partition that have ended or publish after their end.
/// Beyond it the oldest are forgotten: they may be stopped again sooner, and their calls are no
/// longer counted.
const RUNS: usize = 1_024;
/// Maximum number of counted calls per late run.
const CALLS: usize = 1_024;

pub(crate) type RunKey = (TurnId, u32);

/// An attempt, and the delivery of its request.
pub(crate) type Attempt = (u32, Option<Box<str>>);

/// A run that this owner has ended with a commit, so that the owner knows which calls are in the
/// ledger.
#[derive(Debug)]
pub(crate) struct EndedRun {
    /// Message id of the answer, even if none was stored.
    pub(crate) answer: MessageKey,
    pub(crate) agent: AgentId,
    pub(crate) kind: UsageKind,
    /// Attempt that was open at the end, whose calls are in the ledger.
    pub(crate) in_time: Option<Attempt>,
}

/// State of runs that are over. Lost with the owner.
#[derive(Debug, Default)]
pub(crate) struct LateRuns {
    runs: BTreeMap<RunKey, LateRun>,
    order: VecDeque<RunKey>,
    /// Rows for the next commit.
    usage: Vec<UsageWrite>,
}

#[derive(Debug)]
struct LateRun {
    stopped_at: Timestamp,
    /// `None`: a previous owner has ended the run.
    ended: Option<EndedRun>,
    /// Attempt whose first chunk came too late.
    began: Option<Attempt>,
    /// Numbers of the rows written.
    counted: BTreeSet<u16>,
}

impl LateRuns {
    pub(crate) fn take_usage(&mut self) -> Vec<UsageWrite> {
        std::mem::take(&mut self.usage)
    }

    /// Notes that the end of the run is committed and that its workflow knows of the end.
    pub(crate) fn ended(&mut self, key: &RunKey, ended: EndedRun, now: Timestamp) {
        self.stop(key, now);
        if let Some(run) = self.runs.get_mut(key) {
            run.ended = Some(ended);
        }
    }

    /// True if this owner has committed the end of the run.
    pub(crate) fn has_ended(&self, key: &RunKey) -> bool {
        self.runs.get(key).is_some_and(|run| run.ended.is_some())
    }

    /// Notes that the run's workflow is stopped now. False if it was stopped less than
    /// [`STOP_AGAIN_MS`] ago.
    pub(crate) fn stop(&mut self, key: &RunKey, now: Timestamp) -> bool {
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
        let run = LateRun { stopped_at: now, ended: None, began: None, counted: BTreeSet::new() };
        self.runs.insert(key.clone(), run);
        true
    }

    /// True if the chunk is the first of an attempt that no stop has reached.
    pub(crate) fn begins(&mut self, key: &RunKey, attempt: &Attempt, arrival: &IncomingChunk) -> bool {
        let Some(run) = self.runs.get_mut(key).filter(|_| arrival.chunk.id == 0) else { return false };
        // A chunk published again after a lost acknowledgment does not begin an attempt.
        let in_time = run.ended.as_ref().and_then(|ended| ended.in_time.as_ref());
        if in_time.is_some_and(|in_time| attempt.0 < in_time.0 || attempt == in_time) {
            return false;
        }
        let is_new = run.began.as_ref() != Some(attempt);
        run.began = Some(attempt.clone());
        is_new
    }

    /// Writes one row for each call that the chunk reports: the first report counts, and no later
    /// one replaces it. Returns the number of rows. Attempts that began in time, and runs that a
    /// previous owner ended, are not counted: their calls may be in the ledger already.
    pub(crate) fn count_calls(&mut self, key: &RunKey, attempt: &Attempt, arrival: &IncomingChunk) -> u64 {
        let Some(late) = self.runs.get_mut(key).filter(|run| run.began.as_ref() == Some(attempt)) else {
            return 0;
        };
        let Some(ended) = &late.ended else { return 0 };
        let listed = arrival.chunk.metadata.model_calls().unwrap_or_default();
        let before = self.usage.len();
        for (index, listed) in listed.into_iter().enumerate() {
            let name = match &listed.id {
                Some(id) => id.to_string(),
                None => format!("{}.{index}", arrival.chunk.id),
            };
            let delivery = attempt.1.as_deref().unwrap_or_default();
            let number = number_of(&format!("{}\0{delivery}\0{name}", attempt.0));
            if late.counted.len() >= CALLS || !late.counted.insert(number) {
                continue;
            }
            self.usage.push(UsageWrite {
                turn: key.0.clone(),
                answer: ended.answer.clone(),
                number,
                agent: ended.agent.clone(),
                kind: ended.kind,
                call: listed.call,
                is_partial: true,
                finish_reason: None,
            });
        }
        (self.usage.len() - before) as u64
    }
}

/// Ledger number of a late call: a hash of its name, so that every owner computes the same number.
/// The hash is FNV-1a (Fowler, Noll, Vo).
fn number_of(name: &str) -> u16 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let numbers = u32::from(UsageWrite::LAST_LATE - UsageWrite::FIRST_LATE) + 1;
    UsageWrite::FIRST_LATE + (hash % numbers) as u16
}
