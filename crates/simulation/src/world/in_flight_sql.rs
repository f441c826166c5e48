//! Statements in flight to the store and back, and the row locks they wait for.

use std::collections::BTreeSet;

use model::{MessageKey, PartitionId, TurnId};
use partition::isolate::{CommitPart, CommitParts};
use partition::{Commit, Input, Lookup, Save};

use super::World;
use crate::bug::PlantedBug;
use crate::log::Log;
use crate::store::Grant;
use crate::store::fence::{AcknowledgedState, Decided};
use crate::world::event::{Address, SessionEvent, StatementEvent, StoreReply, WorldEvent};
use crate::world::state::refused_rows::answered;
use crate::world::state::statement::{Statement, StatementKind};

/// A session that is not the owner of record asks again after this time, ms.
pub(super) const ASKED_AGAIN_MS: i64 = 100;

impl World {
    /// Sends a statement; a reply, if any, goes to the address.
    pub(super) fn send(&mut self, address: Address, kind: StatementKind) -> usize {
        let number = self.statements.len();
        let mut delay = self.rng.range(0, 4);
        let is_commit = matches!(kind, StatementKind::Commit(_));
        let mut is_lost = false;
        if is_commit {
            if self.fault(|faults| faults.refused) {
                is_lost = true;
                self.coverage.refused += 1;
                self.reply_to(address, number, StoreReply::Refused, 5);
            } else if self.fault(|faults| faults.request_lost) {
                is_lost = true;
                self.reply_to(address, number, StoreReply::Unknown, 5);
            } else if self.fault(|faults| faults.request_late) {
                // The statement is in a buffer, while the worker has already been cut off.
                delay = self.rng.range(20, 2_000);
                self.reply_to(address, number, StoreReply::Unknown, 5);
            }
            self.schedule(
                self.scenario.answer_timeout_ms,
                WorldEvent::Session(address, SessionEvent::Timeout(number)),
            );
        } else if self.fault(|faults| faults.request_lost) {
            is_lost = true;
        }
        self.statements.push(Statement::new(kind, address));
        if !is_lost {
            self.schedule(delay, WorldEvent::Statement(StatementEvent::Arrive(number)));
        }
        number
    }

    /// Sends a statement that belongs to no worker.
    pub(super) fn send_renounce(&mut self, address: Address, kind: StatementKind) {
        let number = self.statements.len();
        self.statements.push(Statement::new(kind, address));
        self.schedule(1, WorldEvent::Statement(StatementEvent::Arrive(number)));
    }

