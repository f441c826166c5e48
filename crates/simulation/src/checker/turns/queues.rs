//! Queues, backoffs and threads, replayed transaction by transaction.

use std::collections::{BTreeMap, BTreeSet};

use model::{AgentId, ControlKind, ErrorClass, MessageKey, Position, RetryHint, ThreadId, TurnId};

use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{AgentRow, RunEnd, Transition, TransitionKind, Turns};
use model::Command;

/// The retry hints of workflows' errors, by answer.
type Errors = BTreeMap<MessageKey, RetryHint>;

/// An agent after the transactions so far.
#[derive(Default)]
struct CheckedQueue {
    row: AgentRow,
    /// Tasks in the store, by position; true if marked failed.
    tasks: BTreeMap<i64, bool>,
}

struct Replay<'a> {
    turns: &'a Turns,
    errors: &'a Errors,
    queues: BTreeMap<AgentId, CheckedQueue>,
    /// Agent and position of each task's turn.
    places: BTreeMap<TurnId, (AgentId, i64)>,
    /// Turns in progress by thread, with the run and the epoch of their owner.
    active: BTreeMap<ThreadId, (TurnId, u32, u64)>,
    /// When control commands on an agent were stored, and when they were audited.
    controls: BTreeMap<&'a AgentId, Vec<(i64, Option<i64>)>>,
    /// The sequence of each task's first entry in the stream.
    command: BTreeMap<(&'a AgentId, &'a model::TaskId), u64>,
    last_entered: BTreeMap<AgentId, (i64, u64)>,
    violations: &'a mut Vec<Violation>,
}

pub(super) fn check(turns: &Turns, errors: &Errors, violations: &mut Vec<Violation>) {
    let mut replay = Replay {
        turns,
        errors,
        queues: BTreeMap::new(),
        places: BTreeMap::new(),
        active: BTreeMap::new(),
        controls: controls(turns),
        command: BTreeMap::new(),
        last_entered: BTreeMap::new(),
        violations,
    };
    for ordered in &turns.ledger {
        if let Command::Task(task) = &ordered.command {
            replay.command.entry((&task.agent, &task.id)).or_insert(ordered.seq);
        }
    }
    let mut rest = turns.history.as_slice();
    while let Some(first) = rest.first() {
        if let TransitionKind::Started { turn, run, thread, is_adopted } = &first.what {
            replay.start(first, (turn, *run), thread, *is_adopted);
            rest = &rest[1..];
            continue;
        }
        let is_same = |next: &&Transition| {
            next.number == first.number && !matches!(next.what, TransitionKind::Started { .. })
        };
        let count = rest.iter().take_while(is_same).count();
        replay.transaction(&rest[..count]);
        rest = &rest[count..];
    }
}

fn controls(turns: &Turns) -> BTreeMap<&AgentId, Vec<(i64, Option<i64>)>> {
    let mut audited: BTreeMap<_, i64> = BTreeMap::new();
    for happened in &turns.history {
        if let TransitionKind::Acted { subject, control, .. } = &happened.what {
            audited.entry((subject, control)).or_insert(happened.at_ms);
        }
    }
    let mut controls: BTreeMap<&AgentId, Vec<(i64, Option<i64>)>> = BTreeMap::new();
    for ordered in &turns.ledger {
        if let Command::Control(control) = &ordered.command {
            let done = audited.get(&(&control.subject, &control.id)).copied();
            controls.entry(&control.subject).or_default().push((ordered.at_ms, done));
        }
    }
    controls
}

