//! Keeps the limits of workflows, models and tenants: a turn that comes under one begins when the workers together have room for it.
//!
//! Entry points: [`TurnLimiter::admit`] before a turn is requested, [`TurnLimiter::retain`] when a partition may have fewer turns under way,
//! [`TurnLimiter::run`] tells the store what this worker runs. Turns that come under no limit cost nothing. What a worker runs counts until it
//! has said for [`HELD_FOR`] nothing any more; a turn that another worker goes on with counts for both until then, so that no limit is exceeded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{AgentId, PartitionId, TurnId, WorkflowName};
use scheduling::turn_limits::{TurnLimit, TurnLimits};
use serde_json::{Map, Value};
use store::{HeldTurns, Store, StoreError};
use tokio::sync::{Notify, RwLock};
use tokio_util::sync::CancellationToken;

/// What is said counts for so long. A worker that is halted for longer has lost its partitions as well.
const HELD_FOR: Duration = Duration::from_secs(15);
/// Between two times that it is said, at most.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// Turns that end together are said together.
const GATHER: Duration = Duration::from_millis(20);
/// Unused limits are forgotten so often.
const FORGET_EVERY: u32 = 600;
/// A turn that finds all places taken tries again after so long, and the longer the more of them wait here.
const BUSY: Duration = Duration::from_millis(500);
const BUSY_FOR_EACH: Duration = Duration::from_millis(5);
const BUSY_MOST: Duration = Duration::from_secs(15);
/// A longer name of a model is none.
const MODEL_BYTES: usize = 256;

/// The turns of this worker that come under limits.
#[derive(Debug)]
pub(crate) struct TurnLimiter {
    limits: TurnLimits,
    worker: String,
    state: Mutex<LimiterState>,
    changed: Notify,
    /// Admissions read, what says how many there are writes: it would take back one that the store has just counted.
    admitting: RwLock<()>,
}

#[derive(Debug, Default)]
struct LimiterState {
    turns: HashMap<PartitionId, HashMap<TurnId, Vec<String>>>,
    /// What is to be said: keys with turns under way, and those that were said to have some.
    keys: BTreeMap<String, KeyUsage>,
    /// Turns that were not admitted since the last round.
    refused: u32,
}

#[derive(Debug, Default)]
struct KeyUsage {
    running: u64,
    tokens: u64,
    /// It has a limit of tokens.
    counts_tokens: bool,
}

impl LimiterState {
    fn enter(&mut self, turn: &TurnId, partition: PartitionId, limits: &[TurnLimit]) {
        self.leave(turn, partition);
        let keys: Vec<String> = limits.iter().map(|limit| limit.key.clone()).collect();
        for limit in limits {
            let usage = self.keys.entry(limit.key.clone()).or_default();
            usage.running += 1;
            usage.counts_tokens = limit.limit.tokens_per_minute.is_some();
        }
        self.turns.entry(partition).or_default().insert(turn.clone(), keys);
    }

    fn leave(&mut self, turn: &TurnId, partition: PartitionId) {
        let Some(keys) = self.turns.get_mut(&partition).and_then(|turns| turns.remove(turn)) else { return };
        for key in keys {
            if let Some(usage) = self.keys.get_mut(&key) {
                usage.running = usage.running.saturating_sub(1);
            }
        }
    }
}

