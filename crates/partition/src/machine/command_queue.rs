//! Commands that were read and are not stored yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{
    AgentId, BusyPolicy, Command, ControlKind, DelayedTask, Frame, Position, RejectedEntry, Seq, Task,
    ThreadId, Timestamp, TurnId,
};

use crate::action::RefusedAnswer;
use crate::recent::Recent;
use crate::types::{AuditWrite, CommandKey, CommandVerdict, FailedTask, RawPayload, TaskChange};

/// Maximum number of commands that wait for their check; further ones wait in the stream.
const MOST_PENDING: usize = 2_048;

/// Commands on their way to the store.
#[derive(Debug)]
pub(super) struct CommandQueue {
    pub(super) pending: VecDeque<Pending>,
    pub(super) to_check: Vec<CommandKey>,
    /// Last entry with an accepted command. If the entry is read again, it is skipped.
    pub(super) read: Seq,
    /// Commands that were taken and may be unknown to a pending check or the next one.
    pub(super) recent: Recent<CommandKey, TakenCommand>,
    /// Last stored checkpoint. Checks that begin after it was stored know everything up to it.
    pub(super) stored: Seq,
    /// Positions of tasks retried or dropped recently, and whether the tasks were marked failed
    /// there. A pending check still reports them at these positions.
    moved: VecDeque<(Position, bool)>,
    /// Tasks that wait for a commit.
    pub(super) incoming: VecDeque<(Seq, Task, u64)>,
    /// Tasks that enter their queues later and are being stored.
    pub(super) delaying: BTreeMap<Seq, (RawPayload, Box<DelayedTask>)>,
    pub(super) writes: Writes,
    /// Continuations that a commit of a previous owner has opened, with the last entry that this
    /// owner had read. Inputs up to that entry precede them in their threads.
    pub(super) restored: VecDeque<(Seq, TurnId)>,
}

/// See [`CommandQueue::recent`].
#[derive(Debug)]
pub(super) struct TakenCommand {
    pub(super) seq: Seq,
    /// [`Task::digest`] of a task, 0 otherwise.
    pub(super) digest: u64,
    /// Position of a task, once it is in a commit.
    pub(super) position: Option<Position>,
}

/// Changes by control commands, for the next commit.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) audit: Vec<AuditWrite>,
    pub(super) task_changes: Vec<TaskChange>,
    pub(super) failed_tasks: Vec<FailedTask>,
    pub(super) dropped_turns: Vec<(ThreadId, TurnId)>,
    /// Agents whose pending tasks are changed, one item per change.
    pub(super) more: Vec<AgentId>,
    /// Entries that this commit completes.
    pub(super) seqs: Vec<Seq>,
    /// Bytes of edited task payloads.
    pub(super) edited_bytes: usize,
}

#[derive(Debug)]
pub(super) enum Pending {
    Command {
        seq: Seq,
        /// Time at which its entry was stored.
        stored_at: Timestamp,
        command: Command,
        raw: RawPayload,
        verdict: Option<CommandVerdict>,
        /// Stored checkpoint when the store was asked.
        stored: Seq,
        /// True if the command retries a run that has completed meanwhile: the check may have read
        /// the store before the run completed.
        is_obsolete: bool,
    },
    /// Chunks of a turn that is not opened yet, which happens only when the stream is read again.
    Frame { seq: Seq, frame: Frame },
    /// A refused payload of a turn that may not be opened yet. Its dead letter holds the entry.
    Refused { answer: RefusedAnswer, refusal: RejectedEntry },
}

impl CommandQueue {
    pub(super) fn new(checkpoint: Seq, seed: u64) -> Self {
        Self {
            pending: VecDeque::new(),
            to_check: Vec::new(),
            read: Seq(0),
            recent: Recent::new(seed),
            stored: checkpoint,
            moved: VecDeque::new(),
            incoming: VecDeque::new(),
            delaying: BTreeMap::new(),
            writes: Writes::default(),
            restored: VecDeque::new(),
        }
    }

    /// Marks pending retries of a completed run as obsolete.
    pub(super) fn complete(&mut self, turn: &TurnId, run: u32) {
        for pending in &mut self.pending {
            if let Pending::Command { command: Command::Turn(opened), is_obsolete, .. } = pending {
                *is_obsolete |= opened.turn == *turn && opened.run > run;
            }
        }
    }

