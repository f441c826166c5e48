//! Limits of turns: what several workers run together, what begins in a minute, and what a turn that has ended has used.

use std::time::Duration;

use scheduling::turn_limits::{LimitAmounts, TurnLimit};
use store::{HeldTurns, Store};

use crate::fixture::Database;

const HELD_FOR: Duration = Duration::from_secs(15);
const BUSY: Duration = Duration::from_millis(700);

fn limit(key: &str, turns_at_once: Option<u32>) -> TurnLimit {
    TurnLimit { key: key.to_owned(), limit: LimitAmounts { turns_at_once, ..LimitAmounts::default() } }
}

async fn admit(store: &Store, worker: &str, limits: &[TurnLimit]) -> Option<i64> {
    store.admit_turn(worker, limits, HELD_FOR, BUSY).await.unwrap()
}

fn held(key: &str, running: u64, tokens: u64) -> HeldTurns {
    HeldTurns { key: key.to_owned(), running, tokens }
}

async fn hold(store: &Store, worker: &str, of: &[HeldTurns]) {
    store.hold_turns(worker, of, HELD_FOR).await.unwrap();
}

#[tokio::test]
async fn workers_together_run_as_many_as_may() {
    let (database, store) = Database::new(1).await;
    let two = [limit("model:m", Some(2))];
    assert_eq!(admit(&store, "w1", &two).await, None);
    assert_eq!(admit(&store, "w2", &two).await, None);
    for worker in ["w1", "w2", "w3"] {
        assert_eq!(admit(&store, worker, &two).await, Some(700), "{worker}");
    }
    assert_eq!(admit(&store, "w1", &[limit("model:other", Some(1))]).await, None);

    // One of them has ended its turn; who has said nothing for long has none.
    hold(&store, "w1", &[held("model:m", 0, 0)]).await;
    assert_eq!(admit(&store, "w3", &two).await, None);
    assert_eq!(admit(&store, "w1", &two).await, Some(700));
    database
        .execute(
            "UPDATE turn_limit_holders SET held_until = held_until - interval '16 s' WHERE worker_id = 'w2'",
        )
        .await;
    assert_eq!(admit(&store, "w1", &two).await, None);
    assert_eq!(admit(&store, "w1", &two).await, Some(700));
    // What it says replaces what was counted for it, and what has run out for a minute goes.
    hold(&store, "w1", &[held("model:m", 2, 0)]).await;
    assert_eq!(
        database
            .number("SELECT running FROM turn_limit_holders WHERE worker_id = 'w1' AND key = 'model:m'")
            .await,
        2
    );
    database.execute("UPDATE turn_limit_holders SET held_until = held_until - interval '80 s'").await;
    hold(&store, "w9", &[]).await;
    assert_eq!(database.number("SELECT count(*) FROM turn_limit_holders").await, 0);
}

#[tokio::test]
async fn a_turn_under_several_limits_takes_all_or_nothing() {
    let (database, store) = Database::new(1).await;
    let both = [limit("model:m", Some(5)), limit("tenant:-", Some(1))];
    assert_eq!(admit(&store, "w1", &both).await, None);
    assert_eq!(admit(&store, "w1", &both).await, Some(700));
    assert_eq!(database.number("SELECT sum(running)::bigint FROM turn_limit_holders").await, 2);
    assert_eq!(admit(&store, "w1", &both[..1]).await, None);
}

#[tokio::test]
async fn hundred_turns_at_once_share_seven_places() {
    let (_database, store) = Database::new(1).await;
    let limits = [limit("model:m", Some(7)), limit("workflow:w", Some(50))];
    let tries = (0..100).map(|number| {
        let (store, limits) = (store.clone(), limits.clone());
        tokio::spawn(async move { admit(&store, &format!("w{}", number % 4), &limits).await })
    });
    let mut admitted = 0;
    for tried in tries.collect::<Vec<_>>() {
        admitted += usize::from(tried.await.unwrap().is_none());
    }
    assert_eq!(admitted, 7);
}

#[tokio::test]
async fn turns_of_a_minute_come_back_with_time() {
    let (database, store) = Database::new(1).await;
    let three = LimitAmounts { turns_per_minute: Some(3), ..LimitAmounts::default() };
    let limits = [TurnLimit { key: "workflow:w".to_owned(), limit: three }];
    for _ in 0..3 {
        assert_eq!(admit(&store, "w1", &limits).await, None);
    }
    let wait = admit(&store, "w1", &limits).await.unwrap();
    assert!((18_000..=20_000).contains(&wait), "one of three in a minute: {wait}");
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '20 s'").await;
    assert_eq!(admit(&store, "w1", &limits).await, None);
    assert!(admit(&store, "w1", &limits).await.is_some());
    // However long nothing came, no more than those of a minute come at once.
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '1 day'").await;
    for _ in 0..3 {
        assert_eq!(admit(&store, "w1", &limits).await, None);
    }
    assert!(admit(&store, "w1", &limits).await.is_some());
}

#[tokio::test]
async fn tokens_of_ended_turns_are_owed() {
    let (database, store) = Database::new(1).await;
    let thousand = LimitAmounts { tokens_per_minute: Some(1_000), ..LimitAmounts::default() };
    let limits = [TurnLimit { key: "model:m".to_owned(), limit: thousand }];
    assert_eq!(admit(&store, "w1", &limits).await, None);
    hold(&store, "w1", &[held("model:m", 0, 1_500)]).await;
    let wait = admit(&store, "w1", &limits).await.unwrap();
    assert!((29_000..=30_100).contains(&wait), "500 of 1,000 in a minute: {wait}");
    store.forget_unused_limits().await.unwrap();
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '31 s'").await;
    assert_eq!(admit(&store, "w1", &limits).await, None);

    // A limit that comes later owes nothing of what was not limited.
    let turns = LimitAmounts { turns_per_minute: Some(600), ..LimitAmounts::default() };
    let turns = [TurnLimit { key: "model:m".to_owned(), limit: turns }];
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '1 s'").await;
    assert_eq!(admit(&store, "w1", &turns).await, None);
    assert_eq!(database.number("SELECT tokens_left::bigint FROM turn_limits").await, 0);
    assert_eq!(admit(&store, "w1", &[limit("model:m", Some(100))]).await, None);
    assert_eq!(database.number("SELECT turns_left::bigint FROM turn_limits").await, 0);

    // What nothing has come under for an hour is forgotten.
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '61 minutes'").await;
    store.forget_unused_limits().await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM turn_limits").await, 0);
}
