use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;

use futures_util::FutureExt;
use partition::isolate::parts;
use proptest::prelude::*;

use super::*;

/// Results from a store that refuses statements containing the items `refused`, and the number of
/// statements.
fn asked(items: &[u32], refused: &BTreeSet<u32>) -> (Vec<Result<u32, u32>>, usize) {
    let statements = Mutex::new(0);
    let ask = |part: &[u32]| {
        *statements.lock().unwrap() += 1;
        let culprit = part.iter().find(|item| refused.contains(item)).copied();
        let found = part.to_vec();
        async move { Ok::<_, Infallible>(culprit.map_or(Ok(found), Err)) }
    };
    let Ok(answers) = parts(items, ask).now_or_never().unwrap();
    let flat = answers.into_iter().flat_map(|(part, answer)| match answer {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(culprit) => {
            assert_eq!(part, [culprit], "a culprit is alone");
            vec![Err(culprit)]
        }
    });
    (flat.collect(), statements.into_inner().unwrap())
}

proptest! {
    #[test]
    fn each_culprit_fails_and_nothing_else(count in 0_u32..600, refused in proptest::collection::btree_set(0_u32..600, 0..12)) {
        let items: Vec<u32> = (0..count).collect();
        let (answers, statements) = asked(&items, &refused);
        let expected: Vec<_> =
            items.iter().map(|item| if refused.contains(item) { Err(*item) } else { Ok(*item) }).collect();
        prop_assert_eq!(answers, expected);
        // One statement for all, and two for each halving on the way to a refused item.
        let culprits = refused.iter().filter(|item| **item < count).count();
        let halvings = items.len().next_power_of_two().trailing_zeros() as usize;
        prop_assert!(statements <= 1 + 2 * culprits * halvings, "{statements} for {culprits} of {count}");
    }

    #[test]
    fn a_store_that_refuses_everything_is_asked_for_each_item_once(count in 1_usize..300) {
        let items: Vec<u32> = (0..count as u32).collect();
        let (answers, statements) = asked(&items, &items.iter().copied().collect());
        prop_assert_eq!(answers.len(), count);
        prop_assert!(answers.iter().all(Result::is_err));
        prop_assert_eq!(statements, 2 * count - 1);
    }
}

#[test]
fn another_error_ends_it() {
    let statements = Mutex::new(0);
    let ask = |part: &[u32]| {
        *statements.lock().unwrap() += 1;
        let answer: Result<Result<(), ()>, &str> = if part.len() > 2 { Ok(Err(())) } else { Err("away") };
        async move { answer }
    };
    assert_eq!(parts(&[1, 2, 3, 4], ask).now_or_never().unwrap(), Err("away"));
    assert_eq!(statements.into_inner().unwrap(), 2);
}

#[test]
fn refused_operation_makes_the_worker_unready() {
    let health = Health::default();
    health.set_started();
    let refusals = Refusals::new(health.clone());
    assert!(health.readyz().ok);
    let first = refusals.retrying("reading queues", &"bigint\nout of range");
    let second = refusals.retrying("reading queues", &"bigint out of range");
    let third = refusals.retrying("reading timers", &"no such table");
    let line = "refused by Postgres: 3 operations are tried again and again, first of them reading queues: bigint out of range\n";
    assert_eq!(health.readyz().body, line);
    drop(first);
    drop(second);
    assert!(health.readyz().body.contains("1 operations"), "{}", health.readyz().body);
    drop(third);
    assert!(health.readyz().ok);

    let mut kept = None;
    refusals.of_round::<()>(&mut kept, "counting budgets", &Err(StoreError::Row("unreadable".to_owned())));
    assert!(!health.readyz().ok);
    refusals.of_round::<()>(&mut kept, "counting budgets", &Err(StoreError::TimedOut));
    assert!(!health.readyz().ok, "the store has not taken it");
    refusals.of_round(&mut kept, "counting budgets", &Ok(()));
    assert!(health.readyz().ok);
    refusals.of_round::<()>(&mut kept, "counting budgets", &Err(StoreError::Stopping));
    assert!(health.readyz().ok, "the process ends");
}
