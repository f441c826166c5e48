//! Background tasks of an owner: queries to the store, turn requests, the outbox.

use model::{AgentId, Position, TaskKind, TurnId};
use partition::{CommandKey, CommandVerdict, Input, NotNow, OutboxBatch, Outgoing, Start, Started};
use scheduling::follow_up::FollowUpRules;

use crate::bug::PlantedBug;

use super::World;
use super::in_flight_sql::ASKED_AGAIN_MS;
use crate::checker::turns::{Transition, TransitionKind, TurnEvent};
use crate::log::START;
use crate::publisher::commands::partition_of;
use crate::settings::wanted_tasks;
use crate::world::event::{Address, SessionEvent, WorkEvent, WorldEvent};
use crate::world::state::refused_rows::answered;

/// A turn that met a limit is tried again after at most this time, ms.
const LIMITED_MS: i64 = 2_000;

impl World {
    pub(super) fn answer(&mut self, address: Address, delay: i64, input: Input) {
        self.schedule(delay, WorldEvent::Session(address, SessionEvent::Input(Box::new(input))));
    }

    /// Queries run one after the other, so that the answers come in their order.
    pub(super) fn request_check(&mut self, address: Address, keys: Vec<CommandKey>) {
        let delay = self.look_up_delay();
        let time = self.time;
        let Some(session) = self.session(address) else { return };
        session.questions.push_back(keys);
        let at = session.checked_at.max(time + delay);
        session.checked_at = at;
        self.schedule(at - time, WorldEvent::Check(address));
    }

