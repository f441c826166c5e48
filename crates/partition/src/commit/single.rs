//! Selects the rows of a commit that must be written together with one message or turn.
//!
//! A part that is written alone is later found done. So nothing that belongs to it may be missing.

use model::{MessageKey, ThreadId, TurnId};

use crate::timers::TimerWrite;
use crate::types::{AgentWrite, AuditWrite, FailedTask, OpenTurn, TaskWrite, UsageWrite};

/// Equal to [`model::ControlKind::name`].
const STOP_TURN: &str = "stop_turn";
/// Names of commands that change an agent's own row.
const OF_AGENTS: [&str; 3] = ["pause", "resume", "clear_backoff"];

/// A message or turn that is written without the rest of its commit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Single<'a> {
    /// A message without a turn.
    Message(&'a MessageKey),
    /// A turn and, for a task, the write of its agent.
    Turn(&'a TurnId, Option<&'a AgentWrite>),
}

impl Single<'_> {
    /// The saved chunks would become a message again if the rest were never written.
    pub(super) fn ends(self, spill: &MessageKey) -> bool {
        match self {
            Self::Message(key) => key == spill,
            Self::Turn(turn, _) => TurnId::of_answer(&spill.message).is_some_and(|(of, _)| of == *turn),
        }
    }

    pub(super) fn ends_turn(self, (_, ended): &(ThreadId, TurnId)) -> bool {
        self.is_turn(ended)
    }

    pub(super) fn uses(self, used: &UsageWrite) -> bool {
        self.is_turn(&used.turn)
    }

    pub(super) fn arms(self, timer: &TimerWrite) -> bool {
        timer.armed_by().is_some_and(|turn| self.is_turn(turn))
    }

    pub(crate) fn opens(self, open: &OpenTurn) -> bool {
        open.opened.origin.turn().is_some_and(|turn| self.is_turn(turn))
    }

    /// True for the task that continues the turn's batch. Other tasks that follow a turn come from
    /// the stream.
    pub(crate) fn continues(self, task: &TaskWrite) -> bool {
        task.queued.task.origin.continued_turn().is_some_and(|turn| self.is_turn(turn))
    }

    /// Marks behind the turn's own task are left out: operators have dropped these tasks, and they
    /// are written with their audit rows.
    pub(super) fn marks(self, failed: &FailedTask) -> bool {
        let of_queue = |write: &AgentWrite| write.agent == failed.agent && failed.position <= write.head;
        self.queue().is_some_and(of_queue)
    }

    pub(super) fn is_acted_on(self, audit: &AuditWrite) -> bool {
        let Self::Turn(turn, queue) = self else { return false };
        let is_of_turn = audit.action == STOP_TURN && audit.target.as_deref() == Some(turn.as_str());
        let is_of_agent = queue.is_some_and(|write| write.agent == audit.subject);
        is_of_turn || (is_of_agent && OF_AGENTS.contains(&audit.action.as_str()))
    }

    fn queue(&self) -> Option<&AgentWrite> {
        match self {
            Self::Message(_) => None,
            Self::Turn(_, queue) => *queue,
        }
    }

    fn is_turn(self, turn: &TurnId) -> bool {
        matches!(self, Self::Turn(own, _) if own == turn)
    }
}