    pub(super) fn reply_to(&mut self, address: Address, number: usize, reply: StoreReply, delay: i64) {
        let delay = self.rng.range(0, delay);
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::Reply(number, reply)));
    }

    pub(super) fn statement_arrives(&mut self, number: usize) {
        if self.going_back.stepped_at == Some(self.time) {
            return self.cut_off(number);
        }
        let (partition, is_acquire) = {
            let statement = &self.statements[number];
            (statement.address.partition, matches!(statement.kind, StatementKind::Acquire))
        };
        let row = self.store.row(partition);
        if row.locked_by.is_none() {
            self.start(number);
        } else if !is_acquire {
            // An acquiring statement skips locked rows; all others wait.
            row.queue.push_back(number);
            self.coverage.lock_waits += 1;
        }
    }

    /// The row is free: check it and act. Only commits hold the lock for a while.
    fn start(&mut self, number: usize) {
        let Statement { kind, address, .. } = &self.statements[number];
        let (kind, address) = (kind.clone(), *address);
        let lease_until = self.lease_clock(address.worker) + self.scenario.lease_ms;
        let (partition, owner) = (address.partition, address.incarnation);
        let reply = match kind {
            StatementKind::Commit(decided) => return self.start_commit(number, &decided),
            StatementKind::Group(group) => return self.start_group(group),
            StatementKind::Renounce(erasure, run) => return self.renounced(partition, erasure, run),
            StatementKind::Acquire => {
                if !self.is_free(partition, address.worker) {
                    return;
                }
                self.coverage.takeovers += 1;
                let now_us = self.database_us();
                StoreReply::Granted(Some(self.store.grant(partition, owner, lease_until, now_us)))
            }
            StatementKind::Reclaim(known, seen_epoch) => {
                let now_us = self.database_us();
                let reclaimed = self.store.reclaim(partition, owner, &known, seen_epoch, lease_until, now_us);
                self.coverage.reclaims += u64::from(reclaimed.is_some());
                self.coverage.steps_noticed +=
                    u64::from(reclaimed.as_ref().is_some_and(|(_, has_stepped_back)| *has_stepped_back));
                StoreReply::Granted(reclaimed.map(|(grant, _)| grant))
            }
            StatementKind::Renew(known) => {
                let is_held = self.store.confirms(partition, owner, &known);
                if is_held {
                    self.store.row(partition).lease_until = lease_until;
                }
                StoreReply::Renewed(is_held)
            }
            StatementKind::Release { epoch } => {
                if self.store.is_held(partition, owner, epoch) {
                    self.store.row(partition).owner = None;
                }
                return;
            }
        };
        self.note(10, [number as u64, address.session, owner], || format!("store: {address:?} {reply:?}"));
        if !self.fault(|faults| faults.reply_lost / 4.0) {
            self.reply_to(address, number, reply, 4);
        }
    }

    fn start_commit(&mut self, number: usize, decided: &Decided) {
        let address = self.statements[number].address;
        let commit = &decided.commit;
        let is_held = self.store.expects(address.incarnation, decided);
        if !is_held && !matches!(self.bug, Some(PlantedBug::NoFence | PlantedBug::NoGuard)) {
            self.coverage.fenced += 1;
            self.note(11, [number as u64, commit.epoch, 0], || {
                format!("store: fences s{number} of {address:?}")
            });
            self.reply_to(address, number, StoreReply::Fenced, 4);
            return self.statement_over(number);
        }
        self.store.row(address.partition).locked_by = Some(number);
        if self.going_back.is_armed {
            return self.step_back();
        }
        let mut duration = self.rng.range(0, 6);
        if self.fault(|faults| faults.slow_statement) {
            duration = self.rng.range(50, 1_500);
            if self.rng.chance(0.5) {
                // The connection is cut while the statement runs.
                self.reply_to(address, number, StoreReply::Unknown, duration);
            }
        }
        self.schedule(duration, WorldEvent::Statement(StatementEvent::Done(number)));
    }

    pub(super) fn statement_done(&mut self, number: usize) {
        let address = self.statements[number].address;
        if self.statements[number].is_cut_off {
            return;
        }
        let decided = match self.statements[number].kind.clone() {
            StatementKind::Commit(decided) => decided,
            StatementKind::Group(group) => return self.group_done(group),
            _ => return,
        };
        if self.fault(|faults| faults.aborted) {
            self.note(12, [number as u64, 0, 0], || format!("store: s{number} aborts"));
            self.reply_to(address, number, StoreReply::Unknown, 4);
        } else {
            let refused = self.apply(number, &decided);
            if self.fault(|faults| faults.reply_lost) {
                let delay = self.rng.range(0, 300);
                self.reply_to(address, number, StoreReply::Unknown, delay);
            } else {
                let reply = refused.map_or(StoreReply::Unknown, StoreReply::Applied);
                self.reply_to(address, number, reply, 4);
            }
        }
        self.unlock(address.partition);
        self.statement_over(number);
    }

    /// Tries the next member of a refused group, because one of them is done.
    fn statement_over(&mut self, number: usize) {
        if let Some(group) = self.statements[number].group {
            self.next_alone(group);
        }
    }

    pub(super) fn unlock(&mut self, partition: PartitionId) {
        self.store.row(partition).locked_by = None;
        while self.store.row(partition).locked_by.is_none() {
            let Some(next) = self.store.row(partition).queue.pop_front() else { break };
            self.start(next);
        }
    }

    /// Turns whose messages the store refused; `None` if a queue was further ahead than its owner
    /// knew.
    pub(super) fn apply(&mut self, number: usize, decided: &Decided) -> Option<Vec<(TurnId, String)>> {
        let mut commit = decided.commit.clone();
        let mut refused = Vec::new();
        let bad = match self.statements[number].judged.take() {
            Some(judged) => Some(judged).filter(|bad| !bad.is_empty()),
            None => self.refuses(&commit, false),
        };
        if let Some(bad) = bad {
            let mut parts = CommitParts::of(commit);
            self.isolate(number, &mut parts, &bad)?;
            commit = parts.rest().clone();
            refused = parts.refused;
        }
        let worker = self.statements[number].address.worker;
        let skew =
            if self.bug == Some(PlantedBug::BackoffByWorkerClock) { self.workers[worker].skew } else { 0 };
        let log = &self.logs[usize::from(commit.partition.0)];
        // If a commit was decided on a stream that has been replaced, it applies to the old stream:
        // its checkpoint is compared before it is used.
        let gone = Log::default();
        let log = if log.is_as_read(&decided.incarnation, decided.read) { log } else { &gone };
        let is_stale = self.store.apply(&commit, log, self.time, skew);
        self.store.count(decided);
        if !self.fault(|faults| faults.crash * 5.0) {
            for (partition, letter) in std::mem::take(&mut self.store.letters_outside) {
                self.store.insert_letter(partition, &letter, self.time);
            }
        }
        self.store.letters_outside.clear();
        self.coverage.commits += 1;
        let opened = commit.opened.iter().filter_map(|open| open.opened.origin.continues());
        let tasks = commit.tasks.iter().filter_map(|task| task.queued.task.origin.continues());
        self.coverage.continuations += opened.chain(tasks).count() as u64;
        let statement = &mut self.statements[number];
        statement.is_applied = true;
        self.coverage.applied_after_death += u64::from(statement.is_orphan);
        let numbers = [number as u64, commit.epoch, commit.checkpoint.0];
        self.note(13, numbers, || {
            let messages: Vec<String> = commit.messages.iter().map(|m| m.key.to_string()).collect();
            let letters = commit.dead_letters.iter().map(|letter| match &letter.source {
                model::DeadLetterSource::Entry { .. } => format!("entry {}", letter.seq),
                model::DeadLetterSource::Message { key, failure, .. } => format!("{key} {}", failure.code()),
            });
            let letters: Vec<String> = letters.collect();
            format!(
                "store: s{number} applied, partition {} epoch {} checkpoint {}: {messages:?} dead {letters:?}{}",
                commit.partition, commit.epoch, commit.checkpoint, of_turns(&commit)
            )
        });
        (!is_stale).then_some(refused)
    }

    /// Turns whose messages the store refuses.
    pub(super) fn refuses(&mut self, commit: &Commit, is_in_group: bool) -> Option<BTreeSet<TurnId>> {
        let turns: Vec<TurnId> = commit.turns.iter().map(|write| write.turn.clone()).collect();
        // Refusals are more frequent beside other items, which must be written in spite of the
        // refusal.
        let is_among_others = is_in_group || commit.turns.len() + commit.messages.len() > 1;
        let factor = if is_among_others { 60.0 } else { 1.0 };
        let is_bad = |_: &TurnId| self.fault(|faults| (faults.data_refused * factor).min(0.8));
        let bad: BTreeSet<TurnId> = turns.into_iter().filter(is_bad).collect();
        (!bad.is_empty()).then_some(bad)
    }

    /// The worker tries each part alone; `None` if it does not finish.
    fn isolate(&mut self, number: usize, parts: &mut CommitParts, bad: &BTreeSet<TurnId>) -> Option<()> {
        while let Some(part) = parts.next() {
            match &part {
                CommitPart::Turn(turn) if bad.contains(&turn.turn) => {
                    self.coverage.refused_turns += 1;
                    let answer = turn.messages.last().and_then(|last| TurnId::of_answer(&last.key.message));
                    self.workflows.refused.extend(answer);
                    parts.refuse(part, "planted".to_owned());
                    continue;
                }
                CommitPart::Turn(_)
                | CommitPart::Message(_)
                | CommitPart::Task(_)
                | CommitPart::Usage(_)
                | CommitPart::Opened(_) => {}
            }
            let alone = parts.alone(&part);
            let (log, time) = (&self.logs[usize::from(alone.partition.0)], self.time);
            let is_stale = self.store.apply(&alone, log, time, 0);
            self.coverage.parts_alone += 1;
            parts.wrote(part);
            if is_stale || self.fault(|faults| (faults.aborted * 16.0).min(0.5)) {
                self.note(14, [number as u64, 0, 0], || format!("store: s{number} is written in part"));
                self.coverage.parts_without_rest += 1;
                return None;
            }
        }
        Some(())
    }

    /// Notes that the worker of a commit no longer waits for its outcome.
    pub(super) fn forget_commit(&mut self, number: usize) {
        let statement = &mut self.statements[number];
        statement.unknown.get_or_insert(statement.is_applied);
    }

    pub(super) fn count_unknown(&mut self) {
        for statement in &self.statements {
            match (statement.unknown, statement.is_applied) {
                (Some(true), _) => self.coverage.unknown_applied += 1,
                (Some(false), true) => self.coverage.unknown_late += 1,
                (Some(false), false) => self.coverage.unknown_not_applied += 1,
                (None, _) => {}
            }
        }
    }

    /// True if a commit is in progress that may still be applied.
    pub(super) fn has_statements_under_way(&self) -> bool {
        self.store.rows.iter().any(|row| row.locked_by.is_some())
    }

    pub(super) fn request_load(&mut self, address: Address, grant: Grant) {
        let delay = self.rng.range(1, 20);
        self.schedule(delay, WorldEvent::Load(address, grant));
    }

    pub(super) fn load(&mut self, address: Address, grant: Grant) {
        let limits = &self.scenario.limits;
        let window = (limits.queue_window, limits.timer_window);
        let Some(grant) = self.find_place(address, grant) else { return };
        // Only the owner of record is answered.
        if !self.is_owner(address) {
            return self.rebuild(address);
        }
        let takeover = self.store.load(address.partition, &grant, window, self.time);
        let delay = self.rng.range(0, 5);
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::Loaded(Box::new(takeover))));
    }

    /// Sends a save independently of commits: the save waits for none of them, and a late save may
    /// find another owner.
    pub(super) fn request_save(&mut self, address: Address, save: Save) {
        let Some(session) = self.session(address) else { return };
        let known = session.known;
        // The owner waits for the save, so it is delayed at most as long as an answer may be.
        let delay = match self.fault(|faults| faults.request_late * 4.0) {
            true => self.rng.range(20, self.scenario.answer_timeout_ms.max(21)),
            false => self.rng.range(0, 6),
        };
        self.schedule(delay, WorldEvent::Save(address, known, Box::new(save)));
        if self.bug == Some(PlantedBug::SavesUnconfirmed) {
            self.drive(address, Input::Saved(Vec::new()));
        }
    }

    /// A grant waits for saves in progress. Saves under an old epoch, or in a store that has gone
    /// back in time, write nothing.
    pub(super) fn save(&mut self, address: Address, known: AcknowledgedState, save: Box<Save>) {
        let (partition, owner) = (address.partition, address.incarnation);
        let is_lost = self.fault(|faults| faults.request_lost);
        let is_held =
            self.store.confirms(partition, owner, &known) || self.bug == Some(PlantedBug::SavesUnfenced);
        let mut saves = known.saves;
        if !is_lost && is_held {
            saves = self.store.save(partition, &save, self.time);
            self.coverage.saves += 1;
            self.coverage.saves_after_death += u64::from(self.session(address).is_none());
            self.note(15, [partition.0.into(), known.epoch, save.messages.len() as u64], || {
                format!("store: saves of {address:?}, epoch {}", known.epoch)
            });
        }
        self.coverage.saves_fenced += u64::from(!is_held);
        if self.session(address).is_none() {
            return;
        }
        // The answer may be lost, too; the save is then repeated, which changes nothing.
        match is_lost || !is_held || self.fault(|faults| faults.reply_lost) {
            true => self.schedule(ASKED_AGAIN_MS, WorldEvent::Save(address, known, save)),
            false => {
                let delay = self.rng.range(0, 4);
                self.schedule(delay, WorldEvent::Session(address, SessionEvent::Saved(saves)));
            }
        }
    }

    pub(super) fn saved(&mut self, address: Address, saves: u64) {
        let Some(session) = self.session(address) else { return };
        session.known.saves = session.known.saves.max(saves);
        self.drive(address, Input::Saved(Vec::new()));
    }

    pub(super) fn request_look_up(&mut self, address: Address, keys: Vec<MessageKey>) {
        let delay = self.look_up_delay();
        self.schedule(delay, WorldEvent::Lookup(address, keys));
    }

    /// Only the owner of record is answered; another worker asks again until its lease ends.
    pub(super) fn lookup(&mut self, address: Address, keys: &[MessageKey]) {
        if !self.is_owner(address) {
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::Lookup(address, keys.to_vec()));
        }
        // If the rest is refused, a separate query finds whether a message has failed before and
        // whether its thread was erased.
        let is_refused = |key: &MessageKey| {
            self.refused.messages.contains(key)
                && !self.store.has_ended(key)
                && !self.store.is_erased(&key.thread)
        };
        let refused = keys.iter().filter(|key| is_refused(key)).count();
        if refused > 0 && self.bug == Some(PlantedBug::RefusedHoldsUpOthers) {
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::Lookup(address, keys.to_vec()));
        }
        let found = answered(keys, is_refused, |part| self.store.lookup(part, &self.missing, self.time));
        let found = found.into_iter().zip(keys);
        let found =
            found.map(|(found, key)| found.unwrap_or_else(|| (key.clone(), Lookup::Refused))).collect();
        self.coverage.refused_look_ups += refused as u64;
        let delay = self.look_up_delay();
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::Found(found)));
    }

    pub(super) fn is_owner(&mut self, address: Address) -> bool {
        let row = &self.store.rows[usize::from(address.partition.0)];
        let (epoch, has_owner) = (row.epoch, row.owner.is_some());
        // The answer to a session that is gone is ignored.
        self.session(address).is_none_or(|session| session.known.epoch == epoch && has_owner)
    }

    pub(super) fn look_up_delay(&mut self) -> i64 {
        match self.fault(|faults| faults.slow_look_up) {
            true => self.rng.range(10, 800),
            false => self.rng.range(0, 4),
        }
    }
}

