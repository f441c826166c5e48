//! Keeps the limits of workflows, models and tenants: a turn that comes under one begins when the workers together have room for it.
//!
//! Entry points: [`TurnLimiter::admit`] before a turn is requested, [`TurnLimiter::retain`] when a partition may have fewer turns under way,
//! [`TurnLimiter::run`] writes what has ended to the store. Turns that come under no limit cost nothing. The turns of a worker count until it
//! has written nothing for `held_for`; who goes on with one of them after its death finds it counted, and does not ask for a place again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{AgentId, AgentSetting, PartitionId, TurnId, WorkflowName};
use scheduling::turn_limits::{TurnLimit, TurnLimits};
use serde_json::{Map, Value};
use store::{HeldTurns, LimitedTurn, Store, StoreError};
use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::config::WorkerConfig;

/// What is written counts for so long at least, and for so many leases: who takes a partition over does so before its turns stop counting.
const HELD_FOR: Duration = Duration::from_secs(30);
const HELD_FOR_LEASES: u32 = 3;
/// Between two times that the store is brought up to date, at most.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Turns that end together are written together.
const GATHER: Duration = Duration::from_millis(20);
/// Unused limits are forgotten so often.
const FORGET_EVERY: u32 = 60;
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
    held_for: Duration,
    state: Mutex<LimiterState>,
    changed: Notify,
    /// Admissions read, what writes that turns have ended excludes them: it would take back one that begins again.
    admitting: RwLock<()>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// Turns under way, with their limits.
    turns: HashMap<PartitionId, HashMap<TurnId, Vec<TurnLimit>>>,
    /// What the store does not know yet.
    changes: HeldTurns,
    /// Likewise, but not before what is in `changes`: that these are this worker's is in there, and no worker ends what is another's.
    ended_later: Vec<LimitedTurn>,
    /// Turns of partitions that were left, and when: who goes on with them finds them counted.
    handed_over: Vec<(Instant, LimitedTurn)>,
    /// Turns that were not admitted since the last round.
    refused: u32,
}

impl LimiterState {
    fn enter(&mut self, turn: &TurnId, partition: PartitionId, limits: &[TurnLimit]) {
        // It has begun again before it was said that it had ended.
        self.changes.ended.retain(|(_, ended)| ended != turn);
        self.changes.finished.retain(|finished| finished != turn);
        self.ended_later.retain(|(_, ended)| ended != turn);
        self.handed_over.retain(|(_, (_, handed))| handed != turn);
        self.turns.entry(partition).or_default().insert(turn.clone(), limits.to_vec());
    }

    fn leave(&mut self, turn: &TurnId, partition: PartitionId) {
        let left = self.turns.get_mut(&partition).and_then(|turns| turns.remove(turn));
        let ended = left.into_iter().flatten().map(|limit| (limit.key, turn.clone()));
        match self.changes.entered.iter().any(|(_, entered)| entered == turn) {
            true => self.ended_later.extend(ended),
            false => self.changes.ended.extend(ended),
        }
    }

    fn hand_over(&mut self, partition: PartitionId, now: Instant) {
        for (turn, limits) in self.turns.remove(&partition).into_iter().flatten() {
            self.changes.entered.retain(|(_, entered)| *entered != turn);
            self.handed_over.extend(limits.into_iter().map(|limit| (now, (limit.key, turn.clone()))));
        }
    }

    /// What no owner has gone on with for so long has ended.
    fn expire(&mut self, now: Instant, held_for: Duration) {
        let is_over = |(at, _): &(Instant, LimitedTurn)| now.duration_since(*at) >= held_for;
        let over = self.handed_over.extract_if(.., |handed| is_over(handed)).map(|(_, turn)| turn);
        self.changes.ended.extend(over);
    }

    fn has(&self, turn: &TurnId) -> bool {
        self.turns.values().any(|turns| turns.contains_key(turn))
    }

    fn is_idle(&self) -> bool {
        self.changes == HeldTurns::default()
            && self.ended_later.is_empty()
            && self.handed_over.is_empty()
            && self.turns.values().all(HashMap::is_empty)
    }
}

