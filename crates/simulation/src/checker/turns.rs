//! The invariants of turns, tasks and control commands: what was requested, what transactions did,
//! what was published.
//!
//! Entry point: [`super::check_with_turns`]. The history of transactions is replayed on a small
//! separate model of queues and threads. It shares only the types of `model` with the code under
//! test.

mod causes;
mod commands;
mod erased;
pub(super) mod evidence;
mod outbox;
mod queues;
mod rows;
mod timer_events;
mod timers;
mod usage;

use std::collections::BTreeMap;

use model::{ChunkKind, Command, MessageKey, RetryHint, Role};

use crate::checker::evidence::Evidence;
use crate::checker::expected_outcome::{ExpectedEnd, ExpectedOutcome};
use crate::checker::invariant::{Invariant, Violation};

pub use timer_events::{FollowUpLimits, TimerEvent, TimerStep};
pub use timers::is_follow_up;

pub use evidence::{
    AgentRow, Audited, Ordered, RequestRecord, RunEnd, Transition, TransitionKind, TurnEvent, TurnPart,
    TurnRow, TurnRules, Turns, UsageRow, part_of,
};

/// The full text of each answer's chunk stream: the texts of its steps, then its own.
pub(super) fn full_texts(evidence: &Evidence) -> BTreeMap<MessageKey, String> {
    let mut texts: BTreeMap<MessageKey, String> = BTreeMap::new();
    for message in evidence.messages.iter().filter(|message| message.role == Role::Assistant) {
        let run = match part_of(&message.key.message) {
            Some((turn, TurnPart::Answer(run) | TurnPart::Step(run))) => turn.answer(run),
            Some((_, TurnPart::Input)) | None => continue,
        };
        let key = MessageKey { thread: message.key.thread.clone(), message: run };
        texts.entry(key).or_default().push_str(&message.content);
    }
    texts
}

/// Checks every invariant of turns that the evidence covers, except those of messages.
pub(super) fn check(
    evidence: &Evidence,
    turns: &Turns,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
) -> Vec<Violation> {
    if !evidence.rules.erased.is_empty() && turns.rules.erased_turns.is_empty() {
        let turns = erased::without(turns, &evidence.rules.erased);
        return check_rest(evidence, &turns, expected_outcomes);
    }
    check_rest(evidence, turns, expected_outcomes)
}

fn check_rest(
    evidence: &Evidence,
    turns: &Turns,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
) -> Vec<Violation> {
    // A person may have retried a turn whose failure the store then forgot. When the turn is run
    // again, it need not fail, and the retry then concerns a turn that has succeeded.
    let is_retry = |ordered: &Ordered| matches!(&ordered.command, Command::Turn(opened) if opened.run > 0);
    if !evidence.rules.stepped_back.is_empty() && turns.ledger.iter().any(is_retry) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    rows::check(evidence, turns, expected_outcomes, &mut violations);
    let is_undone = !evidence.rules.stepped_back.is_empty();
    let mut of_queues = Vec::new();
    let errors = errors(expected_outcomes);
    if turns.rules.unordered.is_empty() {
        queues::check(turns, &errors, &mut of_queues);
    } else {
        let ordered = Turns { history: erased::ordered(turns), ..turns.clone() };
        queues::check(&ordered, &errors, &mut of_queues);
    }
    // A run that was requested twice may have failed twice; which of its errors counts depends on
    // the order in which owners read them.
    violations.extend(of_queues.into_iter().filter(|it| !is_undone || it.invariant != Invariant::Backoff));
    causes::check(evidence, turns, expected_outcomes, &mut violations);
    usage::check(evidence, turns, expected_outcomes, &mut violations);
    let went_back = is_undone || !evidence.rules.parted.is_empty();
    if !went_back {
        timers::check(evidence, turns, &mut violations);
    }
    if evidence.rules.is_settled {
        commands::check(evidence, turns, &mut violations);
        outbox::check(evidence, turns, &errors, is_undone, &mut violations);
    }
    violations
}

/// The retry hints of answers that failed by the order of their chunks.
fn errors(expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>) -> BTreeMap<MessageKey, RetryHint> {
    let failed =
        expected_outcomes.iter().filter(|(_, fate)| fate.end == ExpectedEnd::Failed("producer_error"));
    let hint = |(key, fate): (&MessageKey, &ExpectedOutcome)| {
        let chunks = fate.attempts.get(&fate.attempt)?;
        let error = chunks.values().find(|chunk| chunk.kind == ChunkKind::Error)?;
        Some((key.clone(), RetryHint::of(&error.metadata)))
    };
    failed.filter_map(hint).collect()
}
