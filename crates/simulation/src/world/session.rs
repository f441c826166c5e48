//! One worker's session of one partition: drives the real machine as the worker does, and executes
//! its actions.

mod promises;
mod read;
mod replies;

use std::sync::Arc;

use model::{FrameNumber, MessageFailure, PartitionId, Timestamp, TurnId};
use partition::{Action, Commit, Input, MachineReport, Partition, TimerPage};

use super::World;
use crate::bug::PlantedBug;
use crate::checker::turns::is_follow_up;
use crate::checker::{Invariant, Violation};
use crate::log::START;
use crate::store::fence::Decided;
use crate::world::event::{Address, SessionEvent, WorldEvent};
use crate::world::state::session::WorkerSession;
use crate::world::state::statement::StatementKind;

impl World {
    pub(super) fn session_event(&mut self, address: Address, event: SessionEvent) {
        let worker = &mut self.workers[address.worker];
        if !worker.is_up || worker.incarnation != address.incarnation {
            return;
        }
        if worker.is_paused {
            return worker.waiting.push_back((address, event));
        }
        if address.session == 0 {
            if let SessionEvent::Reply(_, reply) = event {
                self.worker_reply(address, reply);
            }
            return;
        }
        let Some(session) = self.session(address) else { return };
        match event {
            SessionEvent::Tick => self.tick(address),
            SessionEvent::Fetch { generation } => self.fetch(address, generation),
            SessionEvent::Arrive { generation, first, last, is_tail } => {
                self.arrive(address, generation, (first, last), is_tail);
            }
            SessionEvent::ReaderLost { generation, resume_after } => {
                self.reader_lost(address, generation, resume_after);
            }
            SessionEvent::Found(found) => self.drive(address, Input::Found(found)),
            SessionEvent::Loaded(takeover) => {
                let hash_seed = session.address.session;
                self.loaded(address, *takeover, hash_seed);
            }
            SessionEvent::Reply(number, reply) => self.reply(address, number, reply),
            SessionEvent::Timeout(number) => self.timeout(address, number),
            SessionEvent::Snapshot(ask) => self.drive(address, Input::Snapshot(ask)),
            SessionEvent::ChangedThreads(ask) => self.drive(address, Input::ChangedThreads(ask)),
            SessionEvent::Saved(saves) => self.saved(address, saves),
            SessionEvent::Input(input) => self.drive(address, *input),
        }
    }

    pub(super) fn session(&mut self, address: Address) -> Option<&mut WorkerSession> {
        let worker = &mut self.workers[address.worker];
        let session = worker.sessions.get_mut(&address.partition)?;
        (session.address == address).then_some(session)
    }

    fn loaded(&mut self, address: Address, mut takeover: partition::Takeover, hash_seed: u64) {
        let mut limits = self.scenario.limits;
        if self.bug == Some(PlantedBug::StallForgotten) {
            limits.stall_timeout_ms = i64::MAX;
        }
        let tail = self.log(address.partition).len();
        let ahead_ms = self.store.timers.ahead_ms;
        let now = Timestamp(START + self.time + ahead_ms + self.workers[address.worker].skew);
        if self.bug == Some(PlantedBug::TimersForgotten) {
            takeover.timers = TimerPage::NONE;
        }
        self.coverage.timers_restored += takeover.timers.timers.len() as u64;
        self.coverage.timers_overdue +=
            takeover.timers.timers.iter().filter(|timer| timer.wait_ms <= 0).count() as u64;
        let restored = takeover.spilled_messages.len() as u64;
        self.coverage.spill_restores += restored;
        self.coverage.inputs_restored += takeover.open_turns.len() as u64;
        self.coverage.queues_restored += takeover.agents.len() as u64;
        self.coverage.outbox_restored += takeover.outbox.len() as u64;
        self.note(30, [address.session, takeover.epoch, takeover.checkpoint.0], || {
            format!(
                "{address:?} begins, epoch {} checkpoint {} with {restored} spilled messages",
                takeover.epoch, takeover.checkpoint
            )
        });
        let (time, epoch) = (self.time, takeover.epoch);
        let Some(session) = self.session(address) else { return };
        session.machine = Some(Partition::new(takeover, limits, hash_seed, now));
        session.ticked_at = time;
        session.promises.tail = tail;
        self.announce_owner(address.partition, epoch);
        self.plan_retention(address);
        self.schedule(1, WorldEvent::Session(address, SessionEvent::Fetch { generation: 0 }));
        self.schedule(limits.tick_ms, WorldEvent::Session(address, SessionEvent::Tick));
    }

