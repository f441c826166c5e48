//! Whether the process lives, is ready, has started; three questions with three answers.
//!
//! Liveness is about our own loops only. A database or a broker that is away never makes a process look dead:
//! restarting the fleet would not bring it back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A loop that has not beaten for longer is stuck.
pub const LIVENESS_LIMIT: Duration = Duration::from_secs(10);

/// The state of health of a process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    next_loop: u64,
    loops: BTreeMap<u64, Loop>,
    /// What is wrong with each, if anything is.
    conditions: BTreeMap<String, Option<String>>,
}

#[derive(Debug)]
struct Loop {
    name: String,
    beaten: Instant,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// True is HTTP 200, false 503.
    pub ok: bool,
    /// `ok`, or one line for each thing that is not.
    pub body: String,
}

impl Answer {
    fn of(faults: Vec<String>) -> Self {
        match faults.is_empty() {
            true => Self { ok: true, body: "ok\n".to_owned() },
            false => Self { ok: false, body: faults.join("\n") + "\n" },
        }
    }
}

impl Health {
    /// Registers a loop that promises to beat at least every few seconds; dropping the handle ends the promise.
    pub fn register_loop(&self, name: impl Into<String>) -> Heartbeat {
        let mut state = self.lock();
        let id = state.next_loop;
        state.next_loop += 1;
        state.loops.insert(id, Loop { name: name.into(), beaten: Instant::now() });
        Heartbeat { health: self.clone(), id }
    }

    /// Sets a condition of readiness; one that was never set does not count.
    pub fn set_ready(&self, condition: &str, ready: bool) {
        self.set_fault(condition, (!ready).then(|| "not ready".to_owned()));
    }

    /// Sets a condition of readiness: what is wrong with it, if anything is.
    pub fn set_fault(&self, condition: &str, fault: Option<String>) {
        let mut state = self.lock();
        match state.conditions.get_mut(condition) {
            Some(known) => *known = fault,
            None => drop(state.conditions.insert(condition.to_owned(), fault)),
        }
    }

    /// The start is over: every dependency has been reached once.
    pub fn set_started(&self) {
        self.lock().started = true;
    }

    /// Has every registered loop beaten within [`LIVENESS_LIMIT`]?
    pub fn livez(&self) -> Answer {
        self.livez_at(Instant::now())
    }

    fn livez_at(&self, now: Instant) -> Answer {
        let state = self.lock();
        let silent =
            state.loops.values().map(|task| (&task.name, now.saturating_duration_since(task.beaten)));
        let stuck = silent.filter(|(_, silence)| *silence > LIVENESS_LIMIT);
        Answer::of(
            stuck.map(|(name, silence)| format!("{name}: stuck for {} s", silence.as_secs())).collect(),
        )
    }

    /// Has the start ended and does every condition hold?
    pub fn readyz(&self) -> Answer {
        let state = self.lock();
        let starting = (!state.started).then(|| "starting".to_owned());
        let faults = state.conditions.iter().filter_map(|(name, fault)| fault.as_ref().map(|it| (name, it)));
        let faults = faults.map(|(name, fault)| format!("{name}: {fault}"));
        Answer::of(starting.into_iter().chain(faults).collect())
    }

    /// Has the start ended?
    pub fn startupz(&self) -> Answer {
        let starting = (!self.lock().started).then(|| "starting".to_owned());
        Answer::of(starting.into_iter().collect())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pulse of one loop.
#[derive(Debug)]
pub struct Heartbeat {
    health: Health,
    id: u64,
}

impl Heartbeat {
    /// The loop has come round.
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
            Answer { ok: false, body: "reader 3: stuck for 12 s\n".to_owned() }
        );
        reader.beat();
        assert!(health.livez_at(Instant::now() + Duration::from_secs(9)).ok);
        drop(reader);
        assert!(health.livez_at(later).ok);
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
        assert_eq!(health.readyz(), Answer { ok: true, body: "ok\n".to_owned() });
        assert!(health.startupz().ok);
    }
}
