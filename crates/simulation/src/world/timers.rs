//! Timers: the answers of store and rules for due timers, the clock that jumps to the next timer,
//! and persons who write at that time.

use model::{
    AgentId, BusyPolicy, Command, DelayedTask, Metadata, PartitionId, Position, Seq, Task, TaskId, TaskKind,
    TaskOrigin, ThreadId, TimerId, TimerKind, Timestamp, TriggerType, TurnId, TurnOpened, TurnOptions,
    TurnOrigin,
};
use partition::{
    Commit, DueSchedule, DueTimer, EntryBody, Input, NewWork, Start, StreamEntry, TaskDelay, TimerDecision,
    TimerState, TimerVerdict, decide_timer,
};
use serde_json::{Value, json};

use super::World;
use super::in_flight_sql::ASKED_AGAIN_MS;
use crate::bug::PlantedBug;
use crate::checker::turns::{TimerEvent, TimerStep, TransitionKind, is_follow_up};
use crate::checker::{Invariant, Violation};
use crate::publisher::commands::partition_of;
use crate::scenario::FollowUpProfile;
use crate::store::own_work::DELAYED;
use crate::store::timer_rows::{DecidedAt, TimerRow};
use crate::world::event::{Address, WorldEvent};
use crate::world::state::session::WorkerSession;

/// Interval of the check whether everything is idle, ms.
const REST_MS: i64 = 120;
/// Workers read their timers again at this interval, ms.
const REREAD_MS: i64 = 60_000;
/// A timer that is due within this time is waited for instead of jumped to, ms.
const SOON_MS: i64 = 400;

impl World {
    /// Plans the schedules, delayed tasks and other events that exist from the start.
    pub(super) fn plan_timers(&mut self, threads: &[(ThreadId, PartitionId)]) {
        let Some(profile) = self.scenario.follow_ups.clone() else { return };
        self.store.timers.ahead_ms = profile.ahead_ms;
        (self.follow_ups.persons, self.follow_ups.jumps) = (profile.persons, profile.jumps);
        self.schedule(REST_MS, WorldEvent::GoAhead);
        for number in 0..profile.schedules {
            let (thread, _) = &threads[self.follow_ups.rng.index(threads.len())];
            let at = self.follow_ups.rng.pick([0, 0, 700, 2_500]);
            self.schedule(at, WorldEvent::PutSchedule(thread.agent(), number));
        }
        for number in 0..profile.delayed_tasks {
            let (thread, _) = &threads[self.follow_ups.rng.index(threads.len())];
            let at = self.follow_ups.rng.range(0, self.scenario.faults_until / 2);
            self.schedule(at, WorldEvent::PutTask(thread.agent(), number));
        }
    }

    /// Creates a schedule as a gateway does; owners are notified.
    pub(super) fn put_schedule(&mut self, agent: &AgentId, number: usize) {
        let Ok(id) = TimerId::of_agent(TimerKind::Schedule, agent, &format!("s{number}")) else { return };
        let rng = &mut self.follow_ups.rng;
        let now = self.store.database_ms(self.time);
        let cron = rng.pick(["*/10 * * * *", "30 * * * *", "15 2 * * *", "0 3 * * *"]);
        let schedule = DueSchedule {
            cron: Some(cron.to_owned()),
            at: None,
            time_zone: rng.pick(["UTC", crate::scenario::ZONE]).to_owned(),
            overlap: rng.pick(["skip", "queue"]).to_owned(),
            missed: rng.pick(["skip", "one"]).to_owned(),
            content: "report".to_owned(),
            metadata: Metadata::EMPTY,
            unfinished: 0,
        };
        // The cron pattern does not matter here: the gateway decides when the first occurrence is
        // due.
        let due = now - now.rem_euclid(600_000) + 600_000;
        self.store.timers.schedules.insert(id.clone(), schedule);
        let body = json!({ "schedule": format!("s{number}") });
        self.put_timer(&id, agent, due, &body, now);
    }

