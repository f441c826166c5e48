//! Workers as processes: they start, die, pause, acquire leases and release them.

use std::collections::{BTreeMap, VecDeque};

use super::{Worker, WorkerSession, World};
use crate::bug::PlantedBug;
use crate::log::START;
use crate::store::Grant;
use crate::store::fence::AcknowledgedState;
use crate::world::event::{Address, StoreReply, WorldEvent};
use model::PartitionId;

use super::state::statement::StatementKind;

impl Worker {
    pub(super) fn new() -> Self {
        Self {
            incarnation: 0,
            is_up: false,
            is_paused: false,
            paused_until: 0,
            waiting: VecDeque::new(),
            skew: 0,
            idle_until: 0,
            is_gone: false,
            sessions: BTreeMap::new(),
        }
    }
}

impl World {
    pub(super) fn restart(&mut self, index: usize) {
        if self.workers[index].is_up || self.workers[index].is_gone {
            return;
        }
        self.last_incarnation += 1;
        let incarnation = self.last_incarnation;
        let skew = self.rng.range(-self.scenario.skew_ms, self.scenario.skew_ms);
        let worker = &mut self.workers[index];
        (worker.incarnation, worker.is_up, worker.skew) = (incarnation, true, skew);
        (worker.is_paused, worker.paused_until, worker.idle_until) = (false, 0, 0);
        worker.waiting.clear();
        self.note(1, [index as u64, incarnation, skew as u64], || {
            format!("w{index} starts as {incarnation}, skew {skew}")
        });
        self.schedule(0, WorldEvent::Acquire(index, incarnation));
    }

    /// True if the worker has been restarted since the event was scheduled, or is paused; if
    /// paused, `again` is scheduled for later.
    pub(super) fn is_away(
        &mut self,
        index: usize,
        incarnation: u64,
        again: impl FnOnce() -> WorldEvent,
    ) -> bool {
        let worker = &self.workers[index];
        if !worker.is_up || worker.incarnation != incarnation {
            return true;
        }
        let rest = worker.paused_until - self.time;
        if rest > 0 {
            self.schedule(rest, again());
        }
        rest > 0
    }

    pub(super) fn acquire(&mut self, index: usize, incarnation: u64) {
        if self.is_away(index, incarnation, || WorldEvent::Acquire(index, incarnation)) {
            return;
        }
        self.watch_takeovers();
        let next = self.scenario.lease_ms / 4 + self.rng.range(0, 40);
        self.schedule(next, WorldEvent::Acquire(index, incarnation));
        if self.fault(|faults| faults.drain) {
            return self.drain(index);
        }
        if self.workers[index].idle_until > self.time {
            return;
        }
        for number in 0..self.scenario.partitions {
            let partition = PartitionId(number);
            // A worker does not take a free partition every time, so that other workers get
            // partitions, too.
            if self.workers[index].sessions.contains_key(&partition) || !self.rng.chance(0.7) {
                continue;
            }
            if self.is_free(partition, index) {
                let address = Address { worker: index, incarnation, partition, session: 0 };
                self.send(address, StatementKind::Acquire);
            }
        }
    }

    /// True if its lease has expired, by the clock that counts.
    pub(super) fn is_free(&mut self, partition: PartitionId, worker: usize) -> bool {
        let now = self.lease_clock(worker);
        let is_bound = self.bug == Some(PlantedBug::OnlyFreeIsTaken);
        let row = self.store.row(partition);
        row.owner.is_none() || (row.lease_until <= now && !is_bound)
    }

    /// The store's clock; a planted bug uses the worker's.
    pub(super) fn lease_clock(&self, worker: usize) -> i64 {
        let skew =
            if self.bug == Some(PlantedBug::LeaseByWorkerClock) { self.workers[worker].skew } else { 0 };
        START + self.time + skew
    }

    pub(super) fn acquired(&mut self, address: Address, grant: Grant) {
        self.last_session += 1;
        let address = Address { session: self.last_session, ..address };
        let session = WorkerSession::new(address, AcknowledgedState::from(&grant), self.time);
        self.workers[address.worker].sessions.insert(address.partition, session);
        self.request_load(address, grant);
    }

    fn drain(&mut self, index: usize) {
        self.coverage.drains += 1;
        self.note(2, [index as u64, 0, 0], || format!("w{index} drains"));
        self.workers[index].idle_until = self.time + self.scenario.lease_ms;
        for (_, session) in std::mem::take(&mut self.workers[index].sessions) {
            self.send(session.address, StatementKind::Release { epoch: session.known.epoch });
        }
    }

    pub(super) fn crash(&mut self, index: usize) {
        self.coverage.crashes += 1;
        let worker = &mut self.workers[index];
        worker.is_up = false;
        let sessions = std::mem::take(&mut worker.sessions);
        let incarnation = worker.incarnation;
        sessions.into_values().for_each(|session| self.collect(session));
        self.note(3, [index as u64, incarnation, 0], || format!("w{index} dies"));
        for statement in &mut self.statements {
            statement.is_orphan |= statement.address.incarnation == incarnation;
        }
        let down_for = self.rng.range(50, 2_500);
        self.schedule(down_for, WorldEvent::Restart(index));
    }

    pub(super) fn pause(&mut self, index: usize) {
        self.coverage.pauses += 1;
        let pause = self.rng.range(20, self.scenario.lease_ms * 3);
        let worker = &mut self.workers[index];
        (worker.is_paused, worker.paused_until) = (true, self.time + pause);
        let incarnation = worker.incarnation;
        self.note(4, [index as u64, pause as u64, 0], || format!("w{index} stands still for {pause} ms"));
        self.schedule(pause, WorldEvent::Resume(index, incarnation));
    }

    pub(super) fn resume(&mut self, index: usize, incarnation: u64) {
        let worker = &mut self.workers[index];
        if !worker.is_up || worker.incarnation != incarnation || worker.paused_until > self.time {
            return;
        }
        worker.is_paused = false;
        let partitions: Vec<PartitionId> = worker.sessions.keys().copied().collect();
        for partition in partitions {
            self.perform(index, partition);
        }
        while !self.workers[index].is_paused
            && let Some((address, event)) = self.workers[index].waiting.pop_front()
        {
            self.session_event(address, event);
        }
    }

    /// Ends the faults. Dead workers come back; some stay dead, but only if at least one other
    /// worker is up.
    pub(super) fn quiet(&mut self) {
        self.is_quiet = true;
        // Otherwise a store that waits for a commit before it goes back in time would do so after
        // the last fault.
        self.going_back.is_armed = false;
        self.end_schedules();
        self.note(5, [0; 3], || "quiet".to_owned());
        if self.scenario.turn_profile.inputs + self.scenario.turn_profile.tasks > 0 {
            self.schedule(1, WorldEvent::Caretaker);
        }
        let up = self.workers.iter().filter(|worker| worker.is_up).count();
        if self.scenario.dead_stay_dead && up > 1 {
            // Only the death of the lease's owner matters.
            let owner = self.store.row(PartitionId(0)).owner;
            if let Some(index) =
                self.workers.iter().position(|worker| Some(worker.incarnation) == owner && worker.is_up)
            {
                self.crash(index);
                self.workers[index].is_gone = true;
            }
        }
    }

    pub(super) fn worker_reply(&mut self, address: Address, reply: StoreReply) {
        if let StoreReply::Granted(Some(grant)) = reply
            && !self.workers[address.worker].sessions.contains_key(&address.partition)
        {
            self.acquired(address, grant);
        }
    }
}
