//! What was published after commits: each end of a turn and each task that follows a turn, once by
//! its id.

use std::collections::{BTreeMap, BTreeSet};

use model::{AgentId, BatchType, ErrorClass, MessageKey, Position, RetryHint, TaskId, TaskKind, TurnId};

use partition::Pause;

use crate::checker::evidence::{Evidence, MessageRow};
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{RunEnd, TransitionKind, TurnEvent, TurnPart, Turns, ends, part_of};
use crate::checker::turns::timers::is_follow_up;
use crate::settings::wanted_tasks;
use model::Command;

/// `is_undone`: a store that went back in time undid some published items, which were then
/// published again.
pub(super) fn check(
    evidence: &Evidence,
    turns: &Turns,
    errors: &BTreeMap<MessageKey, RetryHint>,
    is_undone: bool,
    violations: &mut Vec<Violation>,
) {
    check_events(turns, is_undone, violations);
    let continuing = continuing(evidence);
    check_background_tasks(turns, &continuing, is_undone, violations);
    check_continuations(evidence, turns, &continuing, is_undone, violations);
    check_pauses(evidence, turns, errors, is_undone, violations);
}

/// The ends that are published to integrators: all ends of persons' turns, and the ends with which
/// a task is given up.
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

/// True if the transaction with this number marked the turn's task as failed.
fn is_marked(turns: &Turns, turn: &TurnId, number: u64) -> bool {
    turns.history.iter().any(|happened| match &happened.what {
        TransitionKind::Marked { agent, position, .. } => {
            happened.number == number
                && TurnId::of_task(agent, model::Position::from_stored(*position)) == *turn
        }
        _ => false,
    })
}