impl Replay<'_> {
    fn report(&mut self, invariant: Invariant, subject: impl ToString, expected: String, seen: String) {
        self.violations.push(Violation::new(invariant, subject, expected, seen));
    }

    /// True if a control command on the agent is in the stream, and its owner may have executed it
    /// without having audited it yet.
    fn acts_are_under_way(&self, agent: &AgentId, at_ms: i64) -> bool {
        let controls = self.controls.get(agent).map_or(&[][..], Vec::as_slice);
        controls.iter().any(|(sent, done)| *sent <= at_ms && done.is_none_or(|done| done >= at_ms))
    }

    fn start(&mut self, at: &Transition, (turn, run): (&TurnId, u32), thread: &ThreadId, is_adopted: bool) {
        let here = (turn.clone(), run, at.number);
        if let Some((other, of, epoch)) = self.active.insert(thread.clone(), here)
            && epoch == at.number
            && (&other, of) != (turn, run)
        {
            let expected = format!("run {of} of {other} to end first");
            self.report(
                Invariant::OneAtATime,
                thread,
                expected,
                format!("run {run} of {turn} at {} ms", at.at_ms),
            );
        }
        let Some((agent, position)) = self.places.get(turn).cloned() else {
            if turn.as_str().starts_with('t') {
                self.report(Invariant::Fifo, turn, "a task in its queue".to_owned(), "a start".to_owned());
            }
            return;
        };
        if self.acts_are_under_way(&agent, at.at_ms) {
            return;
        }
        let Some(CheckedQueue { row, tasks }) = self.queues.get(&agent) else { return };
        let first = tasks.iter().find(|(place, is_failed)| **place > row.head && !**is_failed);
        let first = first.map(|(place, _)| *place);
        let wait = row.next_run_at.filter(|until| *until > at.at_ms);
        let (is_paused, expected_run) = (row.is_paused, row.run);
        let subject = format!("{turn} of {agent} at {} ms", at.at_ms);
        if first != Some(position) {
            let expected = format!("a start of the first task, {first:?}");
            self.report(Invariant::Fifo, &subject, expected, format!("a start of {position}"));
        } else if expected_run != run {
            let expected = format!("run {expected_run}");
            self.report(Invariant::RunsOnce, &subject, expected, format!("run {run}"));
        }
        if is_adopted {
            return;
        }
        if let Some(until) = wait {
            let expected = format!("no start before {until} ms");
            self.report(Invariant::Backoff, &subject, expected, "a start".to_owned());
        }
        if is_paused {
            self.report(Invariant::Backoff, &subject, "no start: paused".to_owned(), "a start".to_owned());
        }
    }

    fn transaction(&mut self, group: &[Transition]) {
        for happened in group {
            match &happened.what {
                TransitionKind::Queued { agent, task, position } => self.entered(agent, task, *position),
                TransitionKind::Marked { agent, position, .. } => self.mark(agent, *position),
                TransitionKind::Ended { turn, run, thread, .. }
                    if self.active.get(thread).is_some_and(|(other, of, _)| (other, *of) == (turn, *run)) =>
                {
                    self.active.remove(thread);
                }
                TransitionKind::TakenBack { turn } => {
                    self.active.retain(|_, (other, ..)| other != turn);
                }
                _ => {}
            }
        }
        let mut written: BTreeSet<&AgentId> = BTreeSet::new();
        for happened in group {
            if let TransitionKind::Agent { agent, row, wait_ms } = &happened.what {
                written.insert(agent);
                self.moved(agent, row, *wait_ms, happened.at_ms, group);
            }
        }
        self.acts_have_effects(group);
        for happened in group {
            match &happened.what {
                TransitionKind::Ended { turn, run, .. } => self.ended(turn, *run, &written),
                TransitionKind::Requeued { agent, from, to } => {
                    let queue = self.queues.entry(agent.clone()).or_default();
                    queue.tasks.remove(from);
                    queue.tasks.insert(*to, false);
                    self.place(agent, *to);
                }
                TransitionKind::Removed { agent, position } => {
                    self.queues.entry(agent.clone()).or_default().tasks.remove(position);
                }
                _ => {}
            }
        }
    }

    /// Checks that each action that the audit reports as done was done in the same transaction.
    fn acts_have_effects(&mut self, group: &[Transition]) {
        for happened in group {
            let TransitionKind::Acted { subject, control: id, is_done: true } = &happened.what else {
                continue;
            };
            let Some(control) = act_of(self.turns, subject, id) else { continue };
            let is_done = |what: &TransitionKind| match (&control.kind, what) {
                (
                    ControlKind::DropTask(_),
                    TransitionKind::Marked { agent, .. } | TransitionKind::Removed { agent, .. },
                )
                | (ControlKind::RetryTask(_), TransitionKind::Requeued { agent, .. }) => agent == subject,
                (
                    ControlKind::StopTurn(turn),
                    TransitionKind::Ended { turn: ended, .. } | TransitionKind::TakenBack { turn: ended },
                ) => turn == ended,
                (ControlKind::Pause, TransitionKind::Agent { agent, .. })
                | (ControlKind::Resume, TransitionKind::Agent { agent, .. })
                | (ControlKind::ClearBackoff, TransitionKind::Agent { agent, .. }) => agent == subject,
                (ControlKind::EditTask { .. } | ControlKind::DropFailedTurn(_), _) => true,
                _ => false,
            };
            if !group.iter().any(|happened| is_done(&happened.what)) {
                let expected = format!("{:?} done with its audit", control.kind);
                self.report(Invariant::OrdersEnd, id, expected, "nothing".to_owned());
            }
        }
    }

    fn place(&mut self, agent: &AgentId, position: i64) {
        let turn = TurnId::of_task(agent, Position::from_stored(position));
        self.places.insert(turn, (agent.clone(), position));
    }

    /// Positions rise in the order of the stream's entries.
    fn entered(&mut self, agent: &AgentId, task: &model::TaskId, position: i64) {
        self.queues.entry(agent.clone()).or_default().tasks.insert(position, false);
        self.place(agent, position);
        let seq = self.command.get(&(agent, task)).copied();
        let Some(seq) = seq else {
            let subject = format!("{agent}/{task}");
            return self.report(
                Invariant::Fifo,
                subject,
                "nothing: never sent".to_owned(),
                "a task".to_owned(),
            );
        };
        let (before, earlier) = self.last_entered.get(agent).copied().unwrap_or_default();
        self.last_entered.insert(agent.clone(), (position, earlier.max(seq)));
        // A task that a commit itself adds has no entry.
        if before >= position || (seq > 0 && earlier >= seq) {
            let expected = format!("a place above {before} for an entry after {earlier}");
            let subject = format!("{agent}/{task}");
            self.report(Invariant::Fifo, subject, expected, format!("{position} for entry {seq}"));
        }
    }

    fn mark(&mut self, agent: &AgentId, position: i64) {
        let queue = self.queues.entry(agent.clone()).or_default();
        match queue.tasks.get_mut(&position) {
            Some(is_failed) => *is_failed = true,
            None => {
                let subject = format!("{position} of {agent}");
                self.report(Invariant::Fifo, subject, "a task to mark".to_owned(), "none".to_owned());
            }
        }
    }

    /// After a task's turn has ended, the head has moved past the task, or the task still is the
    /// head.
    fn ended(&mut self, turn: &TurnId, run: u32, written: &BTreeSet<&AgentId>) {
        let Some((agent, _)) = self.places.get(turn).cloned() else {
            if turn.as_str().starts_with('t') {
                self.report(
                    Invariant::Fifo,
                    turn,
                    "a task in its queue".to_owned(),
                    format!("run {run} ended"),
                );
            }
            return;
        };
        if !written.contains(&agent) {
            let expected = format!("the row of {agent} written with it");
            self.report(Invariant::Backoff, turn, expected, format!("only the end of run {run}"));
        }
    }

    fn moved(
        &mut self,
        agent: &AgentId,
        row: &AgentRow,
        wait_ms: Option<i64>,
        at_ms: i64,
        group: &[Transition],
    ) {
        let mut mine = AgentChanges::of(agent, group, &self.places, (self.turns, self.errors));
        let queue = self.queues.entry(agent.clone()).or_default();
        let before = std::mem::replace(&mut queue.row, row.clone());
        mine.drops_first = mine.drops_first(&before, &queue.tasks);
        let passed = queue.tasks.iter().filter(|(place, _)| **place > before.head && **place <= row.head);
        let lost: Vec<i64> = passed
            .filter(|(place, is_failed)| !**is_failed && !mine.done.contains(place))
            .map(|(place, _)| *place)
            .collect();
        let undone: Vec<i64> = mine.done.iter().copied().filter(|place| *place > row.head).collect();
        if row.head < before.head || !lost.is_empty() || !undone.is_empty() {
            let expected = format!("a head at what is done, {:?}, above {}", mine.done, before.head);
            let seen = format!("{} past {lost:?}, before {undone:?}", row.head);
            self.report(Invariant::Fifo, format!("{agent} at {at_ms} ms"), expected, seen);
        }
        let allowed = mine.allowed(&before, row, wait_ms, at_ms, &self.turns.rules);
        if let Some(expected) = allowed {
            let seen = format!("{row:?} after {before:?}, waiting {wait_ms:?}");
            self.report(Invariant::Backoff, format!("{agent} at {at_ms} ms"), expected, seen);
        }
    }
}

