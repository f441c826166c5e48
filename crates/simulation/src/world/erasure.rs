//! Threads are erased while everything else runs. First the thread is marked, then passes delete
//! its rows until a pass finds nothing. In between, all owners must forget their state. The command
//! may be killed, and is run again.

use model::{PartitionId, ThreadId};

use super::World;
use crate::bug::PlantedBug;
use crate::checker::{Invariant, Violation};
use crate::store::erasure::ErasedRows;
use crate::world::event::{Address, WorldEvent};
use crate::world::state::erasure::{Erasure, ErasureStep};
use crate::world::state::statement::StatementKind;

impl World {
    /// Plans which threads are erased in this history, and when.
    pub(super) fn plan_erasing(&mut self, threads: &[(ThreadId, PartitionId)]) {
        // Threads are erased more often if the store goes back in time as well.
        let put_back_at = self.going_back.put_back_at;
        let chance = if put_back_at.is_some() { 0.5 } else { 0.1 };
        if !self.erasing.rng.chance(chance) {
            return;
        }
        for _ in 0..self.erasing.rng.pick([1, 1, 1, 2]) {
            let (thread, _) = threads[self.erasing.rng.index(threads.len())].clone();
            if self.erasing.erasures.iter().any(|erasure| erasure.thread == thread) {
                continue;
            }
            let rng = &mut self.erasing.rng;
            let at = match put_back_at {
                Some(at) if rng.chance(0.6) => (at + rng.range(-400, 50)).max(200),
                _ => rng.range(200, self.scenario.faults_until),
            };
            let number = self.erasing.erasures.len();
            self.erasing.erasures.push(Erasure {
                thread,
                run: 0,
                step: ErasureStep::Mark,
                pace: self.erasing.rng.pick([1, 1, 5, 40]),
                rows: (0, 0),
                is_first_pass: true,
                is_over: false,
            });
            self.schedule(at, WorldEvent::Erase(number, 0));
        }
    }

    pub(super) fn erase(&mut self, number: usize, run: u64) {
        let erasure = &self.erasing.erasures[number];
        if erasure.run != run || erasure.is_over {
            return;
        }
        if !self.is_quiet && self.erasing.rng.chance(0.005) {
            self.coverage.erasures_killed += 1;
            return self.erase_again(number);
        }
        let thread = erasure.thread.clone();
        match erasure.step.clone() {
            ErasureStep::Mark => self.mark(number, &thread),
            ErasureStep::Pass(place) => self.pass(number, &thread, place),
            ErasureStep::Renounce(partitions) => return self.renounce(number, run, partitions),
        }
        if !self.erasing.erasures[number].is_over {
            let pace = self.erasing.erasures[number].pace;
            let delay = self.erasing.rng.range(0, pace);
            self.schedule(delay, WorldEvent::Erase(number, run));
        }
    }

    fn erase_again(&mut self, number: usize) {
        let most = self.erasing.rng.pick([10, 100, 1_500]);
        let delay = self.erasing.rng.range(1, most);
        let erasure = &mut self.erasing.erasures[number];
        (erasure.run, erasure.step, erasure.is_over) = (erasure.run + 1, ErasureStep::Mark, false);
        let run = erasure.run;
        self.schedule(delay, WorldEvent::Erase(number, run));
    }

    fn mark(&mut self, number: usize, thread: &ThreadId) {
        self.note(80, [number as u64, 0, 0], || format!("{thread} is marked as erased"));
        self.store.mark_erased(thread);
        self.rules.erased.insert(thread.clone());
        // None of the thread's messages has to end.
        let bare = self.bare.iter().filter(|key| key.thread == *thread).cloned();
        self.going_back.lost.extend(bare);
        for doomed in &mut self.doomed {
            doomed.retain(|(_, key, _)| key.thread != *thread);
        }
        // A saved answer is found through its task, so no owner may save any more once tasks are
        // deleted.
        let step = self.forget();
        let erasure = &mut self.erasing.erasures[number];
        (erasure.step, erasure.rows, erasure.is_first_pass) = (step, (0, 0), true);
    }

    /// The next step: make the owners of all partitions forget their state.
    fn forget(&self) -> ErasureStep {
        match self.bug {
            Some(PlantedBug::ErasedUnfenced) => ErasureStep::Pass(0),
            _ => ErasureStep::Renounce((0..self.scenario.partitions).map(PartitionId).collect()),
        }
    }