    pub(super) fn now(&mut self, address: Address) -> Timestamp {
        let skew = self.workers[address.worker].skew + self.store.timers.ahead_ms;
        let time = self.time;
        let frozen_ms = self.session(address).map_or(0, |session| session.planted.frozen_ms);
        Timestamp(START + time + skew - frozen_ms)
    }

    /// Gives the machine one input, and queues its actions.
    pub(super) fn drive(&mut self, address: Address, input: Input) {
        let (now, bug) = (self.now(address), self.bug);
        let Some(session) = self.session(address) else { return };
        let Some(machine) = &mut session.machine else { return };
        let refused = match &input {
            Input::Committed(refused) => refused.clone(),
            _ => Vec::new(),
        };
        session.promises.on_input(&input);
        let mut actions = machine.handle(input, now);
        let refused: Vec<TurnId> = refused.into_iter().map(|(turn, _)| turn).collect();
        // A refused follow-up has no visible end.
        session.promises.silent.retain(|(turn, _), _| !(is_follow_up(turn) && refused.contains(turn)));
        partition::isolate::apply_refusals(&mut actions, &[], &refused);
        if bug == Some(PlantedBug::NeverWithdrawn) {
            actions.retain(|action| !matches!(action, Action::Abandon { .. }));
        }
        session.promises.decided(&actions);
        let ended = std::mem::take(&mut session.promises.ended);
        session.actions.extend(actions);
        self.check_withdrawn(address, ended);
        self.perform(address.worker, address.partition);
    }

    /// Executes the actions, until the worker dies or pauses.
    pub(super) fn perform(&mut self, index: usize, partition: PartitionId) {
        loop {
            let worker = &mut self.workers[index];
            if !worker.is_up || worker.is_paused {
                return;
            }
            let Some(session) = worker.sessions.get_mut(&partition) else { return };
            let address = session.address;
            let Some(action) = session.actions.pop_front() else { return };
            if self.fault(|faults| faults.crash) {
                return self.crash(index);
            }
            if self.fault(|faults| faults.pause) {
                if let Some(session) = self.session(address) {
                    session.actions.push_front(action);
                }
                return self.pause(index);
            }
            self.control(address, action);
        }
    }