fn act_of<'a>(turns: &'a Turns, subject: &AgentId, id: &model::CommandId) -> Option<&'a model::Control> {
    turns.ledger.iter().find_map(|ordered| match &ordered.command {
        Command::Control(control) if control.id == *id && control.subject == *subject => Some(control),
        _ => None,
    })
}

/// The changes of one transaction to one agent.
#[derive(Default)]
struct AgentChanges {
    /// Positions of tasks that are done or given up in the transaction.
    done: BTreeSet<i64>,
    /// The head was given up.
    gave_up: bool,
    /// A run failed and the task stayed: code, class, and minimum wait in ms.
    kept: Option<(String, ErrorClass, i64)>,
    lifts: bool,
    /// Positions of tasks that were dropped.
    dropped: BTreeSet<i64>,
    /// The first task of the queue was dropped, and its failure count with it.
    drops_first: bool,
    pauses: Option<bool>,
}

impl AgentChanges {
    fn of(
        agent: &AgentId,
        group: &[Transition],
        places: &BTreeMap<TurnId, (AgentId, i64)>,
        (turns, errors): (&Turns, &Errors),
    ) -> Self {
        let mut mine = Self::default();
        let marked: BTreeSet<i64> = group
            .iter()
            .filter_map(|happened| match &happened.what {
                TransitionKind::Marked { agent: of, position, .. } if of == agent => Some(*position),
                _ => None,
            })
            .collect();
        for happened in group {
            match &happened.what {
                TransitionKind::Ended { turn, run, end, thread } => {
                    let Some((_, place)) = places.get(turn).filter(|(of, _)| of == agent) else { continue };
                    match end {
                        RunEnd::Completed | RunEnd::Stopped => drop(mine.done.insert(*place)),
                        RunEnd::Failed(_) if marked.contains(place) => {
                            mine.gave_up = true;
                            mine.done.insert(*place);
                        }
                        RunEnd::Failed(code) => {
                            let (class, floor_ms) = class_of(errors, thread, turn, *run, code);
                            mine.kept = Some((code.clone(), class, floor_ms));
                        }
                    }
                }
                TransitionKind::Marked { agent: of, position, code } if of == agent && code == "dropped" => {
                    mine.dropped.insert(*position);
                }
                TransitionKind::Acted { subject, control, is_done: true } if subject == agent => {
                    mine.control(turns, agent, control)
                }
                _ => {}
            }
        }
        mine
    }

