//! A turn in memory, and the tables of all turns.

use batches::memory::RecalledFacts;
use model::{
    AgentId, BatchType, MessageFailure, Position, QueuedTask, Seq, ThreadId, TimerId, Timestamp, TurnId,
    TurnOpened, TurnToken, WaitReason,
};
use scheduling::Readiness;

use crate::messages::Slot;
use crate::open::Hold;
use crate::request_state::RequestState;
use crate::types::{AuditWrite, NotNow, TurnRules};

/// Cause recorded when a person's message cancels or withdraws a follow-up.
pub(crate) const SUPERSEDED_BY_MESSAGE: &str = "message";

/// The input or task that a turn answers.
#[derive(Debug, Clone)]
pub(crate) enum TurnSource {
    Input(Box<TurnOpened>),
    Task(QueuedTask),
}

/// Where a turn is, with the data that exist only in this state.
#[derive(Debug)]
pub(crate) enum TurnState {
    /// The turn waits for its thread. `Some`: its agent could not start it.
    Waiting { postponed: Option<Postponed> },
    /// The action to start it has been returned.
    Starting,
    /// A request is published, by this owner or a previous one; chunks come.
    Running,
    /// The turn has ended and is kept until its commit is applied.
    Ended(EndedTurn),
}

#[derive(Debug)]
pub(crate) struct EndedTurn {
    pub(crate) end: TurnEnd,
    /// True if the workflow is notified once the end is stored. It is not notified earlier, because
    /// a later owner may have to wait for the answer.
    pub(crate) is_abandoned: bool,
    /// The command that ended the turn, with the sequence of its entry.
    pub(crate) stopped_by: Option<(Seq, AuditWrite)>,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TurnEnd {
    Complete,
    Stopped,
    Failed(MessageFailure),
    /// The follow-up was withdrawn, for this cause: none of its messages are stored.
    Withdrawn(&'static str),
}

#[derive(Debug)]
pub(crate) struct TrackedTurn {
    pub(crate) id: TurnId,
    pub(crate) thread: ThreadId,
    pub(crate) source: TurnSource,
    pub(crate) run: u32,
    pub(crate) token: TurnToken,
    pub(crate) state: TurnState,
    pub(crate) input: InputPlace,
    pub(crate) request: RunRequest,
    pub(crate) answer: AnswerProgress,
    pub(crate) times: TurnClock,
}

/// Where the input is stored besides memory.
#[derive(Debug)]
pub(crate) struct InputPlace {
    pub(crate) saved: SavedInput,
    /// Entry of the input while the stream must keep the entry. For an ended turn, also the entry
    /// of a chunk that came too late.
    pub(crate) hold: Option<Hold>,
}

/// Whether the input has a row, which must be deleted when the turn ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavedInput {
    No,
    BeingSaved,
    Yes,
}

/// The answer so far.
#[derive(Debug)]
pub(crate) struct AnswerProgress {
    /// Slot of the message, once a chunk has come.
    pub(crate) slot: Option<Slot>,
    /// Time of the last chunk by the stream clock.
    pub(crate) progress_at: Timestamp,
    /// Time of the last chunk by the clock of the stream's server; for people.
    pub(crate) heard_at: Option<Timestamp>,
}

impl AnswerProgress {
    /// True if a chunk has come.
    pub(crate) fn has_progress(&self) -> bool {
        self.heard_at.is_some()
    }
}

#[derive(Debug)]
pub(crate) struct TurnClock {
    /// Time at which this owner learned of the turn.
    pub(crate) known_at: Timestamp,
    /// Arrival of its input, under this or a previous owner.
    pub(crate) came_at: Timestamp,
    /// Time at which this owner started the run; `None` if a previous owner started it.
    pub(crate) began_at: Option<Timestamp>,
}

/// The request of a run, as far as this owner knows.
#[derive(Debug)]
pub(crate) struct RunRequest {
    rules: AgentRules,
    /// A previous owner may have published a request for the run.
    pub(crate) may_be_repeated: bool,
    /// When this owner published it, by the owner's clock.
    pub(crate) published_at: Option<Timestamp>,
    /// True if the request was published while the reader was behind: entries read until the reader
    /// has caught up are older than the request.
    pub(crate) was_behind: bool,
    /// Facts given to the run.
    pub(crate) recalled: RecalledFacts,
    pub(crate) state: RequestState,
}

#[derive(Debug)]
enum AgentRules {
    /// The driver has not read the agent's settings yet. An end that arrives earlier waits for
    /// them, because they decide the effect of a task's failure. With them the driver also reports
    /// whether a follow-up is still wanted and which facts the run was given.
    Unknown {
        pending_end: Option<TurnEnd>,
    },
    Known(TurnRules),
}

impl RunRequest {
    fn new() -> Self {
        Self {
            rules: AgentRules::Unknown { pending_end: None },
            may_be_repeated: false,
            published_at: None,
            was_behind: false,
            recalled: RecalledFacts::default(),
            state: RequestState::default(),
        }
    }

