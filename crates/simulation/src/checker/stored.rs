//! Compares the stored rows with the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use model::{Chunk, ChunkKind, MessageKey, PartitionId, ThreadId};

use crate::checker::evidence::{DeadLetterRow, Evidence, MessageRow, Published, Rules};
use crate::checker::expected_outcome::{ExpectedEnd, ExpectedOutcome, REJECTED};
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::part_of;

pub(super) fn check(
    evidence: &Evidence,
    commands: &BTreeSet<(PartitionId, u64)>,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    check_ends(evidence, expected_outcomes, violations);
    check_entries(evidence, commands, violations);
    check_positions(evidence, violations);
    check_numbers(evidence, violations);
    let lost = &evidence.rules.lost;
    for message in evidence.messages.iter().filter(|message| !is_of_turn(&message.key)) {
        if let Some(fate) = expected_outcomes.get(&message.key).filter(|_| !lost.contains(&message.key)) {
            check_content(message, fate, violations);
        }
    }
    for letter in &evidence.dead_letters {
        if let DeadLetterRow::Message { key, attempt, code, chunks } = letter
            && let Some(fate) = expected_outcomes.get(key).filter(|_| !lost.contains(key))
        {
            check_failure(key, (*attempt, code), fate, &evidence.rules, violations);
            check_kept(key, *attempt, chunks, fate, violations);
        }
    }
}

fn check_ends(
    evidence: &Evidence,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    let mut ends: BTreeMap<&MessageKey, Vec<&str>> = BTreeMap::new();
    for message in evidence.messages.iter().filter(|message| !is_of_turn(&message.key)) {
        ends.entry(&message.key).or_default().push("a message");
    }
    for letter in &evidence.dead_letters {
        if let DeadLetterRow::Message { key, code, .. } = letter {
            ends.entry(key).or_default().push(code);
        }
    }
    for (key, ends) in &ends {
        if ends.len() > 1 {
            violations.push(Violation::new(Invariant::EndsOnce, key, "one end", ends.join(" and ")));
        }
        if !expected_outcomes.contains_key(*key) {
            violations.push(Violation::new(
                Invariant::EndsOnce,
                key,
                "nothing: it was never published",
                ends.join(" and "),
            ));
        }
    }
    let must_end = |key: &&MessageKey| evidence.rules.is_settled && !is_of_turn(key);
    let is_lost = |key: &&MessageKey| evidence.rules.lost.contains(*key);
    for key in
        expected_outcomes.keys().filter(must_end).filter(|key| !ends.contains_key(key) && !is_lost(key))
    {
        violations.push(Violation::new(Invariant::EndsOnce, key, "one end", "none"));
    }
}

/// The ends of turns are checked elsewhere.
fn is_of_turn(key: &MessageKey) -> bool {
    part_of(&key.message).is_some()
}

fn check_entries(
    evidence: &Evidence,
    commands: &BTreeSet<(PartitionId, u64)>,
    violations: &mut Vec<Violation>,
) {
    let mut letters: BTreeMap<(PartitionId, u64), Vec<&Bytes>> = BTreeMap::new();
    for letter in &evidence.dead_letters {
        if let DeadLetterRow::Entry { partition, seq, payload } = letter {
            letters.entry((*partition, *seq)).or_default().push(payload);
        }
    }
    for publish in &evidence.ledger {
        let Published::Garbage(payload) = &publish.body else { continue };
        if evidence.rules.erased_garbage.contains(payload) {
            letters.remove(&(publish.partition, publish.seq));
            continue;
        }
        if evidence.rules.parted.contains(&publish.partition) {
            // The entry's sequence may have been assigned twice, and the entry may be gone.
            continue;
        }
        let found = letters.remove(&(publish.partition, publish.seq)).unwrap_or_default();
        let is_right = match found.as_slice() {
            [] => !evidence.rules.is_settled,
            [one] => *one == payload,
            _ => false,
        };
        if !is_right {
            let subject = format!("entry {} of partition {}", publish.seq, publish.partition);
            let seen = format!("{} dead letters, payloads {found:?}", found.len());
            violations.push(Violation::new(
                Invariant::EndsOnce,
                subject,
                "one dead letter with its payload",
                seen,
            ));
        }
    }
    let is_parted = |(partition, _): &&(PartitionId, u64)| evidence.rules.parted.contains(partition);
    for (partition, seq) in letters.keys().filter(|entry| !commands.contains(*entry) && !is_parted(entry)) {
        let subject = format!("entry {seq} of partition {partition}");
        violations.push(Violation::new(
            Invariant::EndsOnce,
            subject,
            "nothing: it is no garbage",
            "a dead letter",
        ));
    }
}

fn check_positions(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut heads: BTreeMap<&ThreadId, i64> = BTreeMap::new();
    let mut all = BTreeSet::new();
    // An erased thread has lost its row and starts over.
    let is_whole = |message: &&MessageRow| !evidence.rules.erased.contains(&message.key.thread);
    for message in evidence.messages.iter().filter(is_whole) {
        let head = heads.insert(&message.key.thread, message.position);
        let unique = all.insert(message.position);
        if !unique || head.is_some_and(|head| head >= message.position) || message.parent != head {
            violations.push(Violation::new(
                Invariant::Positions,
                &message.key,
                format!("a new position above {head:?} with it as parent"),
                format!("{} with parent {:?}", message.position, message.parent),
            ));
        }
    }
}

