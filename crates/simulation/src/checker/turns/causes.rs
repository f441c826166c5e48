//! Checks why runs failed, against what was published: each failure has a cause in its workflow, a
//! person or the store.

use std::collections::{BTreeMap, BTreeSet};

use model::{BusyPolicy, ControlKind, MessageKey, ThreadId, TurnId};

use crate::checker::evidence::{Evidence, Published};
use crate::checker::expected_outcome::ExpectedOutcome;
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{Ordered, RunEnd, Transition, TransitionKind, Turns, ends};
use model::Command;

/// The compared data, indexed for look-up.
struct Facts<'a> {
    evidence: &'a Evidence,
    turns: &'a Turns,
    expected_outcomes: &'a BTreeMap<MessageKey, ExpectedOutcome>,
    /// When chunks that count as progress were stored, by answer.
    progress: BTreeMap<&'a MessageKey, Vec<i64>>,
}

pub(super) fn check(
    evidence: &Evidence,
    turns: &Turns,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    check_runs(turns, violations);
    let known = Facts { evidence, turns, expected_outcomes, progress: progress(evidence) };
    for (happened, turn, run, thread, end) in ends(turns) {
        let RunEnd::Failed(code) = end else { continue };
        // If the store went back in time, a run may be requested and answered twice, or not be
        // requested again. Which of its answers counts depends on the order in which chunks arrived
        // at the owners.
        let is_of_answer = matches!(code.as_str(), "deadline" | "gap_timeout" | "producer_error");
        if is_of_answer && evidence.rules.stepped_back.contains(&happened.partition) {
            continue;
        }
        let key = MessageKey { thread: thread.clone(), message: turn.answer(run) };
        if !known.has_cause(&key, turn, run, code, happened) {
            let (expected, seen) =
                (known.described(&key, turn, run), format!("{code} at {} ms", happened.at_ms));
            violations.push(Violation::new(
                Invariant::RightCause,
                format!("run {run} of {turn}"),
                expected,
                seen,
            ));
        }
    }
}

/// Each run ends once, later runs end later, and nothing ends after a success.
fn check_runs(turns: &Turns, violations: &mut Vec<Violation>) {
    let mut last: BTreeMap<&TurnId, (u32, &RunEnd)> = BTreeMap::new();
    for (_, turn, run, _, end) in ends(turns) {
        let before = last.insert(turn, (run, end));
        if let Some((before, kind)) = before
            && (before >= run || !matches!(kind, RunEnd::Failed(_)))
        {
            let expected = format!("nothing after run {before}, {kind:?}");
            violations.push(Violation::new(
                Invariant::RunsOnce,
                turn,
                expected,
                format!("run {run}, {end:?}"),
            ));
        }
    }
}

/// Chunks with a new id, of the highest attempt so far.
fn progress(evidence: &Evidence) -> BTreeMap<&MessageKey, Vec<i64>> {
    let mut seen: BTreeMap<&MessageKey, (u32, BTreeSet<u32>)> = BTreeMap::new();
    let mut progress: BTreeMap<&MessageKey, Vec<i64>> = BTreeMap::new();
    for publish in &evidence.ledger {
        let Published::Chunk { key, attempt, chunk } = &publish.body else { continue };
        let (highest, ids) = seen.entry(key).or_default();
        if *attempt > *highest {
            (*highest, *ids) = (*attempt, BTreeSet::new());
        }
        if *attempt == *highest && ids.insert(chunk.id) {
            progress.entry(key).or_default().push(publish.at_ms);
        }
    }
    progress
}

impl Facts<'_> {
    fn has_cause(&self, key: &MessageKey, turn: &TurnId, run: u32, code: &str, at: &Transition) -> bool {
        match code {
            "deadline" => {
                self.longest_silence_ms(key, turn, run, at.at_ms) > self.turns.rules.deadline_safe_ms
            }
            "busy" => self
                .inputs()
                .any(|(_, opened)| opened.turn == *turn && opened.options.busy_policy == BusyPolicy::Reject),
            "stopped" => self.is_stopped(turn),
            "rolled_back" => self.gave_way(turn, &key.thread),
            "request_invalid" | "rejected_by_database" => self.turns.refused.contains(&(turn.clone(), run)),
            "gap_timeout" => {
                self.expected_outcomes.get(key).is_some_and(|fate| fate.is_slow(&self.evidence.rules))
            }
            code => self
                .expected_outcomes
                .get(key)
                .is_some_and(|fate| fate.end == crate::checker::ExpectedEnd::Failed(leak(code))),
        }
    }

    /// The longest time without a chunk while the request was with the workflow, ms.
    fn longest_silence_ms(&self, key: &MessageKey, turn: &TurnId, run: u32, failed_at: i64) -> i64 {
        let requests = self.turns.requests.iter().filter(|r| r.turn == *turn && r.run == run);
        let mut longest = 0;
        for request in requests {
            let until = request.until_ms.unwrap_or(failed_at).min(failed_at);
            let mut before = request.from_ms;
            for at in self.progress.get(key).into_iter().flatten().copied().chain([until]) {
                if at > before {
                    longest = longest.max(at.min(until) - before);
                    before = at;
                }
            }
        }
        longest
    }

    fn inputs(&self) -> impl Iterator<Item = (&Ordered, &model::TurnOpened)> {
        self.turns.ledger.iter().filter_map(|ordered| match &ordered.command {
            Command::Turn(opened) => Some((ordered, &**opened)),
            Command::Task(_) | Command::DelayedTask(_) | Command::Control(_) => None,
        })
    }

    fn is_stopped(&self, turn: &TurnId) -> bool {
        self.turns.ledger.iter().any(|ordered| match &ordered.command {
            Command::Control(control) => control.kind == ControlKind::StopTurn(turn.clone()),
            Command::Turn(_) | Command::Task(_) | Command::DelayedTask(_) => false,
        })
    }

    /// True if another input arrived in the thread that takes precedence.
    fn gave_way(&self, turn: &TurnId, thread: &ThreadId) -> bool {
        let is_task = turn.as_str().starts_with('t');
        self.inputs().any(|(_, opened)| {
            opened.thread == *thread
                && (opened.options.busy_policy == BusyPolicy::Rollback
                    || (is_task && opened.options.busy_policy == BusyPolicy::Interrupt))
        })
    }

    fn described(&self, key: &MessageKey, turn: &TurnId, run: u32) -> String {
        let fate = self.expected_outcomes.get(key).map(|fate| (&fate.end, fate.longest_gap_ms));
        let silence = self.longest_silence_ms(key, turn, run, i64::MAX);
        let started = self.turns.history.iter().filter_map(|happened| match &happened.what {
            TransitionKind::Started { turn: started, run: of, .. } if started == turn && *of == run => {
                Some(happened.at_ms)
            }
            _ => None,
        });
        format!(
            "a cause; chunks say {fate:?}, the workflow was silent for {silence} ms, it was started at {:?}",
            started.collect::<Vec<_>>()
        )
    }
}

/// There are few failure codes, and all are static.
fn leak(code: &str) -> &'static str {
    ["producer_error", "final_conflict", "too_many_chunks", "message_too_large"]
        .into_iter()
        .find(|known| *known == code)
        .unwrap_or("no such code")
}
