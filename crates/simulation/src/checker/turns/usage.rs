//! The ledger of model calls: the calls that the chunks of a run's answer list, once, however the
//! run ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{AnswerCalls, Chunk, MessageKey, ModelCall, TurnId};
use partition::UsageWrite;

use crate::checker::evidence::{Evidence, Published};
use crate::checker::expected_outcome::{ExpectedEnd, ExpectedOutcome};
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{RunEnd, TransitionKind, Turns, UsageRow, ends};

pub(super) fn check(
    evidence: &Evidence,
    turns: &Turns,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    let mut stored: BTreeMap<&MessageKey, Vec<&UsageRow>> = BTreeMap::new();
    for row in turns.usage.iter().filter(|row| row.number < UsageWrite::FIRST_LATE) {
        stored.entry(&row.answer).or_default().push(row);
    }
    check_late(evidence, turns, violations);
    let mut ended = BTreeSet::new();
    for (happened, turn, run, thread, end) in ends(turns) {
        let key = MessageKey { thread: thread.clone(), message: turn.answer(run) };
        // The run may have been undone and answered again: the first answer in the stream need not
        // be the one that counts.
        if evidence.rules.stepped_back.contains(&happened.partition) {
            continue;
        }
        let rows = stored.get(&key).map_or(&[][..], Vec::as_slice);
        let outcome = expected_outcomes.get(&key);
        if let Some((expected, seen)) = wrong(rows, outcome, end) {
            violations.push(Violation::new(Invariant::Usage, format!("run {run} of {turn}"), expected, seen));
        }
        ended.insert(key);
    }
    // Of a withdrawn follow-up's turn, only the model calls are stored.
    let taken_back: BTreeSet<&TurnId> = turns
        .history
        .iter()
        .filter_map(|happened| match &happened.what {
            TransitionKind::TakenBack { turn } => Some(turn),
            _ => None,
        })
        .collect();
    let is_taken_back = |key: &MessageKey| {
        TurnId::of_answer(&key.message).is_some_and(|(turn, _)| taken_back.contains(&turn))
    };
    let is_undone = !evidence.rules.stepped_back.is_empty();
    for (key, rows) in stored.iter().filter(|(key, _)| !is_undone && !ended.contains(**key)) {
        let calls = rows.iter().map(|row| &row.call).collect::<Vec<_>>();
        if is_taken_back(key) && is_part(&calls, &listed_calls(evidence, key)) {
            continue;
        }
        violations.push(Violation::new(
            Invariant::Usage,
            key,
            "nothing: no such run has ended",
            "calls of models",
        ));
    }
}

/// Checks the calls of attempts that began after the end of their run: a chunk lists each of them,
/// and none is also counted among the others.
fn check_late(evidence: &Evidence, turns: &Turns, violations: &mut Vec<Violation>) {
    let mut late: BTreeMap<&MessageKey, Vec<&ModelCall>> = BTreeMap::new();
    for row in turns.usage.iter().filter(|row| row.number >= UsageWrite::FIRST_LATE) {
        late.entry(&row.answer).or_default().push(&row.call);
    }
    for (key, calls) in late {
        let in_time = |call: &&ModelCall| {
            turns
                .usage
                .iter()
                .any(|row| row.number < UsageWrite::FIRST_LATE && row.answer == *key && row.call == **call)
        };
        let listed = reported_calls(evidence, key);
        let is_right = calls.iter().all(|call| listed.contains(call)) && !calls.iter().any(in_time);
        if !is_right {
            let expected = "calls of attempts that began after the end, each once";
            violations.push(Violation::new(Invariant::Usage, key, expected, format!("{calls:?}")));
        }
    }
}

/// All entries of `model_calls` in chunks of the answer, including those that are replaced later.
fn reported_calls(evidence: &Evidence, answer: &MessageKey) -> Vec<ModelCall> {
    let chunks = evidence.ledger.iter().filter_map(|publish| match &publish.body {
        Published::Chunk { key, chunk, .. } if key == answer => Some(chunk),
        _ => None,
    });
    chunks
        .flat_map(|chunk| chunk.metadata.model_calls().unwrap_or_default())
        .map(|listed| listed.call)
        .collect()
}

