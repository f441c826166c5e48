//! Inputs as clients saw them: each once, before its answer. A client that resumed is held to the
//! same rule as one that was never cut, so both see the same inputs.

use std::collections::BTreeSet;

use model::{MessageId, TimerId, TurnId};

use crate::checker::evidence::{Rules, SeenEvent, Transcript};
use crate::checker::invariant::{Invariant, Violation};

/// Checks the inputs of one client of the native stream.
pub(super) fn check(transcript: &Transcript, rules: &Rules, violations: &mut Vec<Violation>) {
    // A gateway that leaves out messages may show some of them twice, and a store that went back in
    // time undoes events that clients have seen. Neither is checked here.
    if rules.left_out.contains(&transcript.thread) || !rules.stepped_back.is_empty() {
        return;
    }
    let mut open: BTreeSet<MessageId> = BTreeSet::new();
    let mut report = |input: &MessageId, expected: &str, seen: &str| {
        let subject = format!("{input} at client {}", transcript.client);
        violations.push(Violation::new(Invariant::Inputs, subject, expected, seen));
    };
    for seen in &transcript.seen {
        match seen {
            SeenEvent::Input { input } if !open.insert(input.clone()) => {
                report(input, "the input once", "the input again");
            }
            SeenEvent::InputWithdrawn { input } if !open.remove(input) => {
                report(input, "the input", "only that it is withdrawn");
            }
            SeenEvent::Complete { message, position: Some(_) } => {
                if let Some(input) = input_of(message).filter(|input| !open.remove(input)) {
                    report(&input, "the input", "only its answer");
                }
            }
            SeenEvent::Failed { message, position: Some(_) } => {
                if let Some(input) = input_of(message).filter(|input| open.remove(input)) {
                    report(&input, "that the input is withdrawn", "only a failure");
                }
            }
            SeenEvent::Restart { .. } => open.clear(),
            _ => {}
        }
    }
}

/// The input of a person that the message answers.
fn input_of(answer: &MessageId) -> Option<MessageId> {
    let (turn, _) = TurnId::of_answer(answer)?;
    let is_of_person = turn.is_foreground() && !turn.is_continuation() && TimerId::of_turn(&turn).is_none();
    is_of_person.then(|| turn.input())
}
