//! Follow-ups, schedules and delayed tasks: the outcome of each timer, replayed on a separate model
//! of the rules.

use std::collections::{BTreeMap, BTreeSet};

use model::{Command, TaskId, ThreadId, TimerId, TimerKind, TurnId};
use serde_json::Value;

use crate::checker::evidence::Evidence;
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{RunEnd, TransitionKind, TurnPart, Turns, part_of};
use crate::checker::turns::timer_events::{FollowUpLimits, TimerEvent, TimerStep};

/// True if the turn is that of a follow-up, judged by its id.
pub fn is_follow_up(turn: &TurnId) -> bool {
    turn.is_foreground() && turn.as_str().split_once('-').is_some_and(|(_, unique)| unique.starts_with('f'))
}

/// The follow-ups of a thread so far.
#[derive(Default)]
struct FollowedThread {
    /// Follow-ups fired since the last message of a person, except withdrawn ones.
    in_a_row: BTreeSet<TimerId>,
    /// The time at which each follow-up fired, except withdrawn ones.
    fired_at: BTreeMap<TimerId, i64>,
    pending: BTreeSet<TimerId>,
    /// The number of consecutive follow-ups after each transaction that changed it.
    counts: Vec<(u64, usize)>,
}

impl FollowedThread {
    fn count(&mut self, number: u64) {
        self.counts.push((number, self.in_a_row.len()));
    }

    /// The number of consecutive follow-ups after this transaction.
    fn in_a_row_after(&self, number: u64) -> usize {
        let known = self.counts.iter().rev().find(|(counted, _)| *counted <= number);
        known.map_or(0, |(_, count)| *count)
    }
}

/// A timer after its events so far.
#[derive(Default)]
struct CheckedTimer {
    fired: u32,
    is_over: bool,
    occurrences: BTreeSet<i64>,
}

struct Replay<'a> {
    turns: &'a Turns,
    limits: &'a FollowUpLimits,
    /// Threads with deleted old messages: the count since the last message of a person is unknown.
    retired: BTreeSet<&'a ThreadId>,
    /// Turns whose answers are empty or request a continuation.
    not_followed: BTreeSet<TurnId>,
    threads: BTreeMap<ThreadId, FollowedThread>,
    timers: BTreeMap<&'a TimerId, CheckedTimer>,
    violations: &'a mut Vec<Violation>,
}

pub(super) fn check(evidence: &Evidence, turns: &Turns, violations: &mut Vec<Violation>) {
    let Some(limits) = &turns.rules.follow_ups else { return };
    let is_kept = |event: &&TimerEvent| {
        event.thread.as_ref().is_none_or(|thread| !evidence.rules.erased.contains(thread))
    };
    let mut events = turns.timers.iter().filter(is_kept).peekable();
    let mut replay = Replay {
        turns,
        limits,
        retired: evidence.rules.retired.iter().map(|(thread, _)| thread).collect(),
        not_followed: not_followed(evidence),
        threads: BTreeMap::new(),
        timers: BTreeMap::new(),
        violations,
    };
    for happened in &turns.history {
        let TransitionKind::Ended { turn, thread, end, .. } = &happened.what else { continue };
        while let Some(event) = events.next_if(|event| event.number < happened.number) {
            replay.event(event);
        }
        if is_of_person(turns, turn) && !matches!(end, RunEnd::Failed(_)) {
            let of_thread = replay.threads.entry(thread.clone()).or_default();
            of_thread.in_a_row.clear();
            of_thread.count(happened.number);
        }
    }
    events.for_each(|event| replay.event(event));
    check_sent(evidence, turns, violations);
}

/// True if a person opened the turn, so it is not synthetic.
fn is_of_person(turns: &Turns, turn: &TurnId) -> bool {
    turns.ledger.iter().any(|ordered| match &ordered.command {
        Command::Turn(opened) => opened.turn == *turn && !opened.origin.is_synthetic(),
        Command::Task(_) | Command::DelayedTask(_) | Command::Control(_) => false,
    })
}

fn not_followed(evidence: &Evidence) -> BTreeSet<TurnId> {
    let answers = evidence.messages.iter().filter_map(|message| match part_of(&message.key.message) {
        Some((turn, TurnPart::Answer(_))) => Some((turn, message)),
        _ => None,
    });
    let is_not_followed = |message: &crate::checker::MessageRow| {
        message.content.trim().is_empty()
            || message.metadata.get("continuation") == Some(&Value::Bool(true))
            || message.metadata.get("stopped").is_some()
    };
    let turns = answers.filter(|(turn, message)| is_not_followed(message) && !is_follow_up(turn));
    turns.map(|(turn, _)| turn).collect()
}

