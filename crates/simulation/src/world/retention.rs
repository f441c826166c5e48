//! Retention concurrent with everything else: owners check the threads of their partitions, and
//! delete whole batches by the production rules.

use std::collections::BTreeSet;

use batches::retention::{BatchAssembler, BatchSize, Limit, RetentionEvaluator};
use model::{Position, ThreadId, Timestamp};

use super::World;
use crate::bug::PlantedBug;
use crate::checker::{Invariant, Violation};
use crate::log::START;
use crate::publisher::commands::partition_of;
use crate::world::event::{Address, WorldEvent};
use crate::world::state::retention::{Looking, RetentionRound};

impl World {
    /// Plans retention for a session that has begun to own its partition.
    pub(super) fn plan_retention(&mut self, address: Address) {
        if self.retaining.rules.is_some() {
            let delay = self.retaining.rng.range(1, self.retaining.every_ms);
            self.schedule(delay, WorldEvent::Retain(address, None));
        }
    }

    /// One step of a round: a thread is read by pages, then expired batches are deleted.
    pub(super) fn retain(&mut self, address: Address, round: Option<Box<RetentionRound>>) {
        // Like every task of a session, retention ends with the session and pauses with its worker.
        let rest = self.workers[address.worker].paused_until - self.time;
        if self.workers[address.worker].is_paused && rest > 0 {
            return self.schedule(rest + 1, WorldEvent::Retain(address, round));
        }
        if self.session(address).is_none() {
            return;
        }
        let Some(mut round) = round.or_else(|| self.begin_round(address)) else {
            return self.plan_retention(address);
        };
        self.look(&mut round);
        match round.looking.is_some() || !round.threads.is_empty() {
            true => {
                let delay = self.retaining.rng.pick([0, 1, 5, 100]);
                self.schedule(delay, WorldEvent::Retain(address, Some(round)));
            }
            false if self.is_quiet && self.settled_at.is_some() => {}
            false => {
                let delay = self.retaining.every_ms;
                self.schedule(delay, WorldEvent::Retain(address, None));
            }
        }
    }

    fn begin_round(&mut self, address: Address) -> Option<Box<RetentionRound>> {
        let partitions = self.scenario.partitions;
        let machine = self.session(address)?.machine()?;
        let active = machine.continued().map(|(thread, batch)| (thread.clone(), batch)).collect();
        let is_here = |thread: &ThreadId| partition_of(thread.as_str(), partitions) == address.partition;
        let threads = self.store.heads_of(is_here);
        self.coverage.retention_rounds += 1;
        Some(Box::new(RetentionRound { now: Timestamp(START + self.time), active, threads, looking: None }))
    }

    fn look(&mut self, round: &mut RetentionRound) {
        let (Some((thread, head)), Some(rules)) = (round.threads.last().cloned(), self.retaining.rules)
        else {
            return;
        };
        let (bug, page) = (self.bug, self.retaining.page);
        let now = round.now;
        let looking = round.looking.get_or_insert_with(|| Looking {
            assembler: BatchAssembler::default(),
            evaluator: RetentionEvaluator::new(rules, now),
            before: Position::MAX,
            due: Vec::new(),
            stay: Vec::new(),
            is_read: false,
        });
        if looking.is_read || !looking.due.is_empty() {
            let due = std::mem::take(&mut looking.due);
            let (is_read, stay) = (looking.is_read, looking.stay.clone());
            let is_retired = due.is_empty() || self.delete(&thread, head, &due, (&round.active, &stay));
            if is_read || !is_retired {
                (round.looking, _) = (None, round.threads.pop());
            }
            return;
        }
        let places = self.store.places(&thread, looking.before, page);
        looking.is_read = places.len() < page;
        looking.before = places.last().map_or(looking.before, |place| place.position);
        let assembler = &mut looking.assembler;
        let mut whole: Vec<BatchSize> = places.into_iter().flat_map(|place| assembler.push(place)).collect();
        if looking.is_read {
            whole.extend(std::mem::take(&mut looking.assembler).finish());
        }
        for batch in whole {
            let is_active = round.active.contains(&(thread.clone(), batch.id));
            match looking.evaluator.evaluate(&batch, is_active && bug != Some(PlantedBug::RetiredOpen)) {
                Some(limit) => looking.due.push((batch, limit)),
                None if is_active => {}
                None => looking.stay.push(batch.id),
            }
        }
        if bug == Some(PlantedBug::RetiredNewest) {
            // Swaps the batches that are due with batches that stay, as if the thread had been read
            // from its oldest message on.
            let count = looking.due.len();
            let newest = looking.stay.iter().take(count).copied().collect::<Vec<_>>();
            for ((batch, _), newest) in looking.due.iter_mut().zip(newest) {
                let is_known = self.store.places(&thread, Position::MAX, 1_000);
                let last = is_known.iter().find(|place| place.batch == newest).map(|place| place.position);
                looking.stay.retain(|id| *id != newest);
                looking.stay.push(batch.id);
                (batch.id, batch.last) = (newest, last.unwrap_or(newest));
            }
        }
    }

    /// False if the thread has changed; the next round then sees its new state.
    fn delete(
        &mut self,
        thread: &ThreadId,
        head: i64,
        due: &[(BatchSize, Limit)],
        (active, stay): (&BTreeSet<(ThreadId, Position)>, &[Position]),
    ) -> bool {
        let batches: Vec<BatchSize> = due.iter().map(|(batch, _)| *batch).collect();
        let Some(messages) = self.store.retire(thread, head, &batches) else {
            self.coverage.retention_outrun += 1;
            return false;
        };
        self.coverage.retired_batches += batches.len() as u64;
        self.note(90, [messages as u64, batches.len() as u64, 0], || {
            let ids: Vec<i64> = batches.iter().map(|batch| batch.id.get()).collect();
            format!("{thread}: batches {ids:?} are retired, {messages} messages")
        });
        let left = self.store.batches(thread);
        for (batch, limit) in due {
            let id = batch.id;
            self.rules.retired.insert((thread.clone(), id.get()));
            let wrong = if left.contains(&id.get()) {
                Some(("deleted whole", "a part of it is there"))
            } else if active.contains(&(thread.clone(), id)) {
                Some(("left alone: a turn goes on with it", "deleted"))
            } else if *limit != Limit::Age
                && stay.iter().any(|other| *other < id && left.contains(&other.get()))
            {
                Some(("the oldest deleted first", "older ones are there"))
            } else {
                None
            };
            if let Some((expected, seen)) = wrong {
                let subject = format!("batch {id} of {thread}");
                self.violate(Violation::new(Invariant::Retired, subject, expected, seen));
            }
        }
        true
    }
}
