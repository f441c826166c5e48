//! Random sequences of appends, compressions, undos and restores, with random threads.

use std::collections::{BTreeMap, BTreeSet};

use model::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::Config;
use reasoning::{Reason, ReasoningRole, ReasoningThreadStack, Refusal, Runs, Selection, Valid};

use crate::fixture::{message, over, request, shown};

/// One step. Its numbers are mapped to the thread.
#[derive(Debug, Clone)]
enum Step {
    Say,
    /// Calls this many tools.
    Call(usize),
    /// Answers one of the waiting calls.
    Answer(usize),
    Last(i64),
    Range(i64, i64),
    /// Compresses this many numbers, starting at a position.
    Numbers(usize, usize),
    Undo,
    Checkpoint(u8),
    Restore(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Say),
        2 => (1usize..4).prop_map(Step::Call),
        3 => any::<usize>().prop_map(Step::Answer),
        2 => (-1i64..6).prop_map(Step::Last),
        3 => (-1i64..14, -1i64..14).prop_map(|(from, to)| Step::Range(from, to)),
        2 => (0usize..12, 1usize..5).prop_map(|(from, count)| Step::Numbers(from, count)),
        2 => Just(Step::Undo),
        1 => (0u8..3).prop_map(Step::Checkpoint),
        1 => (0u8..3).prop_map(Step::Restore),
    ]
}

/// The facts that the test knows besides the stack.
#[derive(Default)]
struct Known {
    /// For each call: the number of its message, and that of the message with its result.
    calls: BTreeMap<String, (u64, Option<u64>)>,
    /// The shown numbers at each checkpoint.
    checkpoints: BTreeMap<u8, Vec<u64>>,
}

impl Known {
    fn append(&mut self, stack: &mut ReasoningThreadStack, step: &Step) {
        match step {
            Step::Call(count) => {
                let first = self.calls.len();
                let ids: Vec<String> = (first..first + count).map(|id| format!("c{id}")).collect();
                let number = stack.append(vec![message(&format!("a:>{}", ids.join(",")))]).unwrap();
                self.calls.extend(ids.into_iter().map(|id| (id, (number, None))));
            }
            Step::Answer(which) => {
                let waiting: Vec<String> = self
                    .calls
                    .iter()
                    .filter(|(_, (_, result))| result.is_none())
                    .map(|(id, _)| id.clone())
                    .collect();
                let Some(id) = waiting.get(which % waiting.len().max(1)) else { return };
                // Calls of a base layer are never answered, so the append may fail.
                if let Ok(number) = stack.append(vec![message(&format!("t<{id}:result"))]) {
                    self.calls.insert(id.clone(), (self.calls[id].0, Some(number)));
                }
            }
            _ => drop(stack.append(vec![message("u:something")]).unwrap()),
        }
    }
}

/// The original messages behind a shown message, without summaries.
fn originals(stack: &ReasoningThreadStack, number: u64, found: &mut Vec<u64>) {
    match stack.discarded().find(|entry| entry.layer.summary == number) {
        Some(entry) => entry.layer.replaced.iter().for_each(|number| originals(stack, *number, found)),
        None => found.push(number),
    }
}

fn check(stack: &ReasoningThreadStack, known: &Known) {
    let shown = shown(stack);
    let unique: BTreeSet<u64> = shown.iter().copied().collect();
    assert_eq!(unique.len(), shown.len(), "a number is shown twice: {shown:?}");
    for (id, (call, result)) in &known.calls {
        if let Some(result) = result {
            assert_eq!(unique.contains(call), unique.contains(result), "{id} is split: {shown:?}");
        }
    }
    let mut all = Vec::new();
    shown.iter().for_each(|number| originals(stack, *number, &mut all));
    let said = stack.messages().iter().filter(|message| message.role != ReasoningRole::Summary);
    assert!(said.map(|message| message.number).eq(all.iter().copied()), "lost or moved: {all:?}");
}

fn take(stack: &mut ReasoningThreadStack, known: &mut Known, step: &Step) {
    let before = stack.view();
    let selection = match step {
        Step::Say | Step::Call(_) | Step::Answer(_) => return known.append(stack, step),
        Step::Undo => return drop(stack.undo(None)),
        Step::Checkpoint(name) => {
            stack.checkpoint(&name.to_string(), Timestamp(0)).unwrap();
            known.checkpoints.insert(*name, shown(stack));
            return;
        }
        Step::Restore(name) => {
            let count = stack.messages().len() as u64;
            if stack.restore(&name.to_string()).is_ok() {
                let then = &known.checkpoints[name];
                let now = shown(stack);
                assert_eq!(&now[..then.len()], then);
                assert!(now[then.len()..].iter().all(|number| !then.contains(number) && *number <= count));
            } else {
                assert_eq!(stack.view(), before);
            }
            return;
        }
        Step::Last(count) => Selection::Last(*count),
        Step::Range(from, to) => Selection::Range(*from, *to),
        Step::Numbers(from, count) => {
            let shown = shown(stack);
            Selection::Numbers(shown.iter().skip(*from).take(*count).map(|number| *number as i64).collect())
        }
    };
    match stack.compress(&request(selection, "sum")) {
        Err(refusal) => {
            assert_eq!(stack.view(), before);
            accepts(stack, &refusal);
        }
        Ok(done) => {
            assert_eq!(shown(stack), done.shown.numbers().collect::<Vec<_>>());
            assert!(done.positions.0 <= done.asked.0 && done.asked.1 <= done.positions.1);
            let mut undone = stack.clone();
            undone.undo(None).unwrap();
            assert_eq!(undone.view(), before);
        }
    }
}

/// Checks that every request offered in a refusal is accepted.
fn accepts(stack: &ReasoningThreadStack, refusal: &Refusal) {
    // To compress a single message, the summary must be shorter. The lengths match the reason of
    // the refusal.
    let summary = if refusal.reason == Reason::Single { "sum" } else { "s" };
    let selections: Vec<Selection> = match &refusal.valid {
        Valid::Ranges(ranges) => {
            ranges.iter().map(|(from, to)| Selection::Range(*from as i64, *to as i64)).collect()
        }
        Valid::Count(counts) => counts
            .iter()
            .flat_map(|(least, most)| (*least..=*most).map(|count| Selection::Last(count as i64)))
            .collect(),
        Valid::Numbers(lists) => {
            let list = |runs: &Runs| Selection::Numbers(runs.numbers().map(|number| number as i64).collect());
            lists.iter().map(list).collect()
        }
        Valid::Anything | Valid::Names(_) => Vec::new(),
    };
    for selection in selections {
        let outcome = stack.clone().compress(&request(selection.clone(), summary));
        assert!(outcome.is_ok(), "{selection:?}: {outcome:?} {}", stack.view());
    }
}

proptest! {
    #![proptest_config(Config::with_cases(100_000))]

    #[test]
    fn sequences_keep_pairs_whole_and_numbers_unique(
        base in 0usize..5,
        steps in proptest::collection::vec(step(), 1..24),
    ) {
        let words = ["u:Ann", "a:B>b1", "t<b1:r", "a:Cal>b2", "u:Dan"];
        let mut stack = over(&words[..base].join(" "), "");
        let mut known = Known::default();
        if base > 2 {
            known.calls.insert("b1".to_owned(), (2, Some(3)));
        }
        for step in &steps {
            take(&mut stack, &mut known, step);
            check(&stack, &known);
        }
    }
}
