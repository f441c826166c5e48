//! A turn in memory, and the tables of all turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use batches::memory::RecalledFacts;
use hashbrown::{HashMap, HashSet};
use model::{
    AgentId, BatchType, MessageFailure, Position, QueuedTask, Seq, ThreadId, TimerId, Timestamp, TokenKeys,
    TurnId, TurnOpened, TurnToken, WaitReason,
};
use scheduling::{AgentQueue, HeadState, Readiness, ThreadQueue};

use crate::messages::Slot;
use crate::open::Hold;
use crate::request_state::RequestState;
use crate::types::{AuditWrite, BackoffChange, NotNow, TurnRules};
use crate::wait_counts::WaitCounts;

type Hasher = foldhash::fast::FixedState;

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

    /// Timer that fired it; `Some` means that the turn is a follow-up.
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
        let (id, thread, agent, run) =
            (opened.turn.clone(), opened.thread.clone(), opened.agent.clone(), opened.run);
        Self::new(id, thread, agent, run, TurnSource::Input(opened), token)
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
        matches!(&self.source, TurnSource::Input(opened) if !opened.origin.is_synthetic())
    }

    /// True if facts from the turn are remembered afterwards.
    pub(crate) fn is_remembered(&self) -> bool {
        matches!(&self.source, TurnSource::Input(opened) if opened.options.memory)
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

    /// True if the system created its input, so that it need not keep its place in the thread.
    fn steps_aside(&self) -> bool {
        match &self.source {
            TurnSource::Input(opened) => opened.origin.is_synthetic(),
            TurnSource::Task(queued) => queued.task.origin.is_continuation(),
        }
    }

    /// Whether a turn that waits in its thread may start. A foreground input keeps its place before
    /// later inputs; a background turn does not.
    pub(crate) fn waiting(&self, now: Timestamp) -> Readiness {
        match self.postponed {
            Some(postponed) if now < postponed.until => match self.steps_aside() {
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

/// Change of an agent's row besides the outcome of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentRowChange {
    pub(crate) wait: BackoffChange,
}

/// Turns, their threads, and the queues they come from.
#[derive(Debug)]
pub(crate) struct TurnTable {
    /// Ordered by id, so that iteration over all turns is deterministic.
    pub(crate) turns: BTreeMap<TurnId, TrackedTurn>,
    pub(crate) thread_queues: HashMap<ThreadId, ThreadQueue<TurnId>, Hasher>,
    pub(crate) queues: HashMap<AgentId, AgentQueue, Hasher>,
    /// Threads in which a turn may be able to start, without duplicates.
    ready: VecDeque<ThreadId>,
    is_ready: HashSet<ThreadId, Hasher>,
    /// Ends of backoffs.
    pub(crate) backoffs: BTreeSet<(Timestamp, AgentId)>,
    /// Threads with a postponed input, and when it is tried again.
    pub(crate) postponed: BTreeSet<(Timestamp, ThreadId)>,
    /// Background queues whose first task is postponed.
    pub(crate) postponed_queues: BTreeMap<AgentId, Postponed>,
    pub(crate) dirty: BTreeMap<AgentId, AgentRowChange>,
    /// Agents whose first task a previous owner may have requested.
    pub(crate) restored: BTreeSet<AgentId>,
    /// Turns under way whose commit has not been applied.
    pub(crate) active: usize,
    /// Turns whose entries the stream must keep.
    pub(crate) held: BTreeMap<Seq, TurnId>,
    /// Bytes of the inputs of turns and of queued tasks.
    pub(crate) bytes: usize,
    pub(crate) token_keys: TokenKeys,
    random: u64,
}

impl TurnTable {
    /// Number of agents whose first task is running or may start. Also the age in ms of the oldest
    /// task that may start and has not started.
    pub(crate) fn runnable(&self, now: Timestamp) -> (usize, i64) {
        let heads = self.queues.values().map(|queue| (queue.head_state(now), queue.first()));
        heads.fold((0, 0), |(agents, oldest_ms), (state, first)| match (state, first) {
            (HeadState::Ready, Some(first)) => {
                (agents + 1, oldest_ms.max(now.since_ms(first.position.timestamp())))
            }
            (HeadState::Running, _) => (agents + 1, oldest_ms),
            _ => (agents, oldest_ms),
        })
    }

    /// Inputs waiting for their thread, by reason.
    pub(crate) fn waiting_turns(&self, now: Timestamp) -> WaitCounts {
        let waiting = self.turns.values().filter(|turn| turn.phase == TurnPhase::Waiting);
        waiting.map(|turn| turn.waits_to_begin(now)).collect()
    }

    /// Agents whose first task waits for a reason other than its turn, by reason.
    pub(crate) fn waiting_agents(&self, now: Timestamp) -> WaitCounts {
        let reason = |(agent, queue): (&AgentId, &AgentQueue)| match queue.head_state(now) {
            HeadState::Paused => Some(WaitReason::Paused),
            HeadState::Waits(until) => {
                let postponed = self.postponed_queues.get(agent).map(|postponed| postponed.reason(now));
                postponed.or(Some(WaitReason::Backoff { for_ms: until.since_ms(now) }))
            }
            HeadState::None
            | HeadState::NotLoaded
            | HeadState::Ready
            | HeadState::Running
            | HeadState::Unsettled => None,
        };
        self.queues.iter().filter_map(reason).collect()
    }

    /// Number of agents in backoff, with or without a task.
    pub(crate) fn backing_off(&self, now: Timestamp) -> usize {
        let waits = |queue: &AgentQueue| queue.waits_until().is_some_and(|until| until > now);
        let agents = self.queues.iter().filter(|(_, queue)| waits(queue));
        agents.filter(|(agent, _)| !self.postponed_queues.contains_key(*agent)).count()
    }

    pub(crate) fn new(token_keys: TokenKeys, seed: u64) -> Self {
        Self {
            turns: BTreeMap::new(),
            thread_queues: HashMap::with_hasher(Hasher::with_seed(seed)),
            queues: HashMap::with_hasher(Hasher::with_seed(seed)),
            ready: VecDeque::new(),
            is_ready: HashSet::with_hasher(Hasher::with_seed(seed)),
            backoffs: BTreeSet::new(),
            postponed: BTreeSet::new(),
            postponed_queues: BTreeMap::new(),
            dirty: BTreeMap::new(),
            restored: BTreeSet::new(),
            active: 0,
            held: BTreeMap::new(),
            bytes: 0,
            token_keys,
            random: seed,
        }
    }

    pub(crate) fn insert(&mut self, turn: TrackedTurn) {
        self.bytes += turn.size();
        if let Some(hold) = turn.hold {
            self.held.insert(hold.seq, turn.id.clone());
        }
        self.turns.insert(turn.id.clone(), turn);
    }

    pub(crate) fn remove(&mut self, id: &TurnId) -> Option<TrackedTurn> {
        let turn = self.turns.remove(id)?;
        self.bytes -= turn.size();
        Some(turn)
    }

    /// Changes an agent's queue, creating it if needed, and updates the sum of bytes.
    pub(crate) fn queue<R>(&mut self, agent: &AgentId, change: impl FnOnce(&mut AgentQueue) -> R) -> R {
        let queue = self.queues.entry(agent.clone()).or_default();
        let before = queue.bytes();
        let result = change(queue);
        self.bytes = self.bytes + queue.bytes() - before;
        result
    }

    /// Makes the stream keep this entry of the turn.
    pub(crate) fn hold(&mut self, id: &TurnId, hold: Hold) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.hold = Some(hold);
        self.held.insert(hold.seq, id.clone());
    }

    /// Releases the turn's entry, which the stream need not keep any more.
    pub(crate) fn release(&mut self, id: &TurnId) -> Option<Seq> {
        let hold = self.turns.get_mut(id)?.hold.take()?;
        self.held.remove(&hold.seq);
        Some(hold.seq)
    }

    /// Queues the thread to be checked when there is room for a turn.
    pub(crate) fn make_ready(&mut self, thread: &ThreadId) {
        if self.is_ready.insert(thread.clone()) {
            self.ready.push_back(thread.clone());
        }
    }

    pub(crate) fn next_ready(&mut self) -> Option<ThreadId> {
        let thread = self.ready.pop_front()?;
        self.is_ready.remove(&thread);
        Some(thread)
    }

    pub(crate) fn mark(&mut self, agent: &AgentId, wait: BackoffChange) {
        let dirty = self.dirty.entry(agent.clone()).or_insert(AgentRowChange { wait: BackoffChange::Keep });
        if wait != BackoffChange::Keep {
            dirty.wait = wait;
        }
    }

    /// Drops the in-memory state of a thread and its agent once it equals the store's defaults.
    pub(crate) fn tidy(&mut self, thread: &ThreadId) {
        if self.thread_queues.get(thread).is_some_and(ThreadQueue::is_empty) {
            self.thread_queues.remove(thread);
        }
        let agent = thread.agent();
        if self.queues.get(&agent).is_some_and(AgentQueue::is_forgettable) && !self.dirty.contains_key(&agent)
        {
            self.queues.remove(&agent);
            self.restored.remove(&agent);
            self.postponed_queues.remove(&agent);
        }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): uniform, and the same for the same seed.
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Head of an agent's queue as it is written; 0 while none is known.
    pub(crate) fn head(queue: &AgentQueue) -> Position {
        queue.head.unwrap_or(Position::from_stored(0))
    }
}
