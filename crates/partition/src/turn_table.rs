//! The tables of all turns of a partition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::{HashMap, HashSet};
use model::{AgentId, Position, Seq, ThreadId, Timestamp, TokenKeys, TurnId, WaitReason};
use scheduling::{AgentQueue, HeadState, ThreadQueue};

use crate::late_runs::LateRuns;
use crate::open::Hold;
use crate::turn_state::{Postponed, TrackedTurn};
use crate::types::BackoffChange;
use crate::wait_counts::WaitCounts;

type Hasher = foldhash::fast::FixedState;

/// Change of an agent's row besides the outcome of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentRowChange {
    pub(crate) wait: BackoffChange,
}

/// Turns, their threads, and the agents whose queues they come from.
#[derive(Debug)]
pub(crate) struct TurnTable {
    /// Ordered by id, so that iteration over all turns is deterministic.
    pub(crate) turns: BTreeMap<TurnId, TrackedTurn>,
    pub(crate) thread_queues: HashMap<ThreadId, ThreadQueue<TurnId>, Hasher>,
    pub(crate) agents: Agents,
    ready: ReadyThreads,
    pub(crate) delays: Delays,
    /// Runs that are over.
    pub(crate) late: LateRuns,
    /// Turns under way whose commit has not been applied.
    pub(crate) active: usize,
    /// Turns whose entries the stream must keep.
    pub(crate) held: BTreeMap<Seq, TurnId>,
    /// Bytes of the inputs of turns and of queued tasks.
    pub(crate) bytes: usize,
    pub(crate) token_keys: TokenKeys,
}

/// The agents in memory.
#[derive(Debug)]
pub(crate) struct Agents {
    pub(crate) queues: HashMap<AgentId, AgentQueue, Hasher>,
    /// Agents whose rows the next commit writes.
    pub(crate) changed: BTreeMap<AgentId, AgentRowChange>,
    /// Agents whose first task a previous owner may have requested.
    pub(crate) restored: BTreeSet<AgentId>,
    random: u64,
}

/// Threads in which a turn may be able to start, without duplicates.
#[derive(Debug)]
struct ReadyThreads {
    order: VecDeque<ThreadId>,
    set: HashSet<ThreadId, Hasher>,
}

/// Agents and inputs that are tried again later.
#[derive(Debug, Default)]
pub(crate) struct Delays {
    /// Ends of backoffs.
    pub(crate) backoffs: BTreeSet<(Timestamp, AgentId)>,
    /// Threads with a postponed input, and when it is tried again.
    pub(crate) postponed: BTreeSet<(Timestamp, ThreadId)>,
    /// Background queues whose first task is postponed.
    pub(crate) postponed_queues: BTreeMap<AgentId, Postponed>,
}

impl Delays {
    /// Ends the earliest backoff that has expired.
    pub(crate) fn take_backoff(&mut self, now: Timestamp) -> Option<AgentId> {
        self.backoffs.first().filter(|(until, _)| *until <= now)?;
        self.backoffs.pop_first().map(|(_, agent)| agent)
    }

    /// Ends the earliest postponement that has expired.
    pub(crate) fn take_postponed(&mut self, now: Timestamp) -> Option<ThreadId> {
        self.postponed.first().filter(|(until, _)| *until <= now)?;
        self.postponed.pop_first().map(|(_, thread)| thread)
    }
}

