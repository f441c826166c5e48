//! What an owner must do in time, once, or not at all: watched while it happens.

use std::collections::BTreeMap;

use model::{Position, TaskId, TaskKind, Timestamp, TurnId};
use partition::{Action, Commit, Input, Outgoing, Start, Started, TurnStatus};

use super::{Session, World};
use crate::checker::{Invariant, Violation};
use crate::log::START;
use crate::world::event::Address;

type RunOfTurn = (TurnId, u32);

/// What one session owes.
#[derive(Default)]
pub(super) struct Promises {
    /// The end of the stream when it began: whatever stood there is read before anything begins.
    pub(super) tail: u64,
    /// Runs that were requested under it and have not ended.
    silent: BTreeMap<RunOfTurn, Silence>,
    /// Runs that the commit which was applied just now has ended, though their workflows do not know it.
    pub(super) ended: Vec<RunOfTurn>,
}

/// How long nothing was heard of a run in peace, ms, and how many entries had been by then.
#[derive(Default)]
struct Silence {
    is_requested: bool,
    age_ms: i64,
    heard: u32,
}

impl Promises {
    pub(super) fn told(&mut self, input: &Input) {
        if let Input::Started { turn, run, started: Started::Requested(_) } = input
            && let Some(silence) = self.silent.get_mut(&(turn.clone(), *run))
        {
            silence.is_requested = true;
        }
    }

    pub(super) fn decided(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Start(start) => {
                    self.silent.insert((start.turn.clone(), start.run), Silence::default());
                }
                Action::End(ending) => {
                    if let Some(run) = TurnId::of_answer(&ending.key.message) {
                        self.silent.remove(&run);
                    }
                }
                Action::Abandon { turn, run } => self.ended.retain(|ended| *ended != (turn.clone(), *run)),
                _ => {}
            }
        }
    }

    /// The owner hears that its commit is applied.
    pub(super) fn applied(&mut self, commit: &Commit) {
        let outgoing = commit.outbox.iter().flat_map(|batch| &batch.outgoing);
        let stopped = outgoing.filter_map(|outgoing| match outgoing {
            Outgoing::TurnEnded(ended) if ended.status == TurnStatus::Stopped => {
                TurnId::of_answer(ended.message.as_ref()?)
            }
            Outgoing::TurnEnded(_) | Outgoing::Task(_) | Outgoing::TurnOpened(_) | Outgoing::Pause(_) => None,
        });
        // What was refused never began here: only an owner that is none any more may have asked for it.
        let is_ours = |code: &str| code != "producer_error" && code != "busy";
        let failed = commit.failed_turns.iter().filter(|failed| is_ours(&failed.code));
        let failed = failed.map(|failed| (failed.opened.turn.clone(), failed.opened.run));
        let kept = commit.agents.iter().filter_map(|write| {
            let is_kept = write.guard != Position::MAX && write.head < write.guard && write.run > 0;
            let is_ours = write.error.as_ref().is_none_or(|(code, _)| code != "producer_error");
            (is_kept && is_ours).then(|| (TurnId::of_task(&write.agent, write.guard), write.run - 1))
        });
        self.ended = stopped.chain(failed).chain(kept).collect();
    }
}

impl World {
    /// No owner asks for an answer of which something stood in the stream when it began to read, or was read since.
    /// Where the store went back, turns that it had ended begin again.
    pub(in crate::world) fn check_start(&mut self, address: Address, start: &Start) {
        if self.rules.went_back(address.partition) {
            return;
        }
        let heard = self.workflows.heard.get(&(start.turn.clone(), start.run)).copied();
        let epoch = self.session(address).map_or(0, |session| session.known.epoch);
        // A worker that stands still while another one takes over asks for the lease before it speaks; here it does not.
        if !self.store.is_held(address.partition, address.incarnation, epoch) {
            return;
        }
        let Some(Session { machine: Some(machine), promises, .. }) = self.session(address) else { return };
        let read = machine.last_seq().0.max(promises.tail);
        if let Some((seq, _)) = heard.filter(|(seq, _)| *seq <= read && !start.is_adopted) {
            let subject = format!("run {} of {}", start.run, start.turn);
            let expected = format!("no request: entry {seq} is of its answer");
            let seen = format!("a request by an owner that has read {read}");
            self.violate(Violation::new(Invariant::OneRequest, subject, expected, seen));
        }
    }

    /// Where the store went back, an owner may end what it does not know to have been requested.
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

    /// A run of which nothing comes ends after its deadline, counted while its owner has read everything and waits for nothing.
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

    /// A partition without an owner is taken within four leases, when nothing fails any more.
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

/// A planted bug: what would follow a turn is sent although it was stopped.
pub(super) fn go_on(commit: &mut Commit) {
    let Some(batch) = &mut commit.outbox else { return };
    let stopped: Vec<_> = batch
        .outgoing
        .iter()
        .filter_map(|outgoing| match outgoing {
            Outgoing::TurnEnded(ended) if ended.status == TurnStatus::Stopped => Some(ended.clone()),
            Outgoing::TurnEnded(_) | Outgoing::Task(_) | Outgoing::TurnOpened(_) | Outgoing::Pause(_) => None,
        })
        .collect();
    for ended in stopped {
        let turn = serde_json::Value::from(ended.turn.as_str());
        let metadata = serde_json::Map::from_iter([("turn_id".to_owned(), turn)]);
        let (Ok(id), Ok(metadata)) =
            (TaskId::parse(&format!("{}-work", ended.turn)), model::Metadata::new(metadata))
        else {
            continue;
        };
        let (kind, content) = (TaskKind::WorkRequest, "goes on".to_owned());
        batch.outgoing.push(Outgoing::Task(model::Task { agent: ended.agent, id, kind, content, metadata }));
    }
}