    fn control(&mut self, turns: &Turns, agent: &AgentId, id: &model::CommandId) {
        match act_of(turns, agent, id).map(|control| &control.kind) {
            Some(ControlKind::Pause) => self.pauses = Some(true),
            Some(ControlKind::Resume) => self.pauses = Some(false),
            Some(ControlKind::ClearBackoff) => self.lifts = true,
            _ => {}
        }
    }

    /// True if the first task of the queue before the transaction is among the dropped ones.
    /// `tasks` has them marked as failed.
    fn drops_first(&self, before: &AgentRow, tasks: &BTreeMap<i64, bool>) -> bool {
        let mut pending = tasks
            .range(before.head + 1..)
            .filter(|(place, is_failed)| !**is_failed || self.dropped.contains(place));
        pending.next().is_some_and(|(place, _)| self.dropped.contains(place))
    }

    /// Returns the expectation if the row differs from it.
    fn allowed(
        &self,
        before: &AgentRow,
        row: &AgentRow,
        wait_ms: Option<i64>,
        at_ms: i64,
        rules: &super::evidence::TurnRules,
    ) -> Option<String> {
        let is_auth =
            self.kept.as_ref().is_some_and(|(code, class, _)| *class == ErrorClass::Auth && counts(code));
        let paused = if is_auth { true } else { self.pauses.unwrap_or(before.is_paused) };
        if row.is_paused != paused {
            return Some(format!("paused: {paused}"));
        }
        if !self.done.is_empty() {
            let fresh = (row.run, row.failures, row.next_run_at) == (0, 0, None);
            return (!fresh).then(|| "no backoff after a task is done".to_owned());
        }
        if let Some((code, class, floor_ms)) = &self.kept {
            let base = if self.drops_first || self.lifts { 0 } else { before.failures };
            if row.run == 0 || (!self.drops_first && row.run != before.run + 1) {
                return Some(format!("run {}", before.run + 1));
            }
            if !counts(code) || *class == ErrorClass::Auth {
                let is_same = row.failures == base && (base == 0 || row.next_run_at == before.next_run_at);
                return (!is_same).then(|| "the same backoff".to_owned());
            }
            return counted(base, row, wait_ms, at_ms, *floor_ms, rules);
        }
        let is_same =
            (row.failures, row.next_run_at, row.run) == (before.failures, before.next_run_at, before.run);
        let is_lifted = (self.lifts || self.drops_first) && row.failures == 0 && row.next_run_at.is_none();
        (!is_same && !is_lifted).then(|| "nothing changed".to_owned())
    }
}