fn wrong(rows: &[&UsageRow], outcome: Option<&ExpectedOutcome>, end: &RunEnd) -> Option<(String, String)> {
    let seen: Vec<&ModelCall> = rows.iter().map(|row| &row.call).collect();
    let is_complete = *end == RunEnd::Completed;
    // If the answer completed, or failed by an error of its producer, the owner that ended the run
    // has read the answer's last chunk, and so all earlier ones. Otherwise only the chunks read
    // before the end are certain.
    let is_all = outcome.is_some_and(|outcome| match (&outcome.end, end) {
        (ExpectedEnd::Complete, RunEnd::Completed) => true,
        (ExpectedEnd::Failed(code), RunEnd::Failed(by)) => *code == "producer_error" && by == code,
        _ => false,
    });
    let expected = outcome.map(|outcome| expected_calls(outcome, is_all)).unwrap_or_default();
    let is_right = match is_all {
        true => seen.iter().copied().eq(&expected),
        false => is_part(&seen, &expected),
    };
    // The database may refuse a complete answer.
    let is_whole = outcome.is_some_and(|outcome| outcome.end == ExpectedEnd::Complete);
    let is_marked = rows.iter().all(|row| if row.is_partial { !is_complete } else { is_whole });
    let are_numbered = rows.iter().enumerate().all(|(index, row)| usize::from(row.number) == index);
    if is_right && is_marked && are_numbered {
        return None;
    }
    let which = if is_all { "all" } else { "some" };
    Some((
        format!("{which} of the calls {expected:?}, numbered, of an answer with the end {end:?}"),
        format!("{rows:?}"),
    ))
}

/// True if all seen calls are among the expected ones. Each call has its own counts, so a call that
/// is present twice does not match.
fn is_part(seen: &[&ModelCall], expected: &[ModelCall]) -> bool {
    let mut rest = expected.iter();
    seen.iter().all(|call| rest.any(|other| is_same(call, other)))
}

/// For a call that was cut off, only the text read before counts.
fn is_same(seen: &ModelCall, expected: &ModelCall) -> bool {
    let is_cut = seen.is_estimated && expected.is_estimated && seen.output_tokens <= expected.output_tokens;
    seen == expected
        || (is_cut && ModelCall { output_tokens: expected.output_tokens, ..seen.clone() } == *expected)
}

/// `is_all`: every chunk that counts was read. Otherwise the last chunk of an attempt may have been
/// read before chunks that list calls, and its sum then covers only the calls known so far.
fn expected_calls(outcome: &ExpectedOutcome, is_all: bool) -> Vec<ModelCall> {
    outcome.attempts.values().flat_map(|chunks| calls(chunks, !is_all)).collect()
}

/// The calls that the chunks of the answer list, including chunks after its end. An answer that was
/// withdrawn leaves no trace of its end, so the next owner may count later chunks.
fn listed_calls(evidence: &Evidence, answer: &MessageKey) -> Vec<ModelCall> {
    let mut attempts: BTreeMap<u32, BTreeMap<u32, Arc<Chunk>>> = BTreeMap::new();
    for publish in &evidence.ledger {
        if let Published::Chunk { key, attempt, chunk } = &publish.body
            && key == answer
        {
            attempts.entry(*attempt).or_default().entry(chunk.id).or_insert_with(|| Arc::clone(chunk));
        }
    }
    attempts.values().flat_map(|chunks| calls(chunks, true)).collect()
}

/// `with_sum`: some chunks may not have been read, so an estimate may not have been replaced, or
/// only the sum of the answer was known.
fn calls(chunks: &BTreeMap<u32, Arc<Chunk>>, with_sum: bool) -> Vec<ModelCall> {
    if !with_sum {
        let mut calls = AnswerCalls::default();
        chunks.values().for_each(|chunk| calls.take(chunk));
        return calls.finish();
    }
    let text = chunks.values().map(|chunk| chunk.text.len()).sum();
    let most = ModelCall::estimated_tokens(text);
    let listed = chunks.values().flat_map(|chunk| chunk.metadata.model_calls().unwrap_or_default());
    // Calls are kept in the order in which they began: an estimate keeps its place, and so do the
    // counts that replace it.
    let mut calls: Vec<(Option<Box<str>>, ModelCall)> = Vec::new();
    for listed in listed {
        let call = match listed.call.is_estimated {
            true => ModelCall { output_tokens: listed.call.output_tokens.max(most), ..listed.call },
            false => listed.call,
        };
        let begun = calls.iter().rposition(|(id, _)| id.is_some() && *id == listed.id);
        calls.insert(begun.map_or(calls.len(), |at| at + 1), (listed.id, call));
    }
    let last = chunks.values().find(|chunk| chunk.is_final);
    let sum = last.and_then(|last| last.metadata.summed_call());
    calls.into_iter().map(|(_, call)| call).chain(sum).collect()
}
