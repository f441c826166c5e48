//! Three probes: whether the process is alive, ready and started.
//!
//! Liveness covers only our own loops. An unreachable database or broker never makes a process look
//! dead, because restarting the fleet would not bring it back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A loop without a beat for longer than this is stuck.
pub const LIVENESS_LIMIT: Duration = Duration::from_secs(10);

/// The health of a process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Health {
    state: Arc<Mutex<HealthState>>,
}

#[derive(Debug, Default)]
struct HealthState {
    started: bool,
    next_loop: u64,
    loops: BTreeMap<u64, Loop>,
    next_condition: u64,
    /// The fault of each condition; `None` when it is met. Conditions of parts have unique numbers,
    /// because a part may exist twice during a handover.
    conditions: BTreeMap<(String, u64), Option<String>>,
}

#[derive(Debug)]
struct Loop {
    name: String,
    beaten: Instant,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// True: HTTP 200; false: 503.
    pub ok: bool,
    /// `ok`, or one line for each fault.
    pub body: String,
}

impl ProbeAnswer {
    fn of(faults: Vec<String>) -> Self {
        match faults.is_empty() {
            true => Self { ok: true, body: "ok\n".to_owned() },
            false => Self { ok: false, body: faults.join("\n") + "\n" },
        }
    }
}

impl Health {
    /// Registers a loop that must beat at least every few seconds; dropping the handle unregisters
    /// it.
    pub fn register_loop(&self, name: impl Into<String>) -> Heartbeat {
        let mut state = self.lock();
        let id = state.next_loop;
        state.next_loop += 1;
        state.loops.insert(id, Loop { name: name.into(), beaten: Instant::now() });
        Heartbeat { health: self.clone(), id }
    }

    /// Sets a condition of readiness; a condition that was never set is ignored.
    pub fn set_ready(&self, condition: &str, ready: bool) {
        self.set_fault(condition, (!ready).then(|| "not ready".to_owned()));
    }

    /// Sets the fault of a condition of readiness, if any.
    pub fn set_fault(&self, condition: &str, fault: Option<String>) {
        self.lock().conditions.insert((condition.to_owned(), 0), fault);
    }

    /// A condition of readiness that exists as long as a part of the process. It is met at first.
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        let mut state = self.lock();
        state.next_condition += 1;
        Condition { health: self.clone(), key: (name.into(), state.next_condition) }
    }

    /// Marks the start as complete: every dependency has been reached once.
    pub fn set_started(&self) {
        self.lock().started = true;
    }

    /// Succeeds if every registered loop has beaten within [`LIVENESS_LIMIT`].
    pub fn livez(&self) -> ProbeAnswer {
        self.livez_at(Instant::now())
    }

    fn livez_at(&self, now: Instant) -> ProbeAnswer {
        let state = self.lock();
        let silent =
            state.loops.values().map(|task| (&task.name, now.saturating_duration_since(task.beaten)));
        let stuck = silent.filter(|(_, silence)| *silence > LIVENESS_LIMIT);
        ProbeAnswer::of(
            stuck.map(|(name, silence)| format!("{name}: stuck for {} s", silence.as_secs())).collect(),
        )
    }

    /// Succeeds if the start is complete and every condition is met.
    pub fn readyz(&self) -> ProbeAnswer {
        let state = self.lock();
        let starting = (!state.started).then(|| "starting".to_owned());
        let said = |((name, _), why): (&(String, u64), &Option<String>)| {
            why.as_ref().map(|why| format!("{name}: {why}"))
        };
        ProbeAnswer::of(starting.into_iter().chain(state.conditions.iter().filter_map(said)).collect())
    }

    /// Succeeds if the start is complete.
    pub fn startupz(&self) -> ProbeAnswer {
        let starting = (!self.lock().started).then(|| "starting".to_owned());
        ProbeAnswer::of(starting.into_iter().collect())
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition of readiness; dropping it removes it.
#[derive(Debug)]
pub struct Condition {
    health: Health,
    key: (String, u64),
}

impl Condition {
    pub fn met(&self) {
        self.health.lock().conditions.remove(&self.key);
    }

    /// Marks the condition as not met, with the reason.
    pub fn unmet(&self, why: impl Into<String>) {
        self.health.lock().conditions.insert(self.key.clone(), Some(why.into()));
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.met();
    }
}

/// The liveness signal of one loop.
#[derive(Debug)]
pub struct Heartbeat {
    health: Health,
    id: u64,
}

impl Heartbeat {
    /// Records one more iteration of the loop.
    pub fn beat(&self) {
        if let Some(task) = self.health.lock().loops.get_mut(&self.id) {
            task.beaten = Instant::now();
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.health.lock().loops.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_loop_is_named_until_it_beats_or_ends() {
        let health = Health::default();
        let reader = health.register_loop("reader 3");
        let writer = health.register_loop("committer");
        assert!(health.livez().ok);
        let later = Instant::now() + Duration::from_secs(12);
        drop(writer);
        assert_eq!(
            health.livez_at(later),
            ProbeAnswer { ok: false, body: "reader 3: stuck for 12 s\n".to_owned() }
        );
        reader.beat();
        assert!(health.livez_at(Instant::now() + Duration::from_secs(9)).ok);
        drop(reader);
        assert!(health.livez_at(later).ok);
    }

    #[test]
    fn a_part_says_why_it_is_not_ready_for_as_long_as_it_is_there() {
        let health = Health::default();
        health.set_started();
        let (old, new) = (health.condition("partition 3"), health.condition("partition 3"));
        assert!(health.readyz().ok);
        old.unmet("there is no stream");
        new.unmet("no answer");
        assert_eq!(health.readyz().body, "partition 3: there is no stream\npartition 3: no answer\n");
        drop(old);
        assert_eq!(health.readyz().body, "partition 3: no answer\n");
        new.met();
        assert!(health.readyz().ok);
        new.unmet("no answer");
        drop(new);
        assert!(health.readyz().ok && health.livez().ok);
    }

    #[test]
    fn readiness_lists_what_is_missing_and_does_not_touch_liveness() {
        let health = Health::default();
        assert_eq!(health.startupz().body, "starting\n");
        health.set_ready("nats", false);
        health.set_ready("postgres", true);
        assert_eq!(health.readyz().body, "starting\nnats: not ready\n");
        assert!(health.livez().ok);
        health.set_started();
        health.set_ready("nats", true);
        assert_eq!(health.readyz(), ProbeAnswer { ok: true, body: "ok\n".to_owned() });
        assert!(health.startupz().ok);
    }
}