    pub(crate) fn rules(&self) -> Option<TurnRules> {
        match self.rules {
            AgentRules::Unknown { .. } => None,
            AgentRules::Known(rules) => Some(rules),
        }
    }

    pub(crate) fn has_rules(&self) -> bool {
        matches!(self.rules, AgentRules::Known(_))
    }

    /// Sets the rules, and returns the end that waited for them.
    pub(crate) fn set_rules(&mut self, rules: TurnRules) -> Option<TurnEnd> {
        match std::mem::replace(&mut self.rules, AgentRules::Known(rules)) {
            AgentRules::Unknown { pending_end } => pending_end,
            AgentRules::Known(_) => None,
        }
    }

    /// The end that waits for the rules.
    pub(crate) fn pending_end(&self) -> Option<&TurnEnd> {
        match &self.rules {
            AgentRules::Unknown { pending_end } => pending_end.as_ref(),
            AgentRules::Known(_) => None,
        }
    }

    /// Makes this end wait for the rules, if they are not known.
    pub(crate) fn end_later(&mut self, end: TurnEnd) {
        if let AgentRules::Unknown { pending_end } = &mut self.rules {
            *pending_end = Some(end);
        }
    }
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
/// Maximum interval between two tries while a budget is spent or a limit of turns is reached, ms:
/// many agents may wait for the same budget or limit, for weeks.
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
    /// The stored batch that it continues.
    pub(crate) fn continues(&self) -> Option<Position> {
        match &self.source {
            TurnSource::Input(opened) => opened.origin.continues(),
            TurnSource::Task(queued) => queued.task.origin.continues(),
        }
    }

    /// Number of continuations in a row, including this turn.
    pub(crate) fn continuation_number(&self) -> u64 {
        match &self.source {
            TurnSource::Input(opened) => opened.origin.continuation_number(),
            TurnSource::Task(queued) => queued.task.origin.continuation_number(),
        }
    }

    /// Timer that fired the turn; `Some` means that the turn is a follow-up.
    pub(crate) fn timer(&self) -> Option<&TimerId> {
        match &self.source {
            TurnSource::Input(opened) => opened.origin.timer(),
            TurnSource::Task(_) => None,
        }
    }

    /// True for a follow-up's turn, which yields to a person and is shown after its commit.
    pub(crate) fn is_follow_up(&self) -> bool {
        self.timer().is_some()
    }

    pub(crate) fn of_input(opened: Box<TurnOpened>, token: TurnToken) -> Self {
        let (id, thread, run) = (opened.turn.clone(), opened.thread.clone(), opened.run);
        Self::new(id, thread, run, TurnSource::Input(opened), token)
    }

    pub(crate) fn of_task(id: TurnId, queued: QueuedTask, run: u32, token: TurnToken) -> Self {
        let (thread, came_at) = (queued.task.agent.thread(), queued.position.timestamp());
        let mut turn = Self::new(id, thread, run, TurnSource::Task(queued), token);
        turn.times.came_at = came_at;
        turn
    }

    fn new(id: TurnId, thread: ThreadId, run: u32, source: TurnSource, token: TurnToken) -> Self {
        Self {
            id,
            thread,
            source,
            run,
            token,
            state: TurnState::Waiting { postponed: None },
            input: InputPlace { saved: SavedInput::No, hold: None },
            request: RunRequest::new(),
            answer: AnswerProgress { slot: None, progress_at: Timestamp(0), heard_at: None },
            times: TurnClock { known_at: Timestamp(0), came_at: Timestamp(0), began_at: None },
        }
    }