/// Numbers start at 1 and are dense in commit order, so they are unique and rising too.
fn check_numbers(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut last: BTreeMap<&ThreadId, i64> = BTreeMap::new();
    // An erased thread has lost its row and starts over.
    let is_whole = |message: &&MessageRow| !evidence.rules.erased.contains(&message.key.thread);
    for message in evidence.messages.iter().filter(is_whole) {
        let before = last.insert(&message.key.thread, message.number).unwrap_or(0);
        if message.number != before + 1 {
            let (expected, seen) = (format!("number {}", before + 1), format!("number {}", message.number));
            violations.push(Violation::new(Invariant::Numbers, &message.key, expected, seen));
        }
    }
}

fn check_content(message: &MessageRow, fate: &ExpectedOutcome, violations: &mut Vec<Violation>) {
    let key = &message.key;
    if fate.end != ExpectedEnd::Complete || fate.attempt != message.attempt {
        let expected = format!("{:?} in attempt {}", fate.end, fate.attempt);
        let seen = format!("complete in attempt {}", message.attempt);
        violations.push(Violation::new(Invariant::Content, key, expected, seen));
        return;
    }
    let expected = fate.text(fate.attempt);
    if expected != message.content {
        let (expected, seen) = (format!("{expected:?}"), format!("{:?}", message.content));
        violations.push(Violation::new(Invariant::Content, key, expected, seen));
    }
    // Reasoning is stored in the metadata.
    let has_reasoning = fate
        .attempts
        .get(&fate.attempt)
        .is_some_and(|chunks| chunks.values().any(|chunk| chunk.kind == ChunkKind::Reasoning));
    // The metadata also contains the sum of model calls, and other values of the publisher, which
    // may change them when it repeats a chunk.
    let lists_calls =
        |chunk: &std::sync::Arc<model::Chunk>| chunk.metadata.get(model::ModelCall::KEY).is_some();
    let has_sum = fate.attempts.values().flat_map(BTreeMap::values).any(lists_calls);
    let beside = |(name, _): &(&String, &serde_json::Value)| {
        !(matches!(name.as_str(), "timestamp" | "correlation_id") || has_sum && name.as_str() == "usage")
    };
    let own = |metadata: &model::Metadata| -> serde_json::Map<_, _> {
        let map = metadata.as_map().into_iter().flatten();
        map.filter(beside).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    if let Some(last) = fate.final_chunk().filter(|_| !has_reasoning)
        && own(&last.metadata) != own(&message.metadata)
    {
        let (expected, seen) = (format!("{:?}", last.metadata), format!("{:?}", message.metadata));
        violations.push(Violation::new(Invariant::Content, key, expected, seen));
    }
}

fn check_failure(
    key: &MessageKey,
    (attempt, code): (u32, &str),
    fate: &ExpectedOutcome,
    rules: &Rules,
    violations: &mut Vec<Violation>,
) {
    let of_time = (code == "gap_timeout" && !fate.attempts.is_empty()) || code == "stalled";
    let is_right = match &fate.end {
        _ if of_time && fate.is_slow(rules) => true,
        ExpectedEnd::Failed(expected) => {
            *expected == code && (attempt == fate.attempt || code == "unknown_thread" || code == REJECTED)
        }
        ExpectedEnd::Complete | ExpectedEnd::Open => false,
    };
    if !is_right {
        let expected = format!(
            "{:?} in attempt {} (longest gap {} ms, longest silence {} ms)",
            fate.end, fate.attempt, fate.longest_gap_ms, fate.longest_silence_ms
        );
        violations.push(Violation::new(
            Invariant::RightFailure,
            key,
            expected,
            format!("{code} in attempt {attempt}"),
        ));
    }
}

/// A dead letter keeps each accepted chunk once, by id.
fn check_kept(
    key: &MessageKey,
    attempt: u32,
    kept: &[Arc<Chunk>],
    fate: &ExpectedOutcome,
    violations: &mut Vec<Violation>,
) {
    if matches!(fate.end, ExpectedEnd::Failed("unknown_thread" | REJECTED)) {
        return;
    }
    let accepted = fate.attempts.get(&attempt);
    let is_accepted = |chunk: &Arc<Chunk>| accepted.and_then(|all| all.get(&chunk.id)) == Some(chunk);
    let in_order = kept.is_sorted_by(|a, b| a.id < b.id);
    if !in_order || !kept.iter().all(is_accepted) {
        let ids: Vec<u32> = kept.iter().map(|chunk| chunk.id).collect();
        violations.push(Violation::new(
            Invariant::Content,
            key,
            format!("a dead letter with accepted chunks of attempt {attempt} by id"),
            format!("{ids:?}"),
        ));
    }
}