impl TurnLimiter {
    pub(crate) fn new(limits: TurnLimits, worker: String) -> Arc<Self> {
        Arc::new(Self {
            limits,
            worker,
            state: Mutex::default(),
            changed: Notify::new(),
            admitting: RwLock::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits that concern a turn of the agent with these settings.
    pub(crate) fn of_turn(
        &self,
        agent: &AgentId,
        workflow: &WorkflowName,
        settings: &Map<String, Value>,
    ) -> Vec<TurnLimit> {
        if self.limits.is_empty() {
            return Vec::new();
        }
        let model = settings.get("model").and_then(Value::as_str);
        let model = model.filter(|model| (1..=MODEL_BYTES).contains(&model.len()) && !model.contains('\0'));
        let tenant = agent.tenant();
        self.limits.of_turn(workflow.as_str(), model, tenant.as_ref().map(model::Tenant::as_str))
    }

    /// Counts a turn that is under way already.
    pub(crate) fn enter(&self, turn: &TurnId, partition: PartitionId, limits: &[TurnLimit]) {
        self.state().enter(turn, partition, limits);
        self.changed.notify_one();
    }

    /// Counts the turn if all its limits have room; else `Some`: in how many ms it may be tried again.
    pub(crate) async fn admit(
        &self,
        store: &Store,
        turn: &TurnId,
        partition: PartitionId,
        limits: &[TurnLimit],
    ) -> Result<Option<i64>, StoreError> {
        let _admitting = self.admitting.read().await;
        let refused = {
            let mut state = self.state();
            state.enter(turn, partition, limits);
            state.refused
        };
        let busy = (BUSY + BUSY_FOR_EACH * refused).min(BUSY_MOST).mul_f64(rand::random_range(0.75..=1.25));
        let admitted = store.admit_turn(&self.worker, limits, HELD_FOR, busy).await;
        if !matches!(admitted, Ok(None)) {
            let mut state = self.state();
            state.leave(turn, partition);
            metrics::counter!(crate::metrics::LIMITED_TURNS).increment(1);
            state.refused = state.refused.saturating_add(1);
        }
        admitted
    }

    /// What a turn has used, before it is said that it has ended.
    pub(crate) fn used<'a>(
        &self,
        partition: PartitionId,
        tokens: impl IntoIterator<Item = (&'a TurnId, u64)>,
    ) {
        if self.limits.is_empty() {
            return;
        }
        let state = &mut *self.state();
        let Some(turns) = state.turns.get(&partition) else { return };
        for (turn, tokens) in tokens {
            for key in turns.get(turn).into_iter().flatten() {
                if let Some(usage) = state.keys.get_mut(key).filter(|usage| usage.counts_tokens) {
                    usage.tokens = usage.tokens.saturating_add(tokens);
                }
            }
        }
    }

    /// Of the partition's turns those that `is_active` says are under way; none once it is left.
    pub(crate) fn retain(&self, partition: PartitionId, is_active: impl Fn(&TurnId) -> bool) {
        if self.limits.is_empty() {
            return;
        }
        let mut state = self.state();
        let Some(turns) = state.turns.get(&partition) else { return };
        let over: Vec<TurnId> = turns.keys().filter(|turn| !is_active(turn)).cloned().collect();
        for turn in &over {
            state.leave(turn, partition);
        }
        drop(state);
        if !over.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Tells the store what runs, until `stop`. What ends after that is said by [`TurnLimiter::say`].
    pub(crate) async fn run(self: Arc<Self>, store: Store, stop: CancellationToken) {
        if self.limits.is_empty() {
            return;
        }
        let mut rounds = 0_u32;
        loop {
            tokio::select! {
                () = self.changed.notified() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(SAY_EVERY) => {
                    rounds = rounds.wrapping_add(1);
                    self.state().refused = 0;
                    if rounds.is_multiple_of(FORGET_EVERY)
                        && let Err(error) = store.forget_unused_limits().await
                    {
                        tracing::debug!(%error, "limits that nothing uses were not forgotten");
                    }
                }
                () = stop.cancelled() => return,
            }
            self.say(&store).await;
        }
    }

    /// Tells the store what runs now.
    pub(crate) async fn say(&self, store: &Store) {
        let _saying = self.admitting.write().await;
        let held: Vec<HeldTurns> = {
            let state = self.state();
            let of = |(key, usage): (&String, &KeyUsage)| HeldTurns {
                key: key.clone(),
                running: usage.running,
                tokens: usage.tokens,
            };
            state.keys.iter().map(of).collect()
        };
        if held.is_empty() {
            return;
        }
        if let Err(error) = store.hold_turns(&self.worker, &held, HELD_FOR).await {
            // Said in the next round.
            tracing::debug!(%error, "the turns under way were not counted for their limits");
            return;
        }
        let mut state = self.state();
        for said in held {
            if let Some(usage) = state.keys.get_mut(&said.key) {
                usage.tokens = usage.tokens.saturating_sub(said.tokens);
            }
            if said.running == 0
                && state.keys.get(&said.key).is_some_and(|usage| usage.running + usage.tokens == 0)
            {
                state.keys.remove(&said.key);
            }
        }
    }
}