/// A task that a later input rolls back has not failed.
fn counts(code: &str) -> bool {
    code != "rolled_back"
}

/// One more failure, and a wait by the database's clock that fits the count.
fn counted(
    base: u32,
    row: &AgentRow,
    wait_ms: Option<i64>,
    at_ms: i64,
    floor_ms: i64,
    rules: &super::evidence::TurnRules,
) -> Option<String> {
    let doublings = row.failures.min(40);
    let ceiling = (rules.backoff_base_ms << doublings).min(rules.backoff_cap_ms.max(rules.backoff_base_ms));
    let (least, most) = ((ceiling / 2).max(rules.backoff_base_ms).max(floor_ms), ceiling.max(floor_ms));
    let is_right = row.failures == base + 1
        && wait_ms.is_some_and(|wait| (least..=most).contains(&wait))
        && row.next_run_at == wait_ms.map(|wait| at_ms + wait);
    (!is_right).then(|| format!("{} failures and a wait from {at_ms} of {least} to {most} ms", base + 1))
}

/// The class of a failure, and the minimum wait that it requests, ms.
fn class_of(errors: &Errors, thread: &ThreadId, turn: &TurnId, run: u32, code: &str) -> (ErrorClass, i64) {
    if code != "producer_error" {
        return (ErrorClass::Transient, 0);
    }
    let key = MessageKey { thread: thread.clone(), message: turn.answer(run) };
    let hint = errors.get(&key);
    hint.map_or((ErrorClass::Transient, 0), |hint| (hint.class, hint.retry_after_ms.unwrap_or(0)))
}