    /// Number of commands in memory that are not stored yet.
    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.incoming.len() + self.delaying.len()
    }

    /// Bytes of the remembered keys of commands.
    pub(super) fn remembered_bytes(&self) -> usize {
        self.recent.bytes()
    }

    /// Approximate bytes of the remembered keys of commands above this entry.
    pub(super) fn remembered_bytes_above(&self, seq: Seq) -> usize {
        let (count, above) = (self.recent.len(), self.recent.count_after(|taken| taken.seq <= seq));
        self.recent.bytes() / count.max(1) * above
    }

    /// Notes that everything up to this checkpoint is stored, and forgets the commands that every
    /// pending check already knows. The number of remembered commands is therefore bounded by the
    /// lag of the checkpoint. `timers` is the stored checkpoint at the first unanswered look-up of
    /// timers.
    pub(super) fn stored(&mut self, checkpoint: Seq, timers: Option<Seq>) {
        self.stored = checkpoint;
        let asked = self.pending.iter().find_map(|pending| match pending {
            Pending::Command { stored, .. } => Some(*stored),
            Pending::Frame { .. } | Pending::Refused { .. } => None,
        });
        let known = asked.into_iter().chain(timers).min().unwrap_or(checkpoint);
        while self.recent.first().is_some_and(|taken| taken.seq <= known) {
            self.recent.forget_first();
        }
    }

    /// True if the maximum number of commands waits for the store.
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() + self.delaying.len() >= MOST_PENDING
    }

    /// First entry that waits for a check.
    pub(super) fn first(&self) -> Option<Seq> {
        self.pending.iter().find_map(|pending| match pending {
            Pending::Command { seq, .. } | Pending::Frame { seq, .. } => Some(*seq),
            Pending::Refused { .. } => None,
        })
    }

    /// Notes that the task has left this position, where it was in this state.
    pub(super) fn leave(&mut self, position: Position, is_failed: bool) {
        self.moved.push_back((position, is_failed));
        if self.moved.len() > 2 * MOST_PENDING {
            self.moved.pop_front();
        }
    }

    /// True if the task has been retried or dropped since the store was asked about it.
    pub(super) fn has_left(&self, position: Position, is_failed: bool) -> bool {
        self.moved.contains(&(position, is_failed))
    }

    /// Turns whose chunks have been read but wait behind a command.
    pub(super) fn blocked_turns(&self) -> BTreeSet<TurnId> {
        let frames = self.pending.iter().filter_map(|pending| match pending {
            Pending::Frame { frame, .. } => Some(frame),
            Pending::Command { .. } | Pending::Refused { .. } => None,
        });
        let arrivals = frames.flat_map(|frame| &frame.chunks);
        arrivals.filter_map(|arrival| Some(TurnId::of_answer(&arrival.message)?.0)).collect()
    }

    /// True if chunks of this thread wait behind a command.
    pub(super) fn blocks_thread(&self, thread: &ThreadId) -> bool {
        self.pending.iter().any(|pending| match pending {
            Pending::Frame { frame, .. } => frame.thread == *thread,
            Pending::Command { .. } | Pending::Refused { .. } => false,
        })
    }

    /// True if a person's input in this thread waits for its check.
    pub(super) fn has_real_input(&self, thread: &ThreadId) -> bool {
        self.pending.iter().any(|pending| match pending {
            Pending::Command { command: Command::Turn(opened), .. } => {
                opened.thread == *thread && !opened.origin.is_synthetic()
            }
            Pending::Command {
                command: Command::Task(_) | Command::DelayedTask(_) | Command::Control(_),
                ..
            }
            | Pending::Frame { .. }
            | Pending::Refused { .. } => false,
        })
    }

    pub(super) fn take_checks(&mut self) -> Option<Vec<CommandKey>> {
        (!self.to_check.is_empty()).then(|| std::mem::take(&mut self.to_check))
    }

    /// True if chunks of this run have to wait: for its input, for a command that may end it, or
    /// behind other chunks that wait. So the stream alone determines where a stopped answer ends,
    /// whichever owner reads it.
    pub(super) fn blocks_run(&self, thread: &ThreadId, turn: &TurnId, run: u32) -> bool {
        self.pending.iter().any(|pending| match pending {
            Pending::Command { command: Command::Turn(opened), .. } => match opened.turn == *turn {
                true => opened.run <= run,
                false => {
                    opened.thread == *thread
                        && matches!(opened.options.busy_policy, BusyPolicy::Interrupt | BusyPolicy::Rollback)
                }
            },
            Pending::Command { command: Command::Control(control), .. } => {
                control.kind == ControlKind::StopTurn(turn.clone())
            }
            Pending::Command { command: Command::Task(_) | Command::DelayedTask(_), .. }
            | Pending::Refused { .. } => false,
            Pending::Frame { frame, .. } => frame.chunks.iter().any(|arrival| {
                TurnId::of_answer(&arrival.message).is_some_and(|(waiting, of)| waiting == *turn && of == run)
            }),
        })
    }
}
