//! Every acknowledged command ends once, with the effect that it asked for.

use std::collections::{BTreeMap, BTreeSet};

use model::{AgentId, PartitionId, TaskId, ThreadId, TurnId};

use crate::checker::evidence::{DeadLetterRow, Evidence};
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{Ordered, RunEnd, TransitionKind, Turns, ends};
use model::Command;

type Places = BTreeSet<(PartitionId, u64)>;

pub(super) fn check(evidence: &Evidence, turns: &Turns, violations: &mut Vec<Violation>) {
    let letters: Places = evidence
        .dead_letters
        .iter()
        .filter_map(|letter| match letter {
            DeadLetterRow::Entry { partition, seq, .. } => Some((*partition, *seq)),
            DeadLetterRow::Message { .. } => None,
        })
        .collect();
    check_inputs(turns, &letters, violations);
    check_tasks(turns, &letters, violations);
    check_acts(turns, &letters, violations);
    for left in &turns.left {
        violations.push(Violation::new(Invariant::Liveness, left, "gone at the end", "there"));
    }
}

fn lose(subject: impl ToString, expected: &str, seen: &str, violations: &mut Vec<Violation>) {
    violations.push(Violation::new(Invariant::OrdersEnd, subject, expected, seen));
}

fn check_inputs(turns: &Turns, letters: &Places, violations: &mut Vec<Violation>) {
    let mut ended: BTreeSet<(&ThreadId, &TurnId)> =
        turns.failed_turns.iter().map(|(thread, turn, _)| (thread, turn)).collect();
    let kept = ended.clone();
    for (_, turn, _, thread, end) in ends(turns) {
        if !matches!(end, RunEnd::Failed(_)) {
            if kept.contains(&(thread, turn)) {
                lose(turn, "no failed turn: it has succeeded", "one", violations);
            }
            ended.insert((thread, turn));
        }
    }
    let dropped = turns.history.iter().filter_map(|happened| match &happened.what {
        TransitionKind::Dropped { thread, turn } => Some((thread, turn)),
        _ => None,
    });
    ended.extend(dropped);
    // Withdrawn turns need not leave anything.
    let taken_back = turns.history.iter().filter_map(|happened| match &happened.what {
        TransitionKind::TakenBack { turn } => Some(turn),
        _ => None,
    });
    let taken_back: BTreeSet<&TurnId> = taken_back.collect();
    for ordered in &turns.ledger {
        let Command::Turn(opened) = &ordered.command else { continue };
        // Inputs for missing threads or with refused look-ups end as dead letters.
        let is_missing = turns.rules.missing.contains(&opened.thread.agent())
            || turns.rules.refused_turns.contains(&opened.turn);
        let has_letter = letters.contains(&(ordered.partition, ordered.seq));
        if has_letter != is_missing {
            lose(
                &opened.turn,
                "a dead letter exactly when its thread is unknown, or the store refuses to look it up",
                "the contrary",
                violations,
            );
        }
        if !is_missing
            && !ended.contains(&(&opened.thread, &opened.turn))
            && !taken_back.contains(&opened.turn)
        {
            lose(&opened.turn, "messages, or a failed turn", "nothing", violations);
        }
    }
}

/// The first payload of an id counts; a different one is refused.
fn check_tasks(turns: &Turns, letters: &Places, violations: &mut Vec<Violation>) {
    let mut queued: BTreeMap<(&AgentId, &TaskId), u32> = BTreeMap::new();
    for happened in &turns.history {
        if let TransitionKind::Queued { agent, task, .. } = &happened.what {
            *queued.entry((agent, task)).or_default() += 1;
        }
    }
    let mut first: BTreeMap<(&AgentId, &TaskId), u64> = BTreeMap::new();
    for ordered in &turns.ledger {
        let Command::Task(task) = &ordered.command else { continue };
        let key = (&task.agent, &task.id);
        let is_missing = turns.rules.missing.contains(&task.agent)
            || turns.rules.refused_tasks.contains(&(task.agent.clone(), task.id.clone()));
        let digest = task.digest();
        let is_other = *first.entry(key).or_insert(digest) != digest;
        let has_letter = letters.contains(&(ordered.partition, ordered.seq));
        if has_letter != (is_missing || is_other) {
            let expected = if has_letter { "no dead letter" } else { "a dead letter" };
            lose(
                format!("{}/{} at {}", task.agent, task.id, ordered.seq),
                expected,
                "the contrary",
                violations,
            );
        }
        if !is_missing && queued.get(&key) != Some(&1) {
            let seen = format!("{} entries into the queue", queued.get(&key).copied().unwrap_or(0));
            lose(format!("{}/{}", task.agent, task.id), "one entry into the queue", &seen, violations);
        }
    }
}

/// The audit has each control command as it was sent, and nothing else.
fn check_acts(turns: &Turns, letters: &Places, violations: &mut Vec<Violation>) {
    let mut sent: BTreeMap<_, &Ordered> = BTreeMap::new();
    let mut retries: BTreeSet<String> = BTreeSet::new();
    for ordered in &turns.ledger {
        match &ordered.command {
            Command::Control(control) => {
                sent.entry((&control.subject, &control.id)).or_insert(ordered);
                if letters.contains(&(ordered.partition, ordered.seq)) {
                    lose(&control.id, "no dead letter", "one", violations);
                }
            }
            Command::Turn(opened) => {
                retries.insert(format!("{}-retry{}", opened.turn, opened.run));
            }
            Command::Task(_) | Command::DelayedTask(_) => {}
        }
    }
    let mut seen = BTreeSet::new();
    for audited in &turns.audit {
        let key = (&audited.subject, &audited.id);
        let is_right = match sent.get(&key).map(|ordered| &ordered.command) {
            Some(Command::Control(control)) => {
                audited.what == control.kind.name()
                    && audited.target.as_deref() == control.kind.target()
                    && *audited.actor == *control.actor
            }
            _ => audited.what == "retry_turn" && retries.contains(audited.id.as_str()),
        };
        if !is_right || !seen.insert(key) {
            let expected = format!("{:?}", sent.get(&key).map(|ordered| &ordered.command));
            lose(&audited.id, &expected, &format!("{audited:?}"), violations);
        }
    }
    for (subject, id) in sent.keys().filter(|key| !seen.contains(*key)) {
        lose(format!("act {id} on {subject}"), "a row of the audit", "none", violations);
    }
}
