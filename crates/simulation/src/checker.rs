//! Checks the invariants on plain data: what was published, what is stored, what clients saw.
//!
//! Entry point: [`check`]. The checker shares no code with the code under test, only the types of
//! `model`: it computes each message's outcome again from the order of the log. It does not depend
//! on the simulation; process tests use it too.

mod evidence;
mod expected_outcome;
mod inputs;
mod invariant;
mod stored;
mod transcripts;
pub mod turns;

use std::collections::{BTreeMap, BTreeSet};

use model::{MessageKey, PartitionId};

pub use evidence::{DeadLetterRow, Evidence, MessageRow, Publish, Published, Rules, SeenEvent, Transcript};
pub use expected_outcome::{ExpectedEnd, ExpectedOutcome, expected_outcomes};
pub use invariant::{Invariant, Violation};

/// Checks every invariant of messages that the evidence covers. An empty result means that all of
/// them hold.
///
/// The messages of turns count only for the order of the thread; [`check_with_turns`] checks them.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let expected_outcomes = expected_outcomes(&evidence.ledger, &evidence.rules);
    check_messages(evidence, &expected_outcomes, &BTreeSet::new(), &BTreeSet::new())
}

/// Like [`check`], and also checks every invariant of turns. Commands that became dead letters, and
/// answers that failed, are allowed here.
pub fn check_with_turns(evidence: &Evidence, turns: &turns::Turns) -> Vec<Violation> {
    let expected_outcomes = expected_outcomes(&evidence.ledger, &evidence.rules);
    let commands = turns.ledger.iter().map(|ordered| (ordered.partition, ordered.seq)).collect();
    let mut violations = check_messages(evidence, &expected_outcomes, &commands, &turns.dead);
    violations.extend(turns::check(evidence, turns, &expected_outcomes));
    violations
}

fn check_messages(
    evidence: &Evidence,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    commands: &BTreeSet<(PartitionId, u64)>,
    failed: &BTreeSet<MessageKey>,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    stored::check(evidence, commands, expected_outcomes, &mut violations);
    check_epochs(&evidence.grants, &mut violations);
    let ends = transcripts::Ends::of(evidence, failed);
    for transcript in &evidence.transcripts {
        transcripts::check(transcript, &evidence.rules, &ends, expected_outcomes, &mut violations);
        inputs::check(transcript, &evidence.rules, &mut violations);
    }
    violations
}

fn check_epochs(grants: &[(PartitionId, u64)], violations: &mut Vec<Violation>) {
    let mut last: BTreeMap<PartitionId, u64> = BTreeMap::new();
    for &(partition, epoch) in grants {
        if let Some(before) = last.insert(partition, epoch).filter(|before| *before >= epoch) {
            let (expected, seen) = (format!("an epoch above {before}"), format!("a grant of {epoch}"));
            violations.push(Violation::new(
                Invariant::Epochs,
                format!("partition {partition}"),
                expected,
                seen,
            ));
        }
    }
}

#[cfg(test)]
mod tests;