    fn control(&mut self, address: Address, action: Action) {
        let name = action.name();
        self.note(31, [address.session, name.len() as u64, 0], || {
            format!("{address:?} {name} {}", brief(&action))
        });
        match action {
            Action::Lookup(keys) => self.request_look_up(address, keys),
            Action::Publish(release) => self.broadcast(address, &release.into()),
            Action::End(ending) => self.broadcast(address, &ending.into()),
            Action::Snapshot(answer) => self.answered(answer),
            Action::ChangedThreads(sent) => self.sent_lately(sent),
            Action::CheckLease(seen_epoch) => self.rebuild_above(address, seen_epoch),
            Action::Commit(commit) => self.commit(address, commit),
            Action::Save(save) => self.request_save(address, save),
            Action::Reread(_) => {
                self.coverage.rereads += 1;
                self.restart_reader(address, 1);
            }
            Action::Report(MachineReport::GivenUp { failure: MessageFailure::Stalled, .. }) => {
                self.coverage.stalls += 1
            }
            Action::Report(MachineReport::Hole { first, last }) => {
                self.coverage.holes_named += 1;
                if let Some(session) = self.session(address) {
                    session.gone.push((first, last));
                }
            }
            Action::Report(_) => {}
            Action::Check(keys) => self.request_check(address, keys),
            Action::Start(start) => self.begin(address, start),
            Action::Abandon { turn, run } => self.abandon(address, turn, run),
            Action::LoadTasks { agent, after, limit } => self.request_tasks(address, agent, after, limit),
            Action::DecideTimers(due) => self.request_timers(address, due),
            Action::LoadTimers { from_ms, limit } => self.request_window(address, from_ms, limit),
            Action::DelayTask { seq, delayed } => self.request_delay(address, seq, delayed),
            Action::Send(batch) if self.bug == Some(PlantedBug::OutboxBeforeCommit) => {
                self.sent(address, batch.id)
            }
            Action::Send(batch) => self.send_outbox(address, batch, 0),
            Action::Status(_) => self.coverage.explained += 1,
        }
    }

    fn commit(&mut self, address: Address, mut commit: Commit) {
        self.check_withheld(address, &commit);
        self.spoil(address, &mut commit);
        let Some(session) = self.session(address) else { return };
        session.known.high_water = commit.position_high_water.0;
        let decided = Arc::new(Decided {
            commit,
            commits: session.known.commits,
            saves: session.known.saves,
            incarnation: session.incarnation.clone(),
            read: session.read,
            gone: std::mem::take(&mut session.gone),
        });
        let number = self.submit(address, Arc::clone(&decided));
        if self.bug == Some(PlantedBug::FreedBeforeCommit) {
            return self.drive(address, Input::Committed(Vec::new()));
        }
        if let Some(session) = self.session(address) {
            session.in_flight = Some((number, decided));
        }
    }