    pub(super) fn put_task(&mut self, agent: &AgentId, number: usize) {
        let Ok(id) = TimerId::of_agent(TimerKind::Task, agent, &format!("d{number}")) else { return };
        let now = self.store.database_ms(self.time);
        let due = now + self.follow_ups.rng.pick([1, 500, 60_000, 3 * 86_400_000]);
        let task = format!("{DELAYED}{number}");
        if self.follow_ups.rng.chance(0.5) {
            // A service sends the task.
            let Ok(task) = TaskId::parse(&task) else { return };
            let task = Task {
                agent: agent.clone(),
                id: task,
                kind: TaskKind::Task,
                content: "delayed".to_owned(),
                origin: TaskOrigin::of_sender(&Metadata::EMPTY),
                metadata: Metadata::EMPTY,
            };
            let delayed = DelayedTask { task, not_before: Timestamp(due) };
            return self.publish_command(Command::DelayedTask(Box::new(delayed)));
        }
        self.put_timer(&id, agent, due, &delayed_body(&task), now);
    }

    /// Requests that a delayed task is stored. Any worker may do this, any number of times.
    pub(super) fn request_delay(&mut self, address: Address, seq: Seq, delayed: Box<DelayedTask>) {
        let Some(delay) = self.in_order(address) else { return };
        self.schedule(delay, WorldEvent::DelayTask(address, seq, delayed));
    }

    pub(super) fn delay_task(&mut self, address: Address, seq: Seq, delayed: DelayedTask) {
        let DelayedTask { task, not_before } = delayed;
        let id = TimerId::of_task(&task.agent, &task.id);
        let outcome = match self.store.is_erased(&task.agent.thread()) {
            true => TaskDelay::Erased,
            false => TaskDelay::Stored,
        };
        if self.store.timer(&id).is_none() {
            let now = self.store.database_ms(self.time);
            self.put_timer(&id, &task.agent, not_before.0, &delayed_body(task.id.as_str()), now);
        }
        let Some(delay) = self.in_order(address) else { return };
        self.answer(address, delay, Input::TaskDelayed { seq, outcome: Some(outcome) });
    }

    fn put_timer(&mut self, id: &TimerId, agent: &AgentId, due: i64, body: &Value, now: i64) {
        if self.missing.contains(&agent.thread()) || self.store.is_erased(&agent.thread()) {
            return;
        }
        let body = body.as_object().cloned().and_then(|body| Metadata::new(body).ok()).unwrap_or_default();
        let agent = agent.clone();
        let created_in = self.store.commits;
        let row = TimerRow { thread: None, agent, state: "pending", due, body, created_in, ended: None };
        self.store.put_timer(id, row, now);
        self.note(90, [due as u64, 0, 0], || format!("{id} is put, due in {} ms", due - now));
        let partition = self.store.timer_partition(id);
        let sessions = self.workers.iter().filter(|worker| worker.is_up);
        let addresses: Vec<Address> =
            sessions.filter_map(|worker| Some(worker.sessions.get(&partition)?.address)).collect();
        for address in addresses {
            let delay = self.follow_ups.rng.range(1, 30);
            self.answer(address, delay, Input::TimersChanged);
        }
    }

    /// Queries run one after the other, like those about commands.
    fn in_order(&mut self, address: Address) -> Option<i64> {
        let (delay, time) = (self.look_up_delay(), self.time);
        let session = self.session(address)?;
        session.timers_at = session.timers_at.max(time + delay);
        Some(session.timers_at - time)
    }

    pub(super) fn request_timers(&mut self, address: Address, due: Vec<TimerId>) {
        let Some(delay) = self.in_order(address) else { return };
        self.schedule(delay, WorldEvent::DecideTimers(address, due));
    }

    pub(super) fn request_window(&mut self, address: Address, from_ms: i64, limit: usize) {
        let Some(delay) = self.in_order(address) else { return };
        self.schedule(delay, WorldEvent::LoadTimers(address, from_ms, limit));
    }