    /// Runs one statement of a pass. A pass visits all tables, and is repeated until it finds
    /// nothing.
    fn pass(&mut self, number: usize, thread: &ThreadId, place: usize) {
        let time = self.time;
        let rows = self.store.erase_place(thread, ErasedRows::ALL[place], time);
        self.coverage.erased_rows += rows as u64;
        self.note(81, [number as u64, place as u64, rows as u64], || {
            format!("{thread}: {rows} rows of {:?} are erased", ErasedRows::ALL[place])
        });
        let erasure = &mut self.erasing.erasures[number];
        let (of_pass, of_round) = (erasure.rows.0 + rows, erasure.rows.1 + rows);
        erasure.rows = (of_pass, of_round);
        if place + 1 < ErasedRows::ALL.len() {
            erasure.step = ErasureStep::Pass(place + 1);
            return;
        }
        if of_round > 0 {
            (erasure.step, erasure.rows) = (ErasureStep::Pass(0), (of_pass, 0));
            return;
        }
        erasure.rows = (0, 0);
        let (is_first, is_done) = (std::mem::take(&mut erasure.is_first_pass), of_pass == 0);
        if is_first {
            self.drop_requests(thread);
        }
        if !is_first && is_done {
            return self.erased(number, thread);
        }
        // The agent that would have answered in the thread may hold a task that follows one of its
        // turns, and no remaining row names that agent.
        self.erasing.erasures[number].step = self.forget();
    }

    /// Takes the lease from the partition's owner, so that its next commit is refused and the next
    /// owner reads the state again. Counting a commit that was not made is not enough: a store that
    /// has gone back by one commit would then match its owner.
    fn renounce(&mut self, number: usize, run: u64, mut partitions: Vec<PartitionId>) {
        let Some(partition) = (!partitions.is_empty()).then(|| partitions.remove(0)) else {
            self.erasing.erasures[number].step = ErasureStep::Pass(0);
            return self.schedule(0, WorldEvent::Erase(number, run));
        };
        self.erasing.erasures[number].step = ErasureStep::Renounce(partitions);
        let address = Address { worker: 0, incarnation: 0, partition, session: 0 };
        self.send_renounce(address, StatementKind::Renounce(number, run));
    }

    pub(super) fn renounced(&mut self, partition: PartitionId, number: usize, run: u64) {
        self.coverage.renounced += 1;
        let counts = self.bug == Some(PlantedBug::RenouncedByCount);
        let row = self.store.row(partition);
        match counts {
            true => row.commits += 1,
            false => row.owner = None,
        }
        let numbers = [number as u64, u64::from(partition.0), row.commits];
        self.note(83, numbers, || format!("partition {partition} is renounced at commit {}", numbers[2]));
        let delay = self.erasing.rng.range(0, 5);
        self.schedule(delay, WorldEvent::Erase(number, run));
    }

    fn erased(&mut self, number: usize, thread: &ThreadId) {
        self.note(82, [number as u64, 0, 0], || format!("{thread} is erased"));
        self.coverage.erasures += 1;
        self.erasing.erasures[number].is_over = true;
        self.store.is_wholly_erased(thread);
        self.store.check_erased(false);
    }

    /// Handles a store that goes back in time, which breaks the operator's connection. If the
    /// restored store has no mark, the operator may erase the thread again or leave it. With a mark
    /// the operator erases it again, because some of its rows are deleted.
    pub(super) fn erasing_steps_back(&mut self) {
        for number in 0..self.erasing.erasures.len() {
            let erasure = &self.erasing.erasures[number];
            if !self.rules.erased.contains(&erasure.thread) {
                continue;
            }
            self.coverage.erasures_undone += 1;
            match self.store.erasure(&erasure.thread) {
                Some(true) => {}
                None if self.erasing.rng.chance(0.5) => {
                    let erasure = &mut self.erasing.erasures[number];
                    (erasure.run, erasure.is_over) = (erasure.run + 1, true);
                }
                Some(false) | None => self.erase_again(number),
            }
        }
    }

    /// Checks a turn's request: neither its thread, nor the thread whose text it carries, was
    /// erased when the turn was checked.
    pub(super) fn check_asked(&mut self, start: &partition::Start) {
        if self.is_start_erased(start) {
            let (subject, seen) = (format!("run {} of {}", start.run, start.turn), "a request");
            self.violate(Violation::new(Invariant::Erased, subject, "no request: it was erased", seen));
        }
    }

    /// The same check as in the read of a turn's starting data.
    pub(super) fn is_start_erased(&self, start: &partition::Start) -> bool {
        let source = start.cause.source_thread();
        self.store.is_erased(&start.thread) || source.is_some_and(|source| self.store.is_erased(source))
    }
}