    pub(crate) fn agent(&self) -> &AgentId {
        match &self.source {
            TurnSource::Input(opened) => &opened.agent,
            TurnSource::Task(queued) => &queued.task.agent,
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, TurnState::Waiting { .. })
    }

    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.state, TurnState::Starting)
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, TurnState::Running)
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, TurnState::Ended(_))
    }

    /// How it ended; `None` while it has not.
    pub(crate) fn end(&self) -> Option<&TurnEnd> {
        match &self.state {
            TurnState::Ended(ended) => Some(&ended.end),
            TurnState::Waiting { .. } | TurnState::Starting | TurnState::Running => None,
        }
    }

    pub(crate) fn ended_mut(&mut self) -> Option<&mut EndedTurn> {
        match &mut self.state {
            TurnState::Ended(ended) => Some(ended),
            TurnState::Waiting { .. } | TurnState::Starting | TurnState::Running => None,
        }
    }

    /// True if a chunk of the running turn came before this owner had published a request.
    pub(crate) fn is_adopted(&self) -> bool {
        self.is_running() && self.times.began_at.is_none()
    }

    /// Continues a run that a previous owner started.
    pub(crate) fn adopt(&mut self) {
        self.state = TurnState::Running;
        self.times.began_at = None;
    }

    /// Gives the thread to the turn. If its answer has already come, a previous owner started it.
    pub(crate) fn begin(&mut self, now: Timestamp, time: Timestamp) {
        if self.answer.slot.is_some() {
            self.adopt();
        } else {
            self.state = TurnState::Starting;
            self.times.began_at = Some(now);
        }
        self.answer.progress_at = self.answer.progress_at.max(time);
    }

    /// Time at which the turn's input was accepted; for a retry, the time of the first acceptance.
    pub(crate) fn accepted_at(&self) -> Timestamp {
        match &self.source {
            TurnSource::Input(opened) => {
                let came_at = self.times.came_at;
                opened.options.accepted_at.unwrap_or(came_at).min(came_at)
            }
            TurnSource::Task(_) => self.times.came_at,
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
        matches!(&self.source, TurnSource::Input(opened) if !opened.origin.is_synthetic())
    }

    /// Type of its batch.
    pub(crate) fn batch_type(&self) -> BatchType {
        match (&self.source, self.continues()) {
            (_, Some(_)) => BatchType::Continuation,
            (TurnSource::Input(_), None) if self.is_follow_up() => BatchType::SystemTrigger,
            (TurnSource::Input(_), None) => BatchType::UserRequest,
            (TurnSource::Task(queued), None) => queued.task.batch_type(),
        }
    }

    /// True if the system created the turn's input, so that the turn need not keep its place in the
    /// thread.
    fn yields(&self) -> bool {
        match &self.source {
            TurnSource::Input(opened) => opened.origin.is_synthetic(),
            TurnSource::Task(queued) => queued.task.origin.is_continuation(),
        }
    }

    /// Whether a turn that waits in its thread may start. A foreground input keeps its place before
    /// later inputs; a background turn does not.
    pub(crate) fn waiting(&self, now: Timestamp) -> Readiness {
        match self.postponed(now) {
            Some(_) if self.yields() => Readiness::Yields,
            Some(_) => Readiness::Blocks,
            None => Readiness::Ready,
        }
    }

    /// Why a turn that waits in its thread does not start.
    pub(crate) fn waits_to_begin(&self, now: Timestamp) -> WaitReason {
        self.postponed(now).map_or(WaitReason::HeadOfLine, |postponed| postponed.reason(now))
    }

    /// Why its agent cannot start it now.
    fn postponed(&self, now: Timestamp) -> Option<Postponed> {
        match self.state {
            TurnState::Waiting { postponed } => postponed.filter(|postponed| now < postponed.until),
            TurnState::Starting | TurnState::Running | TurnState::Ended(_) => None,
        }
    }

    pub(crate) fn is_task(&self) -> bool {
        matches!(self.source, TurnSource::Task(_))
    }

    /// Time in ms since the turn's last chunk, or else since its request, or else since its
    /// arrival.
    pub(crate) fn idle_ms(&self, now: Timestamp) -> i64 {
        let since = self.answer.heard_at.or(self.request.published_at).unwrap_or(self.times.came_at);
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
