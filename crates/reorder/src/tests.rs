use std::fmt::Write;

use model::{IdRange, Timestamp};
use proptest::prelude::*;

use crate::*;

const LIMITS: MessageLimits = MessageLimits { chunks: 10_000, bytes: 4 << 20 };

/// Scenario text in, rendered outcome out: `3d` is chunk 3 with text d, `5f!` is final.
fn run(scenario: &str) -> String {
    run_within(scenario, LIMITS)
}

fn run_within(scenario: &str, limits: MessageLimits) -> String {
    let mut reorder = Reorder::new(limits);
    let mut out = String::new();
    for word in scenario.split_whitespace() {
        let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
        let text = word[digits.len()..].trim_end_matches('!');
        let digest = text.bytes().map(u64::from).sum();
        let piece =
            Piece { id: digits.parse().unwrap(), is_final: word.ends_with('!'), digest, size: text.len() };
        let outcome = match reorder.insert(piece, text.to_owned(), Timestamp(0)) {
            Insert::Ready => std::iter::from_fn(|| reorder.next_ready()).collect::<Vec<_>>().join(" "),
            Insert::Held => "-".to_owned(),
            Insert::Duplicate => "duplicate".to_owned(),
            Insert::Conflict { .. } => "conflict".to_owned(),
            Insert::Rejected(rejection) => rejection.to_string(),
        };
        let complete = if reorder.is_complete() { " complete" } else { "" };
        write!(out, "{outcome}{complete} | ").unwrap();
    }
    out.trim_end_matches(" | ").to_owned()
}

#[test]
fn the_arrival_of_the_requirements() {
    assert_eq!(run("3d 1b 4e 0a 5f! 2c"), "- | - | - | a b | - | c d e f complete");
}

#[test]
fn duplicates_and_conflicts_change_nothing() {
    assert_eq!(run("0a 0a 2c 2c 1b 2c"), "a | duplicate | - | duplicate | b c | duplicate");
    assert_eq!(
        run("0a 0b 2c 2d 1b! 1b"),
        "a | conflict | - | conflict | chunk 1 is final, but chunk 2 contradicts it | b c"
    );
    assert_eq!(run("0a 1b! 1c!"), "a | b complete | conflict complete", "the end is the same");
    assert_eq!(run("0a 1b! 1b! 0a"), "a | b complete | duplicate complete | duplicate complete");
}

#[test]
fn finals_cannot_change() {
    assert_eq!(run("0a 1b! 2c!"), "a | b complete | chunk 1 is final, but chunk 2 contradicts it complete");
    assert_eq!(run("5f! 6g"), "- | chunk 5 is final, but chunk 6 contradicts it");
    assert_eq!(run("5f! 3d!"), "- | chunk 5 is final, but chunk 3 contradicts it");
    assert_eq!(run("7h 5f!"), "- | chunk 5 is final, but chunk 7 contradicts it");
    assert_eq!(run("7h! 5f!"), "- | chunk 7 is final, but chunk 5 contradicts it");
    assert_eq!(run("7h! 5f"), "- | -");
}

#[test]
fn a_known_chunk_that_comes_again_as_final_contradicts_itself() {
    let finality_is_content = |script: &str| run(&script.replace('!', "x!"));
    let mut outcomes = Vec::new();
    for script in ["0a 1b 2c 3d 2c!", "0a 1b 1b!", "0a 2c 2c!", "0a 2c! 1b 1b!", "0a 1b 3d! 1b!"] {
        outcomes.push(finality_is_content(script));
    }
    assert_eq!(
        outcomes,
        [
            "a | b | c | d | chunk 2 is final, but chunk 3 contradicts it",
            "a | b | chunk 1 is final, but chunk 1 contradicts it",
            "a | - | chunk 2 is final, but chunk 2 contradicts it",
            "a | - | b cx complete | chunk 2 is final, but chunk 1 contradicts it complete",
            "a | b | - | chunk 3 is final, but chunk 1 contradicts it",
        ]
    );
}

#[test]
fn limits_refuse_but_a_duplicate_at_the_limit_does_not() {
    let limits = MessageLimits { chunks: 3, bytes: 4 };
    assert_eq!(run_within("0a 1b 2c 2c 3d", limits), "a | b | c | duplicate | too many chunks");
    assert_eq!(run_within("0aa 1bb 1bb 2c", limits), "aa | bb | duplicate | too many bytes");
}

#[test]
fn a_claimed_id_allocates_one_slot() {
    let mut reorder = Reorder::new(LIMITS);
    reorder.insert(Piece { id: 9_999, is_final: true, digest: 0, size: 1 }, (), Timestamp(0));
    assert_eq!(reorder.ring.capacity(), 0);
    assert_eq!(reorder.missing(64), [IdRange { first: 0, last: 9_998 }]);
}

