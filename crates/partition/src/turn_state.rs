//! A turn in memory, and the tables of all turns.

use batches::memory::RecalledFacts;
use model::{
    AgentId, BatchType, MessageFailure, Metadata, QueuedTask, Seq, ThreadId, TimerId, Timestamp, TurnId,
    TurnOpened, TurnToken, WaitReason,
};
use scheduling::Readiness;

use crate::messages::Slot;
use crate::open::Hold;
use crate::request_state::RequestState;
use crate::types::{AuditWrite, NotNow, TurnRules};

/// Cause recorded when a person's message cancels or withdraws a follow-up.
pub(crate) const MESSAGE: &str = "message";

/// The input or task that a turn answers.
#[derive(Debug, Clone)]
pub(crate) enum TurnSource {
    Input(Box<TurnOpened>),
    Task(QueuedTask),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnPhase {
    /// The turn waits for its thread.
    Waiting,
    /// The action to start it has been returned.
    Starting,
    /// The request is published; chunks come.
    Running,
    /// It has ended and is kept until its commit is applied.
    Ended,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TurnEnd {
    Complete,
    Stopped,
    Failed(MessageFailure),
    /// End of a follow-up that leaves nothing, with its cause.
    Withdrawn(&'static str),
}

#[derive(Debug)]
pub(crate) struct TrackedTurn {
    pub(crate) id: TurnId,
    pub(crate) thread: ThreadId,
    pub(crate) agent: AgentId,
    pub(crate) source: TurnSource,
    pub(crate) run: u32,
    pub(crate) phase: TurnPhase,
    pub(crate) end: Option<TurnEnd>,
    /// A failure that waits for the agent's rules, by which it is judged.
    pub(crate) failure: Option<MessageFailure>,
    /// The answer's slot, once a chunk has come.
    pub(crate) slot: Option<Slot>,
    pub(crate) token: TurnToken,
    /// `None` until the driver has read the agent's settings.
    pub(crate) rules: Option<TurnRules>,
    /// A previous owner may have published its request.
    pub(crate) is_restored: bool,
    /// A chunk of the turn came before this owner had published its request.
    pub(crate) is_adopted: bool,
    /// The workflow is notified once the end is stored. Before that, a later owner may have to wait
    /// for the answer.
    pub(crate) is_abandoned: bool,
    /// The command that ended it, with the sequence of its entry.
    pub(crate) stopped_by: Option<(Seq, AuditWrite)>,
    /// True if the turn was requested while the reader was behind: entries read until it has caught
    /// up are older than the request.
    pub(crate) is_unread: bool,
    /// The input is stored or being saved, and must be deleted when the turn ends.
    pub(crate) is_saved: bool,
    /// The input is being saved.
    pub(crate) is_being_saved: bool,
    /// Entry of its input while the stream must keep the entry. For an ended turn, also the entry
    /// of a chunk that came too late.
    pub(crate) hold: Option<Hold>,
    /// When this owner published its request, by the owner's clock.
    pub(crate) requested_at: Option<Timestamp>,
    /// Time of the last chunk by the stream clock.
    pub(crate) progress_at: Timestamp,
    pub(crate) is_heard: bool,
    pub(crate) request: RequestState,
    /// Time of the last chunk by the clock of the stream's server; for people.
    pub(crate) heard_at: Option<Timestamp>,
    /// Time at which this owner learned of the turn.
    pub(crate) known_at: Timestamp,
    /// Arrival of its input, under this or a previous owner.
    pub(crate) came_at: Timestamp,
    /// Time at which this owner started the run.
    pub(crate) began_at: Option<Timestamp>,
    pub(crate) postponed: Option<Postponed>,
    /// Timer that fired it; `Some` means that the turn is a follow-up.
    pub(crate) timer: Option<TimerId>,
    /// Facts given to the turn.
    pub(crate) recalled: RecalledFacts,
    /// The answer is complete. It waits until the driver reports whether the turn is still wanted,
    /// or which facts the turn was given.
    pub(crate) is_answered: bool,
}

/// Why the agent cannot start a turn now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Postponed {
    /// Time at which the driver is asked again.
    pub(crate) until: Timestamp,
    why: NotNow,
    /// Earliest known start; `None`: not known.
    ends_at: Option<Timestamp>,
}

/// Maximum interval between two tries to start a turn that its agent cannot start yet, ms.
const LOOK_AGAIN_MS: i64 = 5_000;
/// The same interval for a spent budget or a limit of turns: many agents may wait for the same
/// budget or limit, for weeks.
const LOOK_AT_SHARED_LIMIT_MS: i64 = 15_000;

impl Postponed {
    pub(crate) fn new(why: NotNow, now: Timestamp) -> Self {
        let (for_ms, most_ms) = match why {
            NotNow::Backoff { for_ms } => (Some(for_ms.max(1)), LOOK_AGAIN_MS),
            NotNow::Budget { for_ms } => (Some(for_ms.max(1)), LOOK_AT_SHARED_LIMIT_MS),
            NotNow::Limited { for_ms } => (Some(for_ms.max(1)), LOOK_AT_SHARED_LIMIT_MS),
            NotNow::Paused => (None, LOOK_AGAIN_MS),
        };
        let until = now.plus_ms(for_ms.unwrap_or(most_ms).min(most_ms));
        Self { until, why, ends_at: for_ms.map(|ms| now.plus_ms(ms)) }
    }

    pub(crate) fn reason(self, now: Timestamp) -> WaitReason {
        let for_ms = self.ends_at.map_or(1, |end| end.since_ms(now).max(1));
        match self.why {
            NotNow::Backoff { .. } => WaitReason::Backoff { for_ms },
            NotNow::Budget { .. } => WaitReason::Budget { for_ms },
            NotNow::Limited { .. } => WaitReason::Limited { for_ms },
            NotNow::Paused => WaitReason::Paused,
        }
    }
}

impl TrackedTurn {
    /// Metadata of its input.
    pub(crate) fn metadata(&self) -> &Metadata {
        match &self.source {
            TurnSource::Input(opened) => &opened.metadata,
            TurnSource::Task(queued) => &queued.task.metadata,
        }
    }

    pub(crate) fn of_input(opened: Box<TurnOpened>, token: TurnToken) -> Self {
        let (id, thread, agent, run) =
            (opened.turn.clone(), opened.thread.clone(), opened.agent.clone(), opened.run);
        let timer = timer_of(&opened);
        Self { timer, ..Self::new(id, thread, agent, run, TurnSource::Input(opened), token) }
    }

    pub(crate) fn of_task(id: TurnId, queued: QueuedTask, run: u32, token: TurnToken) -> Self {
        let (agent, came_at) = (queued.task.agent.clone(), queued.position.timestamp());
        Self { came_at, ..Self::new(id, agent.thread(), agent, run, TurnSource::Task(queued), token) }
    }

    fn new(
        id: TurnId,
        thread: ThreadId,
        agent: AgentId,
        run: u32,
        source: TurnSource,
        token: TurnToken,
    ) -> Self {
        Self {
            id,
            thread,
            agent,
            source,
            run,
            phase: TurnPhase::Waiting,
            end: None,
            failure: None,
            slot: None,
            token,
            rules: None,
            is_restored: false,
            is_adopted: false,
            is_abandoned: false,
            stopped_by: None,
            is_unread: false,
            is_saved: false,
            is_being_saved: false,
            hold: None,
            requested_at: None,
            progress_at: Timestamp(0),
            is_heard: false,
            request: RequestState::default(),
            heard_at: None,
            known_at: Timestamp(0),
            came_at: Timestamp(0),
            began_at: None,
            postponed: None,
            timer: None,
            recalled: RecalledFacts::default(),
            is_answered: false,
        }
    }

    /// Time at which its input was accepted; for a retry, the time of the first acceptance.
    pub(crate) fn accepted_at(&self) -> Timestamp {
        match &self.source {
            TurnSource::Input(opened) => opened.options.accepted_at.unwrap_or(self.came_at).min(self.came_at),
            TurnSource::Task(_) => self.came_at,
        }
    }

    /// The input as stored when the turn fails.
    pub(crate) fn failed_input(&self, opened: &TurnOpened) -> TurnOpened {
        let mut failed = opened.clone();
        failed.options.accepted_at = Some(self.accepted_at());
        failed
    }

    /// True for an input made by a person, not by a timer or a continuation.
    pub(crate) fn is_real(&self) -> bool {
        matches!(&self.source, TurnSource::Input(opened) if !opened.metadata.is_synthetic())
    }

    /// True if facts from the turn are remembered afterwards.
    pub(crate) fn is_remembered(&self) -> bool {
        matches!(&self.source, TurnSource::Input(opened) if opened.options.memory)
    }

    /// Type of its batch.
    pub(crate) fn batch_type(&self) -> BatchType {
        match (&self.source, self.metadata().continues()) {
            (_, Some(_)) => BatchType::Continuation,
            (TurnSource::Input(_), None) if self.timer.is_some() => BatchType::SystemTrigger,
            (TurnSource::Input(_), None) => BatchType::UserRequest,
            (TurnSource::Task(queued), None) => queued.task.batch_type(),
        }
    }

    /// True for a background turn, whose input was made by the system.
    pub(crate) fn is_synthetic(&self) -> bool {
        self.metadata().is_synthetic()
    }

    /// Whether a turn that waits in its thread may start. A foreground input keeps its place before
    /// later inputs; a background turn does not.
    pub(crate) fn waiting(&self, now: Timestamp) -> Readiness {
        match self.postponed {
            Some(postponed) if now < postponed.until => match self.is_synthetic() {
                true => Readiness::StepsAside,
                false => Readiness::Blocks,
            },
            Some(_) | None => Readiness::Ready,
        }
    }

    /// Why a turn that waits in its thread does not start.
    pub(crate) fn waits_to_begin(&self, now: Timestamp) -> WaitReason {
        match self.postponed {
            Some(postponed) if now < postponed.until => postponed.reason(now),
            Some(_) | None => WaitReason::HeadOfLine,
        }
    }

    pub(crate) fn is_task(&self) -> bool {
        matches!(self.source, TurnSource::Task(_))
    }

    /// Time in ms since its last chunk, or else its request, or else its arrival.
    pub(crate) fn idle_ms(&self, now: Timestamp) -> i64 {
        let since = self.heard_at.or(self.requested_at).unwrap_or(self.came_at);
        now.since_ms(since).max(0)
    }

    /// Size in bytes for memory limits.
    pub(crate) fn size(&self) -> usize {
        match &self.source {
            TurnSource::Input(opened) => opened.size(),
            TurnSource::Task(queued) => queued.task.size(),
        }
    }
}

/// Timer that fired the input, if any. Clients cannot set the metadata checked here.
fn timer_of(opened: &TurnOpened) -> Option<TimerId> {
    let timer = opened.metadata.get("timer_id").filter(|_| opened.metadata.is_synthetic())?;
    TimerId::parse(timer.as_str()?).ok()
}
