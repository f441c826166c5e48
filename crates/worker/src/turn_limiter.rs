//! Enforces the limits of workflows, models and tenants: a limited turn starts when the fleet has
//! room for it.
//!
//! Entry points: [`TurnLimiter::admit`] before a turn is requested, [`TurnLimiter::retain`] when a
//! partition may have fewer active turns, and [`TurnLimiter::run`], which writes ended turns to the
//! store. Turns without a limit cost nothing.
//!
//! The turns of a worker count until it has written nothing for `held_for`. A worker that continues
//! a turn after another worker's death finds the turn counted, and does not admit it again.

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
use crate::refusals::{RefusedItem, note_item, parts_unless_away};

/// After a worker's last write, its turns count for at least this time and this number of leases.
/// So the partition is taken over before its turns stop counting.
const HELD_FOR: Duration = Duration::from_secs(30);
const HELD_FOR_LEASES: u32 = 3;
/// Maximum time between two updates of the store.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Turns that end within this time are written together.
const GATHER: Duration = Duration::from_millis(20);
/// Unused limits are forgotten once in this many rounds.
const FORGET_EVERY: u32 = 60;
/// Delay after which a refused turn is tried again. It grows with the number of turns that this
/// worker has refused in the round.
const BUSY: Duration = Duration::from_millis(500);
const BUSY_FOR_EACH: Duration = Duration::from_millis(5);
const BUSY_MOST: Duration = Duration::from_secs(15);
/// Maximum bytes of a model's name; longer names are ignored.
const MODEL_BYTES: usize = 256;

/// The limited turns of this worker.
#[derive(Debug)]
pub(crate) struct TurnLimiter {
    limits: TurnLimits,
    worker: String,
    held_for: Duration,
    state: Mutex<LimiterState>,
    changed: Notify,
    /// Read-locked by admissions, write-locked while ended turns are reported. Without it, the
    /// report could remove a turn that starts again.
    admitting: RwLock<()>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// Active turns with their limits.
    turns: HashMap<PartitionId, HashMap<TurnId, Vec<TurnLimit>>>,
    /// Changes that are not stored yet.
    changes: HeldTurns,
    /// Ended turns to report after `changes`. The changes assign these turns to this worker, and a
    /// worker can only end its own turns.
    ended_later: Vec<LimitedTurn>,
    /// Turns of released partitions, and the time of release: the next owner finds them counted.
    handed_over: Vec<(Instant, LimitedTurn)>,
    /// Number of turns refused since the last round.
    refused: u32,
}

impl LimiterState {
    fn enter(&mut self, turn: &TurnId, partition: PartitionId, limits: &[TurnLimit]) {
        // The turn starts again before its end was reported.
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

    /// Ends handed-over turns that no owner has continued for `held_for`.
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

    /// Limits that apply to a turn of the agent with these settings.
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

    /// Counts a turn that is already active.
    pub(crate) fn enter(&self, turn: &TurnId, partition: PartitionId, limits: &[TurnLimit]) {
        let mut state = self.state();
        state.enter(turn, partition, limits);
        state.changes.entered.extend(limits.iter().map(|limit| (limit.key.clone(), turn.clone())));
        drop(state);
        self.changed.notify_one();
    }

    /// Counts the turn if all its limits have room. Otherwise returns the delay in ms until the
    /// next try.
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
                // The store has not counted the turn. After an error it may have, so the end is
                // still reported.
                state.changes.ended.retain(|(_, ended)| ended != turn);
                state.refused = state.refused.saturating_add(1);
                metrics::counter!(crate::metrics::LIMITED_TURNS).increment(1);
            }
        }
        admitted
    }

    /// Notes turns whose ends are committed, and the tokens they used.
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

    /// Notes a released partition: its next owner, perhaps in another worker, continues its turns.
    pub(crate) fn hand_over(&self, partition: PartitionId) {
        self.state().hand_over(partition, Instant::now());
    }

    /// Stops counting the partition's turns that are not active according to `is_active`.
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

    /// Keeps the store up to date until `stop`. Turns that end after that are written by
    /// [`TurnLimiter::sync`].
    pub(crate) async fn run(self: Arc<Self>, store: Store, stop: CancellationToken) {
        if self.limits.is_empty() {
            return;
        }
        let mut rounds = 0_u32;
        // An interval, not a sleep in each round: frequent changes would postpone the sleep
        // indefinitely.
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

    /// Makes the store forget unused limits. It also forgets turns that count for this worker but
    /// do not run here, for example after a restart under the same name.
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

    /// Writes the changes. A change that the store permanently refuses is dropped alone, so that
    /// the others need not wait.
    async fn hold(&self, store: &Store, changes: &HeldTurns) -> Result<(), StoreError> {
        match store.hold_turns(&self.worker, changes, self.held_for).await {
            Err(error) if error.refuses_data() => {}
            held => return held,
        }
        let singles = singles(changes);
        let write = |part: &[HeldTurns]| {
            let together = together(part);
            async move { store.hold_turns(&self.worker, &together, self.held_for).await }
        };
        for (part, held) in parts_unless_away(&singles, write).await? {
            if let Err(error) = held {
                note_item(RefusedItem::Limit, &format!("{part:?}"), &error);
            }
        }
        Ok(())
    }

    /// Writes the changes to the store, and records that this worker is alive.
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
        let Err(error) = self.hold(store, &changes).await else {
            if !self.state().changes.ended.is_empty() {
                self.changed.notify_one();
            }
            return;
        };
        // Retried in the next round, with later changes.
        tracing::debug!(%error, "the turns under way were not counted for their limits");
        let HeldTurns { entered, ended, finished, tokens } = changes;
        let mut state = self.state();
        // A turn that has started again meanwhile is not reported as finished.
        let finished: Vec<TurnId> = finished.into_iter().filter(|turn| !state.has(turn)).collect();
        state.changes.finished.extend(finished);
        let later = std::mem::take(&mut state.changes.ended);
        state.ended_later.extend(later);
        for (key, turn) in entered {
            // A turn handed over meanwhile belongs to another owner.
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

/// Splits the changes into single ones, in the order in which one statement applies them.
fn singles(changes: &HeldTurns) -> Vec<HeldTurns> {
    let HeldTurns { entered, ended, finished, tokens } = changes;
    let entered =
        entered.iter().map(|turn| HeldTurns { entered: vec![turn.clone()], ..HeldTurns::default() });
    let tokens = tokens
        .iter()
        .map(|(key, tokens)| HeldTurns { tokens: [(key.clone(), *tokens)].into(), ..HeldTurns::default() });
    let finished =
        finished.iter().map(|turn| HeldTurns { finished: vec![turn.clone()], ..HeldTurns::default() });
    let ended = ended.iter().map(|turn| HeldTurns { ended: vec![turn.clone()], ..HeldTurns::default() });
    entered.chain(tokens).chain(finished).chain(ended).collect()
}

fn together(parts: &[HeldTurns]) -> HeldTurns {
    let mut all = HeldTurns::default();
    for part in parts.iter().cloned() {
        all.entered.extend(part.entered);
        all.ended.extend(part.ended);
        all.finished.extend(part.finished);
        all.tokens.extend(part.tokens);
    }
    all
}