impl Agents {
    /// Makes the next commit write the agent's row.
    pub(crate) fn mark(&mut self, agent: &AgentId, wait: BackoffChange) {
        let changed =
            self.changed.entry(agent.clone()).or_insert(AgentRowChange { wait: BackoffChange::Keep });
        if wait != BackoffChange::Keep {
            changed.wait = wait;
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
}

impl TurnTable {
    /// Number of agents whose first task is running or may start. Also the age in ms of the oldest
    /// task that may start and has not started.
    pub(crate) fn runnable(&self, now: Timestamp) -> (usize, i64) {
        let heads = self.agents.queues.values().map(|queue| (queue.head_state(now), queue.first()));
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
        let waiting = self.turns.values().filter(|turn| turn.is_waiting());
        waiting.map(|turn| turn.waits_to_begin(now)).collect()
    }

    /// Agents whose first task waits for a reason other than its turn, by reason.
    pub(crate) fn waiting_agents(&self, now: Timestamp) -> WaitCounts {
        let reason = |(agent, queue): (&AgentId, &AgentQueue)| match queue.head_state(now) {
            HeadState::Paused => Some(WaitReason::Paused),
            HeadState::Waits(until) => {
                let postponed =
                    self.delays.postponed_queues.get(agent).map(|postponed| postponed.reason(now));
                postponed.or(Some(WaitReason::Backoff { for_ms: until.since_ms(now) }))
            }
            HeadState::None
            | HeadState::NotLoaded
            | HeadState::Ready
            | HeadState::Running
            | HeadState::Unsettled => None,
        };
        self.agents.queues.iter().filter_map(reason).collect()
    }

    /// Number of agents in backoff, with or without a task.
    pub(crate) fn backing_off(&self, now: Timestamp) -> usize {
        let waits = |queue: &AgentQueue| queue.waits_until().is_some_and(|until| until > now);
        let agents = self.agents.queues.iter().filter(|(_, queue)| waits(queue));
        agents.filter(|(agent, _)| !self.delays.postponed_queues.contains_key(*agent)).count()
    }

    pub(crate) fn new(token_keys: TokenKeys, seed: u64) -> Self {
        let hasher = || Hasher::with_seed(seed);
        Self {
            turns: BTreeMap::new(),
            thread_queues: HashMap::with_hasher(hasher()),
            agents: Agents {
                queues: HashMap::with_hasher(hasher()),
                changed: BTreeMap::new(),
                restored: BTreeSet::new(),
                random: seed,
            },
            ready: ReadyThreads { order: VecDeque::new(), set: HashSet::with_hasher(hasher()) },
            delays: Delays::default(),
            late: LateRuns::default(),
            active: 0,
            held: BTreeMap::new(),
            bytes: 0,
            token_keys,
        }
    }

    pub(crate) fn insert(&mut self, turn: TrackedTurn) {
        self.bytes += turn.size();
        if let Some(hold) = turn.input.hold {
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
        let queue = self.agents.queues.entry(agent.clone()).or_default();
        let before = queue.bytes();
        let result = change(queue);
        self.bytes = self.bytes + queue.bytes() - before;
        result
    }

    /// Makes the stream keep this entry of the turn.
    pub(crate) fn hold(&mut self, id: &TurnId, hold: Hold) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.input.hold = Some(hold);
        self.held.insert(hold.seq, id.clone());
    }

    /// Releases the turn's entry, which the stream need not keep any more.
    pub(crate) fn release(&mut self, id: &TurnId) -> Option<Seq> {
        let hold = self.turns.get_mut(id)?.input.hold.take()?;
        self.held.remove(&hold.seq);
        Some(hold.seq)
    }

    /// Queues the thread to be checked when there is room for a turn.
    pub(crate) fn make_ready(&mut self, thread: &ThreadId) {
        if self.ready.set.insert(thread.clone()) {
            self.ready.order.push_back(thread.clone());
        }
    }

    pub(crate) fn next_ready(&mut self) -> Option<ThreadId> {
        let thread = self.ready.order.pop_front()?;
        self.ready.set.remove(&thread);
        Some(thread)
    }

    /// Drops the in-memory state of a thread and its agent once it equals the store's defaults.
    pub(crate) fn forget_idle(&mut self, thread: &ThreadId) {
        if self.thread_queues.get(thread).is_some_and(ThreadQueue::is_empty) {
            self.thread_queues.remove(thread);
        }
        let agent = thread.agent();
        if self.agents.queues.get(&agent).is_some_and(AgentQueue::is_forgettable)
            && !self.agents.changed.contains_key(&agent)
        {
            self.agents.queues.remove(&agent);
            self.agents.restored.remove(&agent);
            self.delays.postponed_queues.remove(&agent);
        }
    }

    /// Head of an agent's queue as it is written; 0 while none is known.
    pub(crate) fn head(queue: &AgentQueue) -> Position {
        queue.head.unwrap_or(Position::from_stored(0))
    }
}
