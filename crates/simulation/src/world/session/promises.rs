//! What an owner must do in time, once, or never: checked while the history runs.

use model::{FollowedTurn, Metadata, TaskId, TaskKind, TaskOrigin, Timestamp};
use partition::{Commit, Outgoing, Start, TurnStatus};

use crate::checker::{Invariant, Violation};
use crate::log::START;
use crate::world::World;
use crate::world::event::Address;
use crate::world::state::promises::RunOfTurn;
use crate::world::state::session::WorkerSession;

impl World {
    /// Checks that no owner requests an answer whose chunks were in the stream when it began to
    /// read, or were read later. Not checked where the store went back in time: turns that it had
    /// ended begin again.
    pub(in crate::world) fn check_start(&mut self, address: Address, start: &Start) {
        if self.rules.went_back(address.partition) {
            return;
        }
        let heard = self.workflows.heard.get(&(start.turn.clone(), start.run)).copied();
        let epoch = self.session(address).map_or(0, |session| session.known.epoch);
        // A real worker that was paused during a takeover confirms its lease before it publishes
        // anything. The simulated worker does not, so it is not checked.
        if !self.store.is_held(address.partition, address.incarnation, epoch) {
            return;
        }
        let Some(WorkerSession { machine: Some(machine), promises, .. }) = self.session(address) else {
            return;
        };
        let read = machine.last_seq().0.max(promises.tail);
        if let Some((seq, _)) = heard.filter(|(seq, _)| *seq <= read && !start.is_adopted) {
            let subject = format!("run {} of {}", start.run, start.turn);
            let expected = format!("no request: entry {seq} is of its answer");
            let seen = format!("a request by an owner that has read {read}");
            self.violate(Violation::new(Invariant::OneRequest, subject, expected, seen));
        }
    }

    /// Checks that requests of ended runs are withdrawn. This is not checked where the store went
    /// back in time: an owner may then end a run without knowing that it was requested.
    pub(super) fn check_withdrawn(&mut self, address: Address, ended: Vec<RunOfTurn>) {
        if self.rules.went_back(address.partition) {
            return;
        }
        for (turn, run) in ended {
            if self.workflows.is_outstanding(&turn, run) {
                let subject = format!("run {run} of {turn} in partition {}", address.partition);
                let seen = "nothing with its end";
                self.violate(Violation::new(Invariant::Withdrawn, subject, "its request taken back", seen));
            }
        }
    }

    /// Checks that a run without chunks ends after its deadline. Time counts only while its owner
    /// has read everything and waits for nothing.
    pub(super) fn watch_deadlines(&mut self, address: Address) {
        let limits = self.scenario.limits;
        let deadline_ms = self.scenario.turn_profile.rules.deadline_ms;
        let (now, time): (Timestamp, i64) = (self.now(address), self.time);
        let worker = &mut self.workers[address.worker];
        let Some(session) = worker.sessions.get_mut(&address.partition) else { return };
        if session.address != address {
            return;
        }
        let passed = (time - session.ticked_at).min(limits.tick_ms);
        session.ticked_at = time;
        let Some(machine) = &mut session.machine else { return };
        let in_peace = session.is_caught_up
            && session.in_flight.is_none()
            && session.answered_at.max(session.checked_at) < time
            && !machine.stats(now).deferring;
        let mut late = None;
        for (run, silence) in session.promises.silent.iter_mut().filter(|(_, silence)| silence.is_requested) {
            let heard = self.workflows.heard.get(run).map_or(0, |(_, count)| *count);
            if heard != silence.heard {
                (silence.heard, silence.age_ms) = (heard, 0);
            } else if in_peace {
                silence.age_ms += passed;
            }
            if silence.age_ms > deadline_ms + 6 * limits.tick_ms + 1_000 {
                late = Some((run.clone(), silence.age_ms));
            }
        }
        if let Some(((turn, run), age_ms)) = late {
            let (subject, expected) =
                (format!("run {run} of {turn}"), format!("its end after {deadline_ms} ms of silence"));
            let seen = format!("none after {age_ms} ms");
            self.violate(Violation::new(Invariant::InTime, subject, expected, seen));
        }
    }

    /// Checks that a partition without an owner is taken within four lease times once the faults
    /// have stopped.
    pub(in crate::world) fn watch_takeovers(&mut self) {
        if !self.is_quiet {
            return;
        }
        let (now, most_ms) = (START + self.time, 4 * self.scenario.lease_ms + 1_000);
        let begun_at = self.scenario.faults_until + 4 * self.scenario.lease_ms;
        for number in 0..self.free_since.len() {
            let row = &self.store.rows[number];
            let is_free = row.owner.is_none() || row.lease_until <= now;
            let since = self.free_since[number].filter(|_| is_free).unwrap_or(self.time).max(begun_at);
            self.free_since[number] = is_free.then_some(since);
            if self.time - since > most_ms {
                let (subject, seen) =
                    (format!("partition {number}"), format!("none for {} ms", self.time - since));
                let expected = format!("an owner within {most_ms} ms");
                self.violate(Violation::new(Invariant::InTime, subject, expected, seen));
            }
        }
    }
}

/// A planted bug: follow-on work of a turn is sent although the turn was stopped.
pub(super) fn go_on(commit: &mut Commit) {
    let Some(batch) = &mut commit.outbox else { return };
    let stopped: Vec<_> = batch
        .outgoing
        .iter()
        .filter_map(|outgoing| match outgoing {
            Outgoing::TurnEnded(ended) if ended.status == TurnStatus::Stopped => Some(ended.clone()),
            Outgoing::TurnEnded(_) | Outgoing::Task(_) | Outgoing::Pause(_) => None,
        })
        .collect();
    for ended in stopped {
        let Ok(id) = TaskId::parse(&format!("{}-work", ended.turn)) else { continue };
        let answer = ended.message.unwrap_or_else(|| ended.turn.answer(0));
        let first = ended.batch.unwrap_or(batch.id);
        let followed = FollowedTurn { thread: ended.thread, turn: ended.turn, answer, batch: first };
        batch.outgoing.push(Outgoing::Task(model::Task {
            agent: ended.agent,
            id,
            kind: TaskKind::WorkRequest,
            content: "goes on".to_owned(),
            origin: TaskOrigin::AfterTurn(followed),
            metadata: Metadata::EMPTY,
        }));
    }
}