impl Replay<'_> {
    fn report(&mut self, invariant: Invariant, event: &TimerEvent, expected: impl Into<String>) {
        let (subject, seen) = (format!("{} at {} ms", event.timer, event.at_ms), format!("{:?}", event.step));
        self.violations.push(Violation::new(invariant, subject, expected, seen));
    }
}

impl<'a> Replay<'a> {
    fn event(&mut self, event: &'a TimerEvent) {
        let is_over = self.timers.get(&event.timer).is_some_and(|timer| timer.is_over);
        match &event.step {
            TimerStep::Armed { by, .. } => self.armed(event, by.as_ref()),
            TimerStep::Fired { .. } | TimerStep::Postponed { .. } if is_over => {
                self.report(Invariant::FiresOnce, event, "nothing: it is over");
            }
            TimerStep::Fired { task, due_ms, decided_ms, .. } => {
                self.fired(event, task.as_ref(), *due_ms, *decided_ms);
            }
            TimerStep::Postponed { .. } => {}
            TimerStep::Ended { state, by, decided_after } => self.ended(event, state, by, *decided_after),
        }
    }

    fn armed(&mut self, event: &'a TimerEvent, by: Option<&TurnId>) {
        let Some(thread) = event.thread.as_ref() else { return };
        let others = self.threads.entry(thread.clone()).or_default();
        let waits = others.pending.first().cloned();
        others.pending.insert(event.timer.clone());
        if let Some(other) = waits {
            self.report(Invariant::Restraint, event, format!("none beside {other}, which waits"));
        }
        let is_completed = by.is_some_and(|by| {
            by.is_foreground()
                && self.turns.history.iter().any(|happened| match &happened.what {
                    TransitionKind::Ended { turn, end, .. } => {
                        turn == by && happened.number == event.number && *end == RunEnd::Completed
                    }
                    _ => false,
                })
        });
        if !is_completed || by.is_some_and(|by| self.not_followed.contains(by)) {
            self.report(
                Invariant::ArmedBy,
                event,
                "a completed turn that says something, in its transaction",
            );
        }
    }

    fn fired(&mut self, event: &'a TimerEvent, task: Option<&TaskId>, due_ms: i64, decided_ms: i64) {
        if decided_ms < due_ms {
            self.report(Invariant::TimerInTime, event, format!("nothing before {due_ms} ms"));
        }
        let timer = self.timers.entry(&event.timer).or_default();
        timer.fired += 1;
        let is_again = timer.fired > 1;
        match event.timer.kind() {
            TimerKind::FollowUp | TimerKind::Task if is_again => {
                self.report(Invariant::FiresOnce, event, "nothing: it has fired");
            }
            TimerKind::FollowUp => self.follow_up_fired(event, decided_ms),
            TimerKind::Task => {}
            TimerKind::Schedule => {
                let at = task.and_then(|task| task.as_str().rsplit_once('-')?.1.parse::<i64>().ok());
                let is_occurrence =
                    at.is_some_and(|at| (due_ms..=decided_ms).contains(&at) && at % 60_000 == 0);
                if !is_occurrence || !timer.occurrences.insert(at.unwrap_or(0)) {
                    let expected = format!("a task of one occurrence from {due_ms} to {decided_ms} ms");
                    self.report(Invariant::Occurrences, event, expected);
                }
            }
        }
    }