    pub(super) fn load_timers(&mut self, address: Address, from_ms: i64, limit: usize) {
        if !self.is_owner(address) {
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::LoadTimers(address, from_ms, limit));
        }
        let page = self.store.timer_page(address.partition, Some(from_ms), limit, self.time);
        let Some(delay) = self.in_order(address) else { return };
        self.answer(address, delay, Input::Timers(page));
    }

    pub(super) fn decide_timers(&mut self, address: Address, due: Vec<TimerId>) {
        if !self.is_owner(address) {
            return self.schedule(ASKED_AGAIN_MS, WorldEvent::DecideTimers(address, due));
        }
        let decisions: Vec<TimerDecision> = due.into_iter().map(|id| self.decision(address, id)).collect();
        for TimerDecision { id, verdict, .. } in &decisions {
            self.note(91, [id.bucket().get().into(), 0, 0], || format!("{address:?} {id}: {verdict:?}"));
            if let TimerVerdict::Fire { .. } | TimerVerdict::End { .. } = verdict {
                let (database_ms, after) = (self.store.database_ms(self.time), self.store.commits);
                self.store.timers.decided.insert(id.clone(), DecidedAt { database_ms, after });
            }
            if let TimerVerdict::Fire { work: NewWork::Turn(opened), .. } = verdict
                && self.bug == Some(PlantedBug::FiredBeforeCommit)
            {
                self.publish_command(Command::Turn(opened.clone()));
            }
        }
        let Some(delay) = self.in_order(address) else { return };
        self.answer(address, delay, Input::TimersDecided(decisions));
    }

    pub(super) fn settings(&self) -> serde_json::Map<String, Value> {
        let profile = self.scenario.follow_ups.as_ref();
        profile.map(|profile| profile.settings(self.time)).unwrap_or_default()
    }

    fn decision(&mut self, address: Address, id: TimerId) -> TimerDecision {
        if id.kind() == TimerKind::FollowUp && !self.is_quiet && self.refused.now() {
            self.coverage.unreadable_timers += 1;
            return TimerDecision::unreadable(id);
        }
        let skew = self.workers[address.worker].skew;
        let mut found = self.store.due_timer(&id, self.settings(), self.time);
        if let Some(timer) = &mut found {
            // A store that has gone back in time may have deleted schedules again.
            timer.schedule = timer.schedule.take().filter(|_| !self.is_quiet);
            spoil(timer, self.bug, skew, &self.store.timers.events);
        }
        let mut decision = decide_timer(id, found, &mut Vec::new());
        if self.bug == Some(PlantedBug::OccurrenceByNow)
            && let TimerVerdict::Fire { work: NewWork::Task(task), next: Some(_) } = &mut decision.verdict
            && let Ok(renamed) =
                model::TaskId::parse(&format!("{}-{}", decision.id, self.store.database_ms(self.time) | 1))
        {
            task.id = renamed;
        }
        decision
    }

    /// Checks again whether a follow-up is still wanted when it begins or counts as begun. Returns
    /// the reason if it is not.
    pub(super) fn superseded_by(&self, start: &Start) -> Option<&'static str> {
        let timer = start.cause.timer()?;
        match self.store.due_timer(timer, self.settings(), self.time) {
            None => Some("message"),
            Some(found) if start.is_adopted => found.is_superseded().then_some("message"),
            Some(found) => found.superseded_by(),
        }
    }

    /// Disables follow-ups while one of them waits for a budget, a limit or a backoff.
    pub(super) fn disable_follow_ups(&mut self, start: &Start) {
        let Some(profile) = self.scenario.follow_ups.as_mut().filter(|_| start.cause.timer().is_some())
        else {
            return;
        };
        if profile.disabled_at.is_none() && self.follow_ups.rng.chance(0.6) {
            profile.disabled_at = Some(self.time + self.follow_ups.rng.range(0, 100));
        }
    }

    /// Checks that no follow-up is requested while the settings disable them.
    pub(super) fn check_enabled(&mut self, start: &Start) {
        if start.cause.timer().is_some() && self.settings().is_empty() {
            let subject = format!("run {} of {}", start.run, start.turn);
            let expected = "no request: follow-ups are disabled";
            self.violate(Violation::new(Invariant::Restraint, subject, expected, "a request"));
        }
    }

    /// Checks that no follow-up is stored if its owner has read a later input of a person than the
    /// one that the follow-up follows.
    pub(super) fn check_withheld(&mut self, address: Address, commit: &Commit) {
        let follow_ups: Vec<TurnId> =
            commit.turns.iter().map(|write| &write.turn).filter(|turn| is_follow_up(turn)).cloned().collect();
        if follow_ups.is_empty() || self.rules.went_back(address.partition) {
            return;
        }
        let Some(WorkerSession { machine: Some(machine), .. }) = self.session(address) else { return };
        if machine.is_deferring() {
            return;
        }
        let read = machine.last_seq().0;
        // A message that retention has deleted is not known to have arrived.
        let retired = |thread: &ThreadId| self.rules.retired.iter().any(|(of, _)| of == thread);
        let is_retired =
            commit.turns.iter().any(|write| write.messages.iter().any(|m| retired(&m.key.thread)));
        if is_retired {
            return;
        }
        for write in commit.turns.iter().filter(|write| follow_ups.contains(&write.turn)) {
            let Some(thread) = write.messages.first().map(|message| message.key.thread.clone()) else {
                continue;
            };
            let Some(armed) = self.armed_number(&write.turn) else { continue };
            let newer = self.commands.iter().find(|ordered| {
                let Command::Turn(opened) = &ordered.command else { return false };
                ordered.partition == address.partition
                    && ordered.seq <= read
                    && opened.thread == thread
                    && opened.run == 0
                    && !opened.origin.is_synthetic()
                    && self.ended_number(&opened.turn).is_none_or(|ended| ended > armed)
            });
            if let Some(newer) = newer {
                let (subject, expected) = (write.turn.to_string(), "nothing: a person has written");
                let seen = format!("its answer is committed, entry {} was read", newer.seq);
                self.violate(Violation::new(Invariant::HeldBack, subject, expected, seen));
            }
        }
    }

    /// The transaction that armed the timer of a follow-up.
    fn armed_number(&self, turn: &TurnId) -> Option<u64> {
        let is_its = |event: &&TimerEvent| {
            matches!(event.step, TimerStep::Armed { .. }) && event.timer.turn().as_ref() == Ok(turn)
        };
        self.store.timers.events.iter().find(is_its).map(|event| event.number)
    }

    fn ended_number(&self, turn: &TurnId) -> Option<u64> {
        self.store.history.iter().find_map(|happened| match &happened.what {
            TransitionKind::Ended { turn: ended, .. } if ended == turn => Some(happened.number),
            _ => None,
        })
    }

    /// Checks that nothing of a follow-up is sent before its commit.
    pub(super) fn check_held_back(&mut self, thread: &ThreadId, message: &model::MessageId) {
        let Some((turn, _)) = TurnId::of_answer(message).filter(|(turn, _)| is_follow_up(turn)) else {
            return;
        };
        let partition = partition_of(thread.as_str(), self.scenario.partitions);
        let tables = &self.store.tables[usize::from(partition.0)];
        if !tables.committed.contains(&(thread.clone(), turn.clone()))
            && !self.rules.went_back(partition)
            && !self.rules.erased.contains(thread)
            && !self.rules.retired.iter().any(|(of, _)| of == thread)
        {
            let (expected, seen) = ("nothing before its commit", "a frame");
            self.violate(Violation::new(Invariant::HeldBack, turn, expected, seen));
        }
    }

    /// A planted bug: chunks of follow-ups are sent as they arrive.
    pub(super) fn show_follow_up(&mut self, entry: &StreamEntry) {
        let EntryBody::Frame(frame) = &entry.body else { return };
        for arrival in &frame.chunks {
            let is_its = TurnId::of_answer(&arrival.message).is_some_and(|(turn, _)| is_follow_up(&turn));
            if is_its {
                self.check_held_back(&frame.thread, &arrival.message);
            }
        }
    }

    /// Reads the timers again. An erasure is not a commit of the owner: if a step back undoes the
    /// erasure, the store has timers again that the owner lacks.
    pub(super) fn reread_timers(&mut self, address: Address) {
        let time = self.time;
        let Some(session) = self.session(address) else { return };
        if time - session.timers_reread_at >= REREAD_MS {
            session.timers_reread_at = time;
            self.drive(address, Input::TimersChanged);
        }
    }

    /// Checks that a due timer is decided in time. Time counts only while its owner has read
    /// everything and nothing blocks it.
    pub(super) fn watch_timers(&mut self, address: Address) {
        if self.scenario.follow_ups.is_none() {
            return;
        }
        let (limits, lease_ms) = (self.scenario.limits, self.scenario.lease_ms);
        let is_undone = !self.rules.erased.is_empty() && self.rules.stepped_back.contains(&address.partition);
        let reread_ms = if is_undone { REREAD_MS } else { 0 };
        let (now, time, db_now) = (self.now(address), self.time, self.store.database_ms(self.time));
        let tables = &self.store.tables[usize::from(address.partition.0)];
        let overdue = tables.timers.iter().filter(|(_, row)| row.is_pending() && row.due <= db_now);
        let overdue: Vec<(TimerId, i64)> = overdue.map(|(id, row)| (id.clone(), row.due)).collect();
        let worker = &mut self.workers[address.worker];
        let Some(session) = worker.sessions.get_mut(&address.partition) else { return };
        let passed = (time - session.ticked_at).min(limits.tick_ms);
        let Some(machine) = &mut session.machine else { return };
        let in_peace = session.is_caught_up
            && session.in_flight.is_none()
            && session.answered_at.max(session.checked_at) < time
            && !machine.stats(now).deferring;
        session.overdue.retain(|timer, _| overdue.contains(timer));
        if !in_peace {
            return;
        }
        let mut late = None;
        for timer in overdue {
            let age = session.overdue.entry(timer.clone()).or_default();
            *age += passed;
            // If a worker was paused while its commit was applied, time counts from the moment when
            // the worker learned of the commit.
            if *age > 6 * limits.tick_ms + 4_000 + 3 * lease_ms + reread_ms {
                late = Some((timer.0, *age));
                *age = i64::MIN / 2;
            }
        }
        if let Some((timer, age)) = late {
            let (expected, seen) = ("decided about soon after it is due", format!("waiting for {age} ms"));
            self.violate(Violation::new(Invariant::TimerInTime, timer, expected, seen));
        }
    }

    /// True if no timer is pending, and no person will write because of one.
    pub(super) fn are_timers_over(&self) -> bool {
        self.follow_ups.coming == 0 && self.store.pending_timers().next().is_none()
    }

    /// True if only the passing of time would change anything.
    fn is_at_rest(&self) -> bool {
        let rests = |session: &WorkerSession| {
            session.actions.is_empty()
                && session.in_flight.is_none()
                && session.reclaiming.is_none()
                && session.timers_at < self.time
                && session.machine().is_some_and(|machine| machine.load().0 == 0)
        };
        let now = crate::log::START + self.time;
        let at_end = |(row, log): (&crate::store::Row, &crate::log::Log)| row.checkpoint == log.len();
        self.store.tables.iter().all(|tables| {
            tables.is_idle()
                && tables.agents.values().all(|row| row.next_run_at.is_none_or(|until| until <= now))
        }) && self.store.rows.iter().zip(&self.logs).all(at_end)
            && !self.has_statements_under_way()
            && self.erasing.is_over()
            && self
                .workers
                .iter()
                .all(|worker| !(worker.is_up && worker.is_paused) && worker.sessions.values().all(rests))
    }

    /// Advances the clocks of the database and of workers to just before the next due time, or days
    /// beyond it while no worker runs.
    pub(super) fn go_ahead(&mut self) {
        self.schedule(REST_MS, WorldEvent::GoAhead);
        let now = self.store.database_ms(self.time);
        let next = self.store.pending_timers().map(|(_, row)| (row.due, row.thread.clone())).min();
        let Some((due, thread)) = next.filter(|(due, _)| due - now > SOON_MS) else { return };
        if (!self.is_quiet && self.follow_ups.jumps == 0) || !self.is_at_rest() {
            return;
        }
        self.follow_ups.jumps = self.follow_ups.jumps.saturating_sub(1);
        self.coverage.jumps_ahead += 1;
        let profile = self.scenario.follow_ups.clone();
        let Some(FollowUpProfile { outage, person, .. }) = profile else { return };
        if !self.is_quiet && self.follow_ups.rng.chance(outage) {
            self.coverage.outages_of_days += 1;
            for worker in 0..self.workers.len() {
                if self.workers[worker].is_up {
                    self.crash(worker);
                }
            }
            let days = self.follow_ups.rng.pick([1, 3, 3]);
            return self.jump(due - now + days * 86_400_000);
        }
        let lead = self.follow_ups.rng.pick([1, 20, 100, 300]);
        self.jump(due - now - lead);
        let is_written = self.follow_ups.persons > 0 && self.follow_ups.rng.chance(person);
        if let Some(thread) = thread.filter(|_| is_written) {
            self.follow_ups.persons -= 1;
            self.follow_ups.coming += 1;
            let after = self.follow_ups.rng.pick([-1, 0, 1, 5, 30, 100, 200, 300, 600, 1_000]);
            self.schedule(lead + after, WorldEvent::Person(thread));
        }
    }

    fn jump(&mut self, by_ms: i64) {
        self.store.timers.ahead_ms += by_ms;
        self.note(92, [by_ms as u64, 0, 0], || format!("the clocks go ahead by {by_ms} ms"));
    }

    pub(super) fn person(&mut self, thread: &ThreadId) {
        self.follow_ups.coming -= 1;
        let Some(profile) = &self.scenario.follow_ups else { return };
        let number = self.follow_ups.written;
        self.follow_ups.written += 1;
        let rng = &mut self.follow_ups.rng;
        let busy_policy = rng.pick([
            BusyPolicy::Enqueue,
            BusyPolicy::Enqueue,
            BusyPolicy::Reject,
            BusyPolicy::Interrupt,
            BusyPolicy::Rollback,
        ]);
        let Ok(turn) = TurnId::foreground(thread, &format!("x{number}")) else { return };
        let metadata = profile.metadata(number);
        let opened = TurnOpened {
            turn,
            thread: thread.clone(),
            agent: thread.agent(),
            run: 0,
            content: FollowUpProfile::content(number),
            origin: TurnOrigin::of_person(&metadata),
            metadata,
            actor: None,
            options: TurnOptions { busy_policy, ..TurnOptions::default() },
        };
        self.publish_command(Command::Turn(Box::new(opened)));
    }

    /// When the faults stop, schedules end.
    pub(super) fn end_schedules(&mut self) {
        self.store.timers.schedules.clear();
    }

    pub(super) fn count_timers(&mut self) {
        for TimerEvent { timer, step, .. } in &self.store.timers.events {
            let coverage = &mut self.coverage;
            let is_follow_up = timer.kind() == TimerKind::FollowUp;
            let counter = match step {
                TimerStep::Armed { .. } if is_follow_up => &mut coverage.follow_ups_armed,
                TimerStep::Armed { .. } => continue,
                TimerStep::Fired { .. } if is_follow_up => &mut coverage.follow_ups_fired,
                TimerStep::Fired { .. } => &mut coverage.tasks_fired,
                TimerStep::Postponed { by } => match by.as_deref() {
                    Some("cooldown") => &mut coverage.cooldowns,
                    Some("quiet_hours") => &mut coverage.quiet_hours,
                    Some("overlap" | "missed") => &mut coverage.occurrences_skipped,
                    Some(_) | None => continue,
                },
                TimerStep::Ended { state, by, .. } => match (*state, by.as_str()) {
                    ("withdrawn", "message") => &mut coverage.follow_ups_withdrawn,
                    ("withdrawn", _) => &mut coverage.follow_ups_failed,
                    ("cancelled", "message") => &mut coverage.follow_ups_cancelled,
                    ("cancelled", "replaced") => &mut coverage.follow_ups_replaced,
                    ("refused", "max_in_a_row") => &mut coverage.refused_in_a_row,
                    ("refused", "max_per_day") => &mut coverage.refused_per_day,
                    ("refused", "disabled") => &mut coverage.refused_disabled,
                    ("refused", "paused") => &mut coverage.refused_paused,
                    _ => continue,
                },
            };
            *counter += 1;
        }
    }
}