impl TurnLimiter {
    pub(crate) fn new(config: &WorkerConfig) -> Arc<Self> {
        Arc::new(Self {
            limits: config.turn_limits.clone(),
            worker: config.worker_id.clone(),
            held_for: HELD_FOR.max(config.lease * HELD_FOR_LEASES),
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
        let model = AgentSetting::MODEL.string(settings);
        let model = model.filter(|model| (1..=MODEL_BYTES).contains(&model.len()) && !model.contains('\0'));
        let tenant = agent.tenant();
        self.limits.of_turn(workflow.as_str(), model, tenant.as_ref().map(model::Tenant::as_str))
    }

    /// Counts a turn that is under way already.
    pub(crate) fn enter(&self, turn: &TurnId, partition: PartitionId, limits: &[TurnLimit]) {
        let mut state = self.state();
        state.enter(turn, partition, limits);
        state.changes.entered.extend(limits.iter().map(|limit| (limit.key.clone(), turn.clone())));
        drop(state);
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
        let admitted = store.admit_turn(&self.worker, turn, limits, self.held_for, busy).await;
        if !matches!(admitted, Ok(None)) {
            let mut state = self.state();
            state.leave(turn, partition);
            if admitted.is_ok() {
                // The store has not counted it. After an error that is not known.
                state.changes.ended.retain(|(_, ended)| ended != turn);
                state.refused = state.refused.saturating_add(1);
                metrics::counter!(crate::metrics::LIMITED_TURNS).increment(1);
            }
        }
        admitted
    }

    /// The ends of these turns are committed, and they have used so many tokens.
    pub(crate) fn finish(&self, partition: PartitionId, tokens: Vec<(TurnId, u64)>, finished: Vec<TurnId>) {
        if self.limits.is_empty() {
            return;
        }
        let state = &mut *self.state();
        let turns = state.turns.entry(partition).or_default();
        for (turn, tokens) in &tokens {
            let limits = turns.get(turn).into_iter().flatten();
            for limit in limits.filter(|limit| limit.limit.tokens_per_minute.is_some()) {
                let sum = state.changes.tokens.entry(limit.key.clone()).or_default();
                *sum = sum.saturating_add(*tokens);
            }
        }
        for turn in &finished {
            turns.remove(turn);
            state.changes.entered.retain(|(_, entered)| entered != turn);
        }
        if !finished.is_empty() {
            state.changes.finished.extend(finished);
            self.changed.notify_one();
        }
    }

    /// The partition is left: another owner, perhaps of another worker, goes on with its turns.
    pub(crate) fn hand_over(&self, partition: PartitionId) {
        self.state().hand_over(partition, Instant::now());
    }

    /// Of the partition's turns those go on to be counted that `is_active` says are under way.
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

    /// Keeps the store up to date until `stop`. What ends after that is written by [`TurnLimiter::sync`].
    pub(crate) async fn run(self: Arc<Self>, store: Store, stop: CancellationToken) {
        if self.limits.is_empty() {
            return;
        }
        let mut rounds = 0_u32;
        // Not a pause of each round: changes that come all the time would put it off for ever.
        let mut every = tokio::time::interval(SYNC_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.changed.notified() => tokio::time::sleep(GATHER).await,
                _ = every.tick() => {
                    rounds = rounds.wrapping_add(1);
                    self.state().refused = 0;
                    if rounds.is_multiple_of(FORGET_EVERY) {
                        self.forget(&store).await;
                    }
                }
                () = stop.cancelled() => return,
            }
            self.sync(&store).await;
        }
    }

    /// Has the store forget what is counted for this worker and does not run, as after a start under the name of one that has died, and what
    /// nothing uses.
    async fn forget(&self, store: &Store) {
        let _syncing = self.admitting.write().await;
        let known: Vec<TurnId> = {
            let state = self.state();
            let here = state.turns.values().flat_map(HashMap::keys);
            let handed = state.handed_over.iter().map(|(_, (_, turn))| turn);
            here.chain(handed).cloned().collect()
        };
        if let Err(error) = store.forget_unused_limits(&self.worker, &known).await {
            tracing::debug!(%error, "limits that nothing uses were not forgotten");
        }
    }

    /// Writes what has changed, and that this worker is there, to the store.
    pub(crate) async fn sync(&self, store: &Store) {
        let _syncing = self.admitting.write().await;
        let changes = {
            let mut state = self.state();
            state.expire(Instant::now(), self.held_for);
            if state.is_idle() {
                return;
            }
            let later = HeldTurns { ended: std::mem::take(&mut state.ended_later), ..HeldTurns::default() };
            std::mem::replace(&mut state.changes, later)
        };
        let Err(error) = store.hold_turns(&self.worker, &changes, self.held_for).await else {
            if !self.state().changes.ended.is_empty() {
                self.changed.notify_one();
            }
            return;
        };
        // Written in the next round, with what has changed by then.
        tracing::debug!(%error, "the turns under way were not counted for their limits");
        let HeldTurns { entered, ended, finished, tokens } = changes;
        let mut state = self.state();
        // One that has begun again meanwhile runs.
        let finished: Vec<TurnId> = finished.into_iter().filter(|turn| !state.has(turn)).collect();
        state.changes.finished.extend(finished);
        let later = std::mem::take(&mut state.changes.ended);
        state.ended_later.extend(later);
        for (key, turn) in entered {
            // One that was handed over meanwhile is another's.
            if state.has(&turn) || state.ended_later.iter().any(|(_, ended)| *ended == turn) {
                state.changes.entered.push((key, turn));
            }
        }
        for (key, turn) in ended {
            if !state.has(&turn) {
                state.changes.ended.push((key, turn));
            }
        }
        for (key, tokens) in tokens {
            let sum = state.changes.tokens.entry(key).or_default();
            *sum = sum.saturating_add(tokens);
        }
    }
}