#[test]
fn a_gap_has_the_age_of_its_opening_whatever_comes_later() {
    let mut reorder = Reorder::new(LIMITS);
    let mut insert = |id: u32, at: i64| {
        let piece = Piece { id, is_final: false, digest: 0, size: 1 };
        reorder.insert(piece, (), Timestamp(at));
        while reorder.next_ready().is_some() {}
        reorder.gap_opened_at()
    };
    assert_eq!(insert(0, 1), None);
    assert_eq!(insert(2, 2), Some(Timestamp(2)), "1 is missing");
    assert_eq!(insert(4, 3), Some(Timestamp(2)), "later chunks do not reset it");
    assert_eq!(insert(1, 9), Some(Timestamp(3)), "3 has been missing since 4 came");
    assert_eq!(insert(3, 9), None);
    assert_eq!(insert(200, 10), Some(Timestamp(10)));
    assert_eq!(insert(7, 11), Some(Timestamp(10)), "5 has been missing since 200 came");
}

fn with(arrivals: &[(u32, i64)]) -> Reorder<()> {
    let mut reorder = Reorder::new(LIMITS);
    for &(id, at) in arrivals {
        let piece = Piece { id, is_final: false, digest: 0, size: 3 };
        reorder.insert(piece, (), Timestamp(at));
        while reorder.next_ready().is_some() {}
    }
    reorder
}

#[test]
fn what_is_missing_lies_between_what_is_there() {
    let reorder = with(&[(0, 1), (2, 1), (5, 1), (6, 1), (200, 1), (1, 1)]);
    let range = |first, last| IdRange { first, last };
    assert_eq!(reorder.missing(64), [range(3, 4), range(7, 199)]);
    assert_eq!(reorder.missing(1), [range(3, 4)]);
    assert_eq!(with(&[(0, 1), (1, 1)]).missing(64), []);
    assert_eq!((reorder.bytes(), reorder.held()), (18, 3));
}

#[test]
fn a_gap_that_is_built_anew_has_the_age_that_it_is_given() {
    let mut reorder = with(&[(0, 9), (2, 10), (4, 20), (6, 30)]);
    reorder.set_gap_opened_at(Timestamp(3));
    assert_eq!(reorder.gap_opened_at(), Some(Timestamp(3)));
    // Time up to 20 was counted twice.
    reorder.postpone(Timestamp(20), 5);
    assert_eq!(reorder.gap_opened_at(), Some(Timestamp(8)));
    let close = |reorder: &mut Reorder<()>, id| {
        reorder.insert(Piece { id, is_final: false, digest: 0, size: 1 }, (), Timestamp(99));
        while reorder.next_ready().is_some() {}
        reorder.gap_opened_at()
    };
    assert_eq!(close(&mut reorder, 1), Some(Timestamp(25)));
    assert_eq!(close(&mut reorder, 3), Some(Timestamp(30)));
    assert_eq!(close(&mut reorder, 5), None);
    reorder.set_gap_opened_at(Timestamp(3));
    assert_eq!(reorder.gap_opened_at(), None, "there is no gap");
}

proptest! {
    #[test]
    fn any_order_with_duplicates_comes_out_once_in_order(
        (count, arrivals) in (1_u32..400).prop_flat_map(|count| {
            let all: Vec<u32> = (0..count).collect();
            let extra = proptest::collection::vec(0..count, 0..50);
            (Just(count), extra.prop_flat_map(move |extra| {
                let mut all = all.clone();
                all.extend(extra);
                Just(all).prop_shuffle()
            }))
        })
    ) {
        let mut reorder = Reorder::new(LIMITS);
        let mut out = Vec::new();
        let mut accepted = std::collections::BTreeSet::new();
        for id in arrivals {
            let piece = Piece { id, is_final: id + 1 == count, digest: u64::from(id), size: 1 };
            let fresh = accepted.insert(id);
            let outcome = reorder.insert(piece, id, Timestamp(0));
            prop_assert_eq!(outcome == Insert::Duplicate, !fresh);
            while let Some(id) = reorder.next_ready() {
                out.push(id);
            }
            let contiguous = (0..count).take_while(|id| accepted.contains(id)).count();
            prop_assert_eq!(out.len(), contiguous, "released as soon as the gap closes, never past it");
            prop_assert_eq!(reorder.held(), accepted.len() - contiguous);
            prop_assert_eq!(reorder.gap_opened_at().is_some(), reorder.held() > 0);
            prop_assert_eq!(reorder.missing(1).is_empty(), reorder.held() == 0);
        }
        prop_assert!(reorder.is_complete());
        prop_assert_eq!(out, (0..count).collect::<Vec<_>>());
    }
}