fn delayed_body(task: &str) -> Value {
    json!({ "task": { "id": task, "content": "delayed" } })
}

/// Planted bugs in the data that the rules evaluate.
fn spoil(timer: &mut DueTimer, bug: Option<PlantedBug>, skew: i64, events: &[TimerEvent]) {
    match bug {
        Some(PlantedBug::CapCheckedAfterCall) => timer.fired_since_real_input = 0,
        Some(PlantedBug::CountNotReset) => {
            let fired = |event: &&TimerEvent| {
                event.thread == timer.thread && matches!(event.step, TimerStep::Fired { .. })
            };
            timer.fired_since_real_input = events.iter().filter(fired).count() as u32;
        }
        Some(PlantedBug::CooldownIgnored) => {
            timer.fired_at.iter_mut().for_each(|at| *at = at.plus_ms(-86_400_000))
        }
        Some(PlantedBug::QuietHoursByUtc) => {
            if let Some(written) = timer.settings.get_mut("follow_ups").and_then(Value::as_object_mut) {
                written.remove("time_zone");
            }
            if let Some((_, _, said)) = &mut timer.real_input {
                *said = Metadata::EMPTY;
            }
        }
        Some(PlantedBug::DueByWorkerClock) if timer.state == TimerState::Pending => {
            timer.now = timer.now.plus_ms(skew);
            timer.is_due = timer.due <= timer.now;
        }
        _ => {}
    }
}