    /// Runs the oldest query. A query that must be repeated delays those after it.
    pub(super) fn check_orders(&mut self, address: Address) {
        if !self.is_owner(address) {
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::Check(address));
        }
        let Some(keys) = self.session(address).and_then(|session| session.questions.pop_front()) else {
            return;
        };
        let refused = keys.iter().filter(|key| self.refused.has_command(key)).count();
        if refused > 0 && self.bug == Some(PlantedBug::RefusedHoldsUpOthers) {
            if let Some(session) = self.session(address) {
                session.questions.push_front(keys);
            }
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::Check(address));
        }
        self.coverage.refused_checks += refused as u64;
        let found = answered(
            &keys,
            |key| self.refused.has_command(key),
            |part| part.iter().map(|key| self.verdict(address, key)).collect(),
        );
        let verdicts: Vec<(CommandKey, CommandVerdict)> = keys
            .into_iter()
            .zip(found.into_iter().map(|found| found.unwrap_or(CommandVerdict::Refused)))
            .collect();
        let delay = self.look_up_delay();
        let time = self.time;
        let Some(session) = self.session(address) else { return };
        let at = session.answered_at.max(time + delay);
        session.answered_at = at;
        self.coverage.checks += verdicts.len() as u64;
        self.answer(address, at - time, Input::Checked(verdicts));
    }

    fn verdict(&self, address: Address, key: &CommandKey) -> CommandVerdict {
        let verdict = self.store.tables[usize::from(address.partition.0)].check(key, self.bug);
        if self.store.is_order_erased(key) {
            return CommandVerdict::Erased;
        }
        let subject = match key {
            CommandKey::Turn(thread, ..) => thread.clone(),
            CommandKey::Task(agent, ..) => agent.thread(),
            CommandKey::Control(..) => return verdict,
        };
        let is_missing = self.missing.contains(&subject) && verdict == CommandVerdict::New;
        if is_missing { CommandVerdict::Unknown } else { verdict }
    }

    pub(super) fn request_tasks(&mut self, address: Address, agent: AgentId, after: Position, limit: usize) {
        let delay = self.look_up_delay();
        self.schedule(delay, WorldEvent::LoadTasks(address, agent, after, limit));
    }

    pub(super) fn load_tasks(&mut self, address: Address, agent: AgentId, after: Position, limit: usize) {
        if !self.is_owner(address) {
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::LoadTasks(address, agent, after, limit));
        }
        let tables = &self.store.tables[usize::from(address.partition.0)];
        let (tasks, more) = tables.pending(&agent, after.get(), limit);
        self.coverage.loads += 1;
        let delay = self.look_up_delay();
        self.answer(address, delay, Input::Tasks { agent, after, tasks, more });
    }

    /// Begins a turn: reads what it needs, and publishes the request.
    pub(super) fn begin(&mut self, address: Address, mut start: Box<Start>) {
        self.coverage.starts += 1;
        if let Some(session) = self.session(address) {
            // A store that went back in time may begin a turn that was withdrawn before.
            session.unwanted.remove(&(start.turn.clone(), start.run));
        }
        if self.bug == Some(PlantedBug::AnswerRequestedAgain) && start.is_adopted {
            (start.is_adopted, start.attempt) = (false, start.attempt + 16);
        }
        if let Some(by) =
            self.superseded_by(&start).filter(|_| self.bug != Some(PlantedBug::SupersededIgnored))
        {
            self.coverage.superseded_starts += 1;
            let (turn, run, delay) = (start.turn, start.run, self.rng.range(0, 10));
            return self.answer(
                address,
                delay,
                Input::Started { turn, run, started: Started::Superseded(by) },
            );
        }
        if self.is_start_erased(&start) && self.bug != Some(PlantedBug::ErasedStarts) {
            self.coverage.erased_starts += 1;
            let started = Started::Refused {
                rules: self.scenario.turn_profile.rules,
                text: "it was erased".to_owned(),
            };
            let delay = self.rng.range(0, 10);
            return self.answer(address, delay, Input::Started { turn: start.turn, run: start.run, started });
        }
        self.check_start(address, &start);
        if let Some(why) = self.not_now(&start).filter(|_| !start.is_adopted) {
            self.coverage.postponed += 1;
            self.coverage.over_budget += u64::from(matches!(why, NotNow::Budget { .. }));
            self.coverage.limited += u64::from(matches!(why, NotNow::Limited { .. }));
            self.disable_follow_ups(&start);
            let delay = self.rng.range(0, 10);
            let started = Started::NotNow(why);
            return self.answer(address, delay, Input::Started { turn: start.turn, run: start.run, started });
        }
        if !start.is_adopted {
            self.check_asked(&start);
            self.check_enabled(&start);
            self.build_context(address, &start);
        }
        self.operators.begun.push((start.thread.clone(), start.turn.clone()));
        let known = self.session(address).map(|session| session.known).unwrap_or_default();
        let epoch = known.epoch;
        if self.store.confirms(address.partition, address.incarnation, &known) {
            let (turn, thread) = (start.turn.clone(), start.thread.clone());
            self.store.history.push(Transition {
                at_ms: self.time,
                partition: address.partition,
                number: epoch,
                what: TransitionKind::Started { turn, run: start.run, thread, is_adopted: start.is_adopted },
            });
        }
        let rules = self.scenario.turn_profile.rules;
        if !start.is_adopted && self.fault(|faults| faults.unrequestable) {
            self.coverage.unrequestable += 1;
            self.workflows.refused.insert((start.turn.clone(), start.run));
            let started = Started::Refused { rules, text: "planted".to_owned() };
            let delay = self.rng.range(0, 10);
            return self.answer(address, delay, Input::Started { turn: start.turn, run: start.run, started });
        }
        if !start.is_adopted && !self.is_quiet && self.refused.now() {
            self.coverage.unreadable_starts += 1;
            self.workflows.refused.insert((start.turn.clone(), start.run));
            let started = Started::Unreadable { rules, detail: "planted".to_owned() };
            return self.answer(address, 1, Input::Started { turn: start.turn, run: start.run, started });
        }
        let delay = match self.fault(|faults| faults.request_slow) {
            true => self.rng.range(10, 1_500),
            false => self.rng.range(0, 8),
        };
        self.schedule(delay, WorldEvent::Request(address, start));
    }

    /// Why the agent cannot begin the turn now, for reasons that its queue does not check.
    fn not_now(&self, start: &Start) -> Option<NotNow> {
        let kind = start.cause.task_kind();
        let agent = start.agent.agent();
        if let Some(for_ms) = self.budgets.left_ms(&agent, self.time).filter(|_| !self.is_quiet) {
            // A turn that is limited waits like one whose budget is spent, but for a shorter time.
            return Some(match for_ms % 2 {
                0 => NotNow::Budget { for_ms },
                _ => NotNow::Limited { for_ms: for_ms.min(LIMITED_MS) },
            });
        }
        let partition = partition_of(agent.as_str(), self.scenario.partitions);
        let row = self.store.tables[usize::from(partition.0)].agents.get(&agent)?;
        if kind == Some(TaskKind::Task) || (kind.is_none() && !self.scenario.turn_profile.refuses) {
            return None;
        }
        if row.is_paused && kind.is_some() {
            return Some(NotNow::Paused);
        }
        let for_ms = row.next_run_at? - (START + self.time);
        (for_ms > 0).then_some(NotNow::Backoff { for_ms })
    }

    /// The request is stored, even if its owner is gone.
    pub(super) fn requested(&mut self, address: Address, start: &Start) {
        if self
            .session(address)
            .is_some_and(|session| session.unwanted.contains(&(start.turn.clone(), start.run)))
        {
            return;
        }
        if !start.is_adopted {
            self.store_request(start);
        }
        let mut rules = self.scenario.turn_profile.rules;
        if self.bug == Some(PlantedBug::DeadlineForgotten) {
            rules.deadline_ms = i64::MAX;
        }
        (rules.work_request, rules.memory) = wanted_tasks(&start.options);
        rules.follow_ups = FollowUpRules::of(&self.settings()).ok().and_then(|rules| rules.arming());
        let started = Started::Requested(rules);
        let delay = self.rng.range(0, 6);
        self.answer(address, delay, Input::Started { turn: start.turn.clone(), run: start.run, started });
    }

    /// Best effort: a request in flight is not stored, a stored one is withdrawn, and a workflow
    /// that works on it is notified.
    pub(super) fn abandon(&mut self, address: Address, turn: TurnId, run: u32) {
        self.coverage.abandoned += 1;
        if let Some(session) = self.session(address) {
            session.unwanted.insert((turn.clone(), run));
        }
        if !self.fault(|faults| faults.stop_lost) {
            let delay = self.rng.range(0, 30);
            self.schedule(delay, WorldEvent::Work(WorkEvent::Stop(turn, run)));
        }
    }

    /// Sends entries one after the other, each at least once. `more`: number of entries of the
    /// batch after these.
    pub(super) fn send_outbox(&mut self, address: Address, batch: OutboxBatch, more: usize) {
        let OutboxBatch { id, outgoing } = batch;
        let mut delay = 0;
        let count = outgoing.len() + more;
        if count == 0 {
            // All entries of the batch were erased.
            return self.sent(address, id);
        }
        for (index, outgoing) in outgoing.into_iter().enumerate() {
            delay += match self.fault(|faults| faults.relay_slow) {
                true => self.rng.range(10, 800),
                false => self.rng.range(0, 5),
            };
            let left = count - index - 1;
            self.schedule(delay, WorldEvent::Relay(address, id, Box::new(outgoing), left));
        }
    }

    pub(super) fn relay(&mut self, address: Address, batch: Position, outgoing: &Outgoing, left: usize) {
        // The sender dies with the worker; what was in flight may arrive.
        if self.session(address).is_none() && self.rng.chance(0.5) {
            return;
        }
        let times = if self.fault(|faults| faults.relay_repeat) { 2 } else { 1 };
        for _ in 0..times {
            self.coverage.relayed += 1;
            match outgoing {
                Outgoing::Task(task) => self.publish_command(model::Command::Task(task.clone())),
                Outgoing::Pause(pause) => self.publish_command(model::Command::Control(pause.control())),
                Outgoing::TurnEnded(ended) => self.turn_events.push(TurnEvent {
                    turn: ended.turn.clone(),
                    batch: batch.get(),
                    status: ended.status.name(),
                    message: ended.message.clone(),
                    code: ended.code.clone(),
                }),
            }
        }
        if left == 0 {
            self.sent(address, batch);
        }
    }

    pub(super) fn sent(&mut self, address: Address, batch: Position) {
        let delay = self.rng.range(0, 10);
        self.answer(address, delay, Input::Sent(batch));
    }
}