    /// Planted bugs that rewrite a commit, or act on it too early.
    fn spoil(&mut self, address: Address, commit: &mut Commit) {
        match self.bug {
            Some(PlantedBug::CheckpointIsReadPosition) => {
                let Some(WorkerSession { machine: Some(machine), .. }) = self.session(address) else {
                    return;
                };
                commit.checkpoint = machine.last_seq().max(commit.checkpoint);
            }
            Some(PlantedBug::AppendOnArrival) => {
                let Some(session) = self.session(address) else { return };
                for message in &mut commit.messages {
                    if let Some((_, chunks)) = session.planted.arrivals.get(&message.key) {
                        message.content = chunks.iter().map(|chunk| &*chunk.text).collect();
                    }
                }
            }
            Some(PlantedBug::TerminalBeforeCommit) => {
                for message in &commit.messages {
                    let chunks = self.lengths.get(&message.key).copied().unwrap_or_default();
                    let number = FrameNumber { epoch: commit.epoch, number: u64::MAX >> 8, after: 0 };
                    let end = partition::MessageEnded {
                        key: message.key.clone(),
                        attempt: message.attempt,
                        role: message.role,
                        batch_type: message.placement.batch_type,
                        position: message.placement.position,
                        chunks,
                        outcome: model::MessageOutcome::Complete,
                        report: model::AnswerReport::default(),
                        frame: number,
                    };
                    self.broadcast(address, &end.into());
                }
            }
            Some(PlantedBug::BatchForgotten) => {
                for open in commit.opened.iter_mut().filter(|open| open.opened.origin.continues().is_some()) {
                    open.opened.origin = model::TurnOrigin::of_person(&open.opened.metadata);
                }
            }
            Some(PlantedBug::ContinuationLost) => {
                commit.opened.retain(|open| open.opened.origin.continues().is_none());
                commit.tasks.retain(|task| task.queued.task.origin.continues().is_none());
            }
            Some(PlantedBug::OutboxBeforeCommit) => {
                if let Some(batch) = &commit.outbox {
                    self.send_outbox(address, batch.clone(), 1);
                }
            }
            Some(PlantedBug::ArmedAfterError) => super::timers::arm_after_error(commit),
            Some(PlantedBug::StoppedTurnGoesOn) => promises::go_on(commit),
            Some(PlantedBug::QueueShuffled) => {
                let tasks = &mut commit.tasks;
                if let [first, .., last] = tasks.as_mut_slice()
                    && first.queued.task.agent == last.queued.task.agent
                {
                    std::mem::swap(&mut first.queued.position, &mut last.queued.position);
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, address: Address) {
        self.schedule(self.scenario.limits.tick_ms, WorldEvent::Session(address, SessionEvent::Tick));
        let (time, lease_ms, bug) = (self.time, self.scenario.lease_ms, self.bug);
        let Some(session) = self.session(address) else { return };
        if bug == Some(PlantedBug::GapClockReset) && std::mem::take(&mut session.planted.has_entries) {
            session.planted.frozen_ms += time - session.ticked_at;
        }
        if time - session.renewed_at >= lease_ms / 3 {
            session.renewed_at = time;
            let known = session.known;
            self.send(address, StatementKind::Renew(known));
        }
        let now = self.now(address);
        let Some(WorkerSession { machine: Some(machine), .. }) = self.session(address) else { return };
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            self.drive(address, Input::Tick);
        }
        if self.fault(|faults| faults.shed) {
            self.shed(address);
        }
        self.offer_room(address);
        self.watch_gaps(address);
        self.reread_timers(address);
        self.watch_timers(address);
        self.watch_deadlines(address);
    }

    fn shed(&mut self, address: Address) {
        let bytes = self.rng.pick([1, 100, 1_000, 100_000]);
        let Some(WorkerSession { machine: Some(machine), watch, .. }) = self.session(address) else { return };
        let before = machine.load().0;
        watch.clear();
        self.drive(address, Input::Shed(bytes));
        let Some(WorkerSession { machine: Some(machine), .. }) = self.session(address) else { return };
        self.coverage.sheds += u64::from(machine.load().0 < before);
    }

    /// Tells the machine about room while messages wait in the stream.
    fn offer_room(&mut self, address: Address) {
        let (now, max_open) = (self.now(address), self.scenario.max_open);
        let Some(WorkerSession { machine: Some(machine), .. }) = self.session(address) else { return };
        if machine.load().0 < max_open && machine.stats(now).deferring {
            self.drive(address, Input::Room);
        }
    }

    /// Checks that a gap that nothing can close fails its message within the timeout, and so does
    /// endless silence. Time counts only while the owner has read everything and nothing blocks it.
    fn watch_gaps(&mut self, address: Address) {
        let limits = self.scenario.limits;
        let (now, time) = (self.now(address), self.time);
        let doomed = std::mem::take(&mut self.doomed);
        let mut late = None;
        let worker = &mut self.workers[address.worker];
        if let Some(WorkerSession {
            machine: Some(machine), watch, ticked_at, is_caught_up, in_flight, ..
        }) = worker.sessions.get_mut(&address.partition).filter(|session| session.address == address)
        {
            let passed = (time - *ticked_at).min(limits.tick_ms);
            let in_peace = *is_caught_up && in_flight.is_none() && !machine.stats(now).deferring;
            let read = machine.last_seq().0;
            let seqs = &self.planned_seqs[usize::from(address.partition.0)];
            for (planned, key, after_ms) in &doomed[usize::from(address.partition.0)] {
                let seq = seqs.get(*planned as usize - 1);
                if !in_peace || seq.is_none_or(|seq| *seq > read) || self.store.has_ended(key) {
                    continue;
                }
                let age = watch.entry(key.clone()).or_default();
                *age += passed;
                if *age > after_ms + 6 * limits.tick_ms + 1_000 {
                    late = Some((key.clone(), *after_ms, *age));
                }
            }
        }
        self.doomed = doomed;
        if let Some((key, after_ms, age)) = late {
            let expected = format!("a failure after {after_ms} ms");
            let is_gap = after_ms == limits.gap_timeout_ms;
            let invariant = if is_gap { Invariant::GapTimeout } else { Invariant::InTime };
            let violation = Violation::new(invariant, key, expected, format!("none after {age} ms"));
            self.violate(violation);
        }
    }

    pub(super) fn drop_session(&mut self, address: Address) {
        if self.session(address).is_some()
            && let Some(session) = self.workers[address.worker].sessions.remove(&address.partition)
        {
            self.collect(session);
        }
    }

    /// Keeps the counters of a machine that is dropped.
    pub(super) fn collect(&mut self, session: WorkerSession) {
        let Some(mut machine) = session.machine else { return };
        self.coverage.replays_cut_short += u64::from(!session.is_caught_up);
        let counters = machine.take_counters();
        let coverage = &mut self.coverage;
        coverage.entries += counters.entries;
        coverage.completed += counters.completed;
        coverage.gap_timeouts += counters.gap_timeouts;
        coverage.conflicts += counters.conflicts;
        coverage.late += counters.late;
        coverage.overtaken += counters.fenced;
        coverage.resets += counters.resets;
        coverage.deferred += counters.deferred;
        coverage.spills += counters.spills;
        coverage.not_asked += counters.unauthorized;
        coverage.duplicate_commands += counters.duplicate_commands;
        coverage.tasks += counters.tasks;
        coverage.turns_completed += counters.turns_completed;
        coverage.turns_stopped += counters.turns_stopped;
        coverage.turns_failed += counters.turns_failed;
        coverage.tasks_failed += counters.tasks_failed;
        coverage.backoffs += counters.backoffs;
        coverage.erased_commands += counters.erased_commands;
    }
}

fn brief(action: &Action) -> String {
    match action {
        Action::Lookup(keys) => format!("{keys:?}"),
        Action::Publish(release) => {
            let ids = (release.chunks.first(), release.chunks.last());
            let ids = (ids.0.map(|chunk| chunk.id), ids.1.map(|chunk| chunk.id));
            let frame = release.frame;
            format!("{} attempt {} chunks {ids:?} {frame:?}", release.key, release.attempt)
        }
        Action::Save(save) => {
            let parts = save.messages.iter().map(|part| format!("{}+{}", part.key, part.chunks.len()));
            let inputs = save.turns.iter().map(|open| open.opened.turn.to_string());
            format!("{:?}", parts.chain(inputs).collect::<Vec<_>>())
        }
        Action::Commit(commit) => format!("checkpoint {} turns {}", commit.checkpoint, commit.weight()),
        Action::End(ending) => {
            format!("{} {:?} at {} {:?}", ending.key, ending.outcome, ending.position, ending.frame)
        }
        Action::Reread(seq) => format!("{seq}"),
        Action::Report(report) => format!("{report:?}"),
        Action::Snapshot(answer) => format!("{:?} {} open", answer.cut, answer.open.len()),
        Action::ChangedThreads(sent) => format!("up to {}", sent.number),
        Action::CheckLease(seen_epoch) => format!("above {seen_epoch}"),
        Action::Check(keys) => format!("{keys:?}"),
        Action::Start(start) => format!("{} run {}", start.turn, start.run),
        Action::Abandon { turn, run } => format!("{turn} run {run}"),
        Action::LoadTasks { agent, after, .. } => format!("{agent} after {after}"),
        Action::DecideTimers(due) => format!("{due:?}"),
        Action::LoadTimers { from_ms, .. } => format!("in {from_ms} ms and later"),
        Action::DelayTask { seq, delayed } => format!("{} of {seq}", delayed.task.id),
        Action::Send(batch) => format!("{}", batch.id),
        Action::Status(explanation) => format!("{explanation:?}"),
    }
}