/// A planted bug: a failed turn arms a follow-up too.
pub(super) fn arm_after_error(commit: &mut Commit) {
    let Some(failed) = commit.failed_turns.first() else { return };
    let position = Position::from_stored(commit.position_high_water.0 << 22);
    let body = json!({ "trigger_type": "check_in", "reason": "", "armed_position": position.to_string() });
    commit.timers.push(partition::TimerWrite::Arm(partition::ArmedTimer {
        id: TimerId::follow_up(&failed.opened.thread, position),
        thread: Some(failed.opened.thread.clone()),
        agent: failed.opened.agent.clone(),
        wait_ms: 30_000,
        body: body.as_object().cloned().and_then(|body| Metadata::new(body).ok()).unwrap_or_default(),
        armed_by: Some(failed.opened.turn.clone()),
    }));
}

/// A planted bug: the text of an input decides whether it is synthetic.
pub(super) fn judge_by_content(opened: &mut TurnOpened, bug: Option<PlantedBug>) {
    let is_marked = opened.content.starts_with("[AUTONOMOUS_FOLLOWUP");
    opened.origin = match bug {
        // No batch has this position, so that the input begins one of its own.
        Some(PlantedBug::SyntheticByContent) if is_marked => TurnOrigin::Heartbeat { batch: Position::MAX },
        Some(PlantedBug::OrdinaryAnswerWithdrawn)
            if opened.turn.as_str().contains("-i") && opened.run == 0 =>
        {
            let timer = TimerId::follow_up(&opened.thread, Position::from_stored(1));
            TurnOrigin::FollowUp { timer, trigger: TriggerType::CheckIn, reason: "planted".into() }
        }
        _ => return,
    };
}