    fn follow_up_fired(&mut self, event: &TimerEvent, decided_ms: i64) {
        let Some(thread) = &event.thread else { return };
        let limits = self.limits;
        let before = self.threads.entry(thread.clone()).or_default();
        before.pending.remove(&event.timer);
        // The time zone of a user is in a message that may have been deleted.
        let is_known = !self.retired.contains(thread);
        let (in_a_row, last) = (before.in_a_row.len(), before.fired_at.values().max().copied());
        let day = limits.local_minutes(decided_ms).div_euclid(1_440);
        let of_day = |at: &&i64| limits.local_minutes(**at).div_euclid(1_440) == day;
        let today = before.fired_at.values().filter(of_day).count();
        before.in_a_row.insert(event.timer.clone());
        before.fired_at.insert(event.timer.clone(), event.database_ms);
        before.count(event.number);
        if in_a_row >= limits.max_in_a_row as usize {
            self.report(Invariant::Restraint, event, format!("none: there were {in_a_row} in a row"));
        }
        if is_known && today >= limits.max_per_day as usize {
            self.report(Invariant::Restraint, event, format!("none: there were {today} that day"));
        }
        if last.is_some_and(|last| event.database_ms - last < limits.cooldown_ms) {
            self.report(Invariant::Restraint, event, format!("none: the last one was at {last:?} ms"));
        }
        if is_known && limits.is_quiet(decided_ms) {
            self.report(Invariant::Restraint, event, format!("none: it was quiet at {decided_ms} ms"));
        }
    }

    fn ended(&mut self, event: &'a TimerEvent, state: &str, by: &str, decided_after: u64) {
        let timer = self.timers.entry(&event.timer).or_default();
        timer.is_over = true;
        let has_fired = timer.fired > 0;
        if (state == "withdrawn") != has_fired && event.timer.kind() == TimerKind::FollowUp {
            self.report(Invariant::FiresOnce, event, "withdrawn exactly when it has fired");
        }
        let Some(thread) = &event.thread else { return };
        let of_thread = self.threads.entry(thread.clone()).or_default();
        of_thread.pending.remove(&event.timer);
        if state == "withdrawn" {
            of_thread.in_a_row.remove(&event.timer);
            of_thread.fired_at.remove(&event.timer);
            of_thread.count(event.number);
        }
        // A person's message may be committed with the refusal, or just before it.
        let in_a_row = of_thread.in_a_row_after(decided_after);
        let is_known = !self.retired.contains(thread);
        if by == "max_in_a_row" && is_known && in_a_row < self.limits.max_in_a_row as usize {
            self.report(Invariant::Restraint, event, format!("sent: there were {in_a_row} in a row"));
        }
    }
}

impl FollowUpLimits {
    /// Minutes since 1970 by Berlin local time.
    fn local_minutes(&self, at_ms: i64) -> i64 {
        let [forward, back] = self.summer;
        let ahead = if (forward..back).contains(&at_ms) { 120 } else { 60 };
        at_ms.div_euclid(60_000) + ahead
    }

    fn is_quiet(&self, at_ms: i64) -> bool {
        let minute = self.local_minutes(at_ms).rem_euclid(1_440);
        self.quiet.is_some_and(|(from, to)| match from < to {
            true => (from..to).contains(&minute),
            false => minute >= from || minute < to,
        })
    }
}

/// Checks that turns and tasks of timers are published only after the timers have fired, and that
/// every stored follow-up has fired.
fn check_sent(evidence: &Evidence, turns: &Turns, violations: &mut Vec<Violation>) {
    let mut fired: BTreeMap<&TurnId, i64> = BTreeMap::new();
    for event in &turns.timers {
        if let TimerStep::Fired { turn: Some(turn), .. } = &event.step {
            fired.entry(turn).or_insert(event.at_ms);
        }
    }
    let mut sent: BTreeSet<&TurnId> = BTreeSet::new();
    for ordered in &turns.ledger {
        let Command::Turn(opened) = &ordered.command else { continue };
        if !is_follow_up(&opened.turn) || opened.run > 0 || !sent.insert(&opened.turn) {
            continue;
        }
        let at_ms = fired.get(&opened.turn).copied();
        if at_ms.is_none_or(|at_ms| at_ms > ordered.at_ms) {
            let expected = format!("nothing before it has fired, at {at_ms:?} ms");
            let seen = format!("its input at {} ms", ordered.at_ms);
            violations.push(Violation::new(Invariant::FiresOnce, &opened.turn, expected, seen));
        }
    }
    let is_erased = |turn: &TurnId| {
        let of = turns.timers.iter().find(|event| event.timer.turn().as_ref() == Ok(turn));
        of.and_then(|event| event.thread.as_ref())
            .is_some_and(|thread| evidence.rules.erased.contains(thread))
    };
    for turn in
        fired.keys().filter(|turn| evidence.rules.is_settled && !sent.contains(**turn) && !is_erased(turn))
    {
        violations.push(Violation::new(Invariant::FiresOnce, turn, "its input in the stream", "none"));
    }
}

#[cfg(test)]
mod tests;