/// The turns and tasks of a commit, for the trace.
fn of_turns(commit: &Commit) -> String {
    let turns: Vec<String> = commit.turns.iter().map(|write| write.turn.to_string()).collect();
    let tasks: Vec<String> = commit
        .tasks
        .iter()
        .map(|write| format!("{}={}", write.queued.task.id, write.queued.position))
        .collect();
    let failed: Vec<String> =
        commit.failed_turns.iter().map(|f| format!("{} {}", f.opened.turn, f.code)).collect();
    let marks: Vec<String> =
        commit.failed_tasks.iter().map(|f| format!("{} {}", f.position, f.code)).collect();
    let agents: Vec<String> = commit
        .agents
        .iter()
        .map(|a| {
            format!(
                "{} head {} run {} failures {} {:?} paused {}",
                a.agent, a.head, a.run, a.failures, a.wait, a.paused
            )
        })
        .collect();
    let audit: Vec<String> =
        commit.audit.iter().map(|a| format!("{} {} {:?} {:?}", a.id, a.action, a.target, a.error)).collect();
    let changes = &commit.task_changes;
    let mut text = String::new();
    for (name, list) in [
        ("turns", turns),
        ("tasks", tasks),
        ("failed", failed),
        ("marks", marks),
        ("agents", agents),
        ("audit", audit),
        ("changes", changes.iter().map(|change| format!("{change:?}")).collect()),
        ("timers", commit.timers.iter().map(|write| format!("{write:?}")).collect()),
        ("usage", commit.usage.iter().map(|used| format!("{used:?}")).collect()),
        ("outbox", commit.outbox.iter().map(|batch| format!("{batch:?}")).collect()),
    ] {
        if !list.is_empty() {
            text.push_str(&format!(" {name} {list:?}"));
        }
    }
    text
}