/// `work_request` and `memory` tasks come only from persons' turns that have succeeded. Whether
/// each entered its queue once is checked with the other tasks.
fn check_background_tasks(
    turns: &Turns,
    continuing: &BTreeMap<TurnId, i64>,
    is_undone: bool,
    violations: &mut Vec<Violation>,
) {
    let mut wanted: BTreeSet<(AgentId, TaskId)> = BTreeSet::new();
    for (_, turn, _, _, end) in ends(turns) {
        // A batch that continues gets its follow-on tasks when it has ended.
        if *end != RunEnd::Completed || continuing.contains_key(turn) {
            continue;
        }
        let opened = turns.ledger.iter().find_map(|ordered| match &ordered.command {
            Command::Turn(opened) if opened.turn == *turn => Some(opened),
            _ => None,
        });
        let Some(opened) = opened else { continue };
        let (work_request, memory) = wanted_tasks(&opened.options);
        let kinds = [(work_request, TaskKind::WorkRequest, "work"), (memory, TaskKind::Memory, "memory")];
        for (is_wanted, kind, suffix) in kinds {
            if let Ok(id) = TaskId::parse(&format!("{turn}-{suffix}"))
                && is_wanted
            {
                wanted.insert((opened.agent.queue_of(kind), id));
            }
        }
    }
    let sent: BTreeSet<(AgentId, TaskId)> = turns
        .ledger
        .iter()
        .filter_map(|ordered| match &ordered.command {
            Command::Task(task) if task.kind != TaskKind::Task && task.origin.continues().is_none() => {
                Some((task.agent.clone(), task.id.clone()))
            }
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

/// Turns whose answers ask for another step, with the positions of these answers.
fn continuing(evidence: &Evidence) -> BTreeMap<TurnId, i64> {
    let answer = |message: &MessageRow| {
        let Some((turn, TurnPart::Answer(_))) = part_of(&message.key.message) else { return None };
        // A follow-up has one answer only, and memory notes and summaries are read from one answer.
        let kind = message.key.thread.background_kind();
        if is_follow_up(&turn) || matches!(kind, Some(TaskKind::Memory | TaskKind::Compaction)) {
            return None;
        }
        let continues = message.metadata.get("continuation").and_then(serde_json::Value::as_bool);
        (continues == Some(true)).then_some((turn, message.position))
    };
    evidence.messages.iter().filter_map(answer).collect()
}

/// The next step of a batch is requested once, after a turn that has succeeded, and in that batch.
fn check_continuations(
    evidence: &Evidence,
    turns: &Turns,
    continuing: &BTreeMap<TurnId, i64>,
    is_undone: bool,
    violations: &mut Vec<Violation>,
) {
    // If retention deleted a batch before its next step was stored, that step forms its own batch
    // under the old name.
    let name = |name: String, batch: Position| {
        let is_retired = evidence.rules.retired.iter().any(|(_, retired)| *retired == batch.get());
        // A step whose batch is unknown to a store that went back in time forms its own batch, too.
        if is_retired || is_undone { name } else { format!("{name} in batch {batch}") }
    };
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    for (_, turn, _, thread, end) in ends(turns) {
        let Some(position) = continuing.get(turn).filter(|_| *end == RunEnd::Completed) else { continue };
        let row = turns.rows.iter().find(|row| {
            row.key.thread == *thread && part_of(&row.key.message).is_some_and(|(of, _)| of == *turn)
        });
        let batch = row.map_or(0, |row| row.batch_id);
        let is_apart =
            row.is_some_and(|row| row.batch_type == BatchType::Continuation && row.sequence_num == 0);
        let next = match turn.as_str().starts_with('t') {
            true => Some(format!("task {turn}-h")),
            false => {
                TurnId::foreground(thread, &format!("h{position}")).ok().map(|next| format!("turn {next}"))
            }
        };
        let batch = Position::from_stored(batch);
        wanted.extend(next.map(|next| if is_apart { next } else { name(next, batch) }));
    }
    let sent: BTreeSet<String> = turns
        .ledger
        .iter()
        .filter_map(|ordered| match &ordered.command {
            Command::Turn(opened) => Some(name(format!("turn {}", opened.turn), opened.origin.continues()?)),
            Command::Task(task) => Some(name(format!("task {}", task.id), task.origin.continues()?)),
            Command::DelayedTask(_) | Command::Control(_) => None,
        })
        .collect();
    for next in wanted.symmetric_difference(&sent) {
        let is_wanted = wanted.contains(next);
        if is_undone && !is_wanted {
            continue;
        }
        let (expected, seen) = if is_wanted { ("one", "none") } else { ("none", "one") };
        violations.push(Violation::new(Invariant::Outbox, next, expected, seen));
    }
}

/// A person's turn that failed because its agent's credentials were refused pauses that agent, in
/// any partition; nothing else does.
fn check_pauses(
    evidence: &Evidence,
    turns: &Turns,
    errors: &BTreeMap<MessageKey, RetryHint>,
    is_undone: bool,
    violations: &mut Vec<Violation>,
) {
    let mut wanted: BTreeSet<(AgentId, String)> = BTreeSet::new();
    for (_, turn, run, thread, end) in ends(turns) {
        let key = MessageKey { thread: thread.clone(), message: turn.answer(run) };
        let is_auth = *end == RunEnd::Failed("producer_error".to_owned())
            && errors.get(&key).is_some_and(|hint| hint.class == ErrorClass::Auth);
        let opened = turns.ledger.iter().find_map(|ordered| match &ordered.command {
            Command::Turn(opened) if opened.turn == *turn => Some(opened),
            _ => None,
        });
        if let Some(opened) = opened.filter(|_| is_auth) {
            wanted.insert((opened.agent.clone(), format!("{turn}-auth{run}")));
        }
    }
    let is_erased = |control: &model::Control| {
        let turn = control.id.as_str().rsplit_once("-auth").and_then(|(turn, _)| TurnId::parse(turn).ok());
        turn.is_some_and(|turn| turns.rules.erased_turns.contains(&turn))
    };
    let sent: BTreeSet<(AgentId, String)> = turns
        .ledger
        .iter()
        .filter_map(|ordered| match &ordered.command {
            Command::Control(control) if &*control.actor == Pause::ACTOR && !is_erased(control) => {
                Some((control.subject.clone(), control.id.as_str().to_owned()))
            }
            _ => None,
        })
        .collect();
    for (agent, control) in wanted.symmetric_difference(&sent) {
        if evidence.rules.erased.contains(&agent.thread()) {
            continue;
        }
        let is_wanted = wanted.contains(&(agent.clone(), control.clone()));
        if is_undone && !is_wanted {
            continue;
        }
        let (expected, seen) = if is_wanted { ("one", "none") } else { ("none", "one") };
        violations.push(Violation::new(
            Invariant::Outbox,
            format!("pause {control} of {agent}"),
            expected,
            seen,
        ));
    }
}
