//! What was published after commits: each end of a turn and each task that follows one, once by its id.

use std::collections::{BTreeMap, BTreeSet};

use model::{AgentId, TaskId, TaskKind, TurnId};

use super::{Order, RunEnd, TurnEvent, Turns, What, ends};
use crate::checker::{Invariant, Violation};

/// `is_undone`: some of what was published was undone by a store that went back in time, and published anew.
pub(super) fn check(turns: &Turns, is_undone: bool, violations: &mut Vec<Violation>) {
    check_events(turns, is_undone, violations);
    check_follow_ups(turns, is_undone, violations);
}

/// Ends that integrators learn of: all of persons' turns, and those that a task does not survive.
fn check_events(turns: &Turns, is_undone: bool, violations: &mut Vec<Violation>) {
    let mut expected: BTreeMap<&TurnId, Vec<(&str, Option<&str>)>> = BTreeMap::new();
    for (happened, turn, run, _, end) in ends(turns) {
        let is_kept = turn.as_str().starts_with('t') && !is_marked(turns, turn, happened.number);
        match end {
            RunEnd::Completed => expected.entry(turn).or_default().push(("completed", None)),
            RunEnd::Stopped => expected.entry(turn).or_default().push(("stopped", None)),
            RunEnd::Failed(_) if is_kept => {}
            RunEnd::Failed(code) => expected.entry(turn).or_default().push(("failed", Some(code))),
        }
        let _ = run;
    }
    let distinct: BTreeSet<&TurnEvent> = turns.published.iter().collect();
    let mut seen: BTreeMap<&TurnId, Vec<(&str, Option<&str>)>> = BTreeMap::new();
    for event in distinct {
        seen.entry(&event.turn).or_default().push((event.status, event.code.as_deref()));
    }
    for turn in expected.keys().chain(seen.keys()).collect::<BTreeSet<_>>() {
        let (mut expected, mut seen) =
            (expected.get(*turn).cloned().unwrap_or_default(), seen.get(*turn).cloned().unwrap_or_default());
        expected.sort_unstable();
        seen.sort_unstable();
        let is_right = match is_undone {
            true => expected.iter().all(|event| seen.contains(event)),
            false => expected == seen,
        };
        if !is_right {
            violations.push(Violation::new(
                Invariant::Outbox,
                turn,
                format!("{expected:?}"),
                format!("{seen:?}"),
            ));
        }
    }
}

/// The task of this turn was given up with it.
fn is_marked(turns: &Turns, turn: &TurnId, number: u64) -> bool {
    turns.history.iter().any(|happened| match &happened.what {
        What::Marked { agent, position, .. } => {
            happened.number == number
                && TurnId::of_task(agent, model::Position::from_stored(*position)) == *turn
        }
        _ => false,
    })
}

/// `work_request` and `memory` come from turns of persons that have succeeded, and from nowhere else. That each entered
/// its queue once is judged with the other tasks.
fn check_follow_ups(turns: &Turns, is_undone: bool, violations: &mut Vec<Violation>) {
    let mut wanted: BTreeSet<(AgentId, TaskId)> = BTreeSet::new();
    for (_, turn, _, _, end) in ends(turns) {
        if *end != RunEnd::Completed {
            continue;
        }
        let opened = turns.ledger.iter().find_map(|ordered| match &ordered.order {
            Order::Turn(opened) if opened.turn == *turn => Some(opened),
            _ => None,
        });
        let Some(opened) = opened else { continue };
        for (is_wanted, suffix) in [(opened.work_request, "work"), (opened.memory, "memory")] {
            if let Ok(id) = TaskId::parse(&format!("{turn}-{suffix}"))
                && is_wanted
            {
                wanted.insert((opened.agent.clone(), id));
            }
        }
    }
    let sent: BTreeSet<(AgentId, TaskId)> = turns
        .ledger
        .iter()
        .filter_map(|ordered| match &ordered.order {
            Order::Task(task) if task.kind != TaskKind::Task => Some((task.agent.clone(), task.id.clone())),
            _ => None,
        })
        .collect();
    for (agent, task) in wanted.symmetric_difference(&sent) {
        let is_wanted = wanted.contains(&(agent.clone(), task.clone()));
        if is_undone && !is_wanted {
            continue;
        }
        let (expected, seen) = if is_wanted { ("one", "none") } else { ("none", "one") };
        let subject = format!("task {task} for {agent}");
        violations.push(Violation::new(Invariant::Outbox, subject, expected, seen));
    }
}
