//! Limits of turns: concurrent turns across workers, turns that begin in a minute, and the usage of
//! ended turns.

use std::collections::BTreeMap;
use std::time::Duration;

use model::TurnId;
use scheduling::turn_limits::{LimitAmounts, TurnLimit};
use store::{HeldTurns, LimitedTurn, Store};

use crate::fixture::{Database, thread};

const HELD_FOR: Duration = Duration::from_secs(30);
const BUSY: Duration = Duration::from_millis(700);

fn limit(key: &str, turns_at_once: Option<u32>) -> TurnLimit {
    TurnLimit { key: key.to_owned(), limit: LimitAmounts { turns_at_once, ..LimitAmounts::default() } }
}

fn turn(name: &str) -> TurnId {
    TurnId::foreground(&thread("t"), name).unwrap()
}

async fn admit_turn(store: &Store, worker: &str, name: &str, limits: &[TurnLimit]) -> Option<i64> {
    store.admit_turn(worker, &turn(name), limits, HELD_FOR, BUSY).await.unwrap()
}

/// Admits a turn with a new id.
async fn admit(store: &Store, worker: &str, limits: &[TurnLimit]) -> Option<i64> {
    admit_turn(store, worker, &format!("n{}", rand::random::<u64>()), limits).await
}

async fn hold(store: &Store, worker: &str, held: HeldTurns) {
    store.hold_turns(worker, &held, HELD_FOR).await.unwrap();
}

fn limited(key: &str, names: &[&str]) -> Vec<LimitedTurn> {
    names.iter().map(|name| (key.to_owned(), turn(name))).collect()
}

#[tokio::test]
async fn workers_together_run_as_many_as_may() {
    let (_database, store) = Database::new(1).await;
    let two = [limit("model:m", Some(2))];
    assert_eq!(admit_turn(&store, "w1", "a", &two).await, None);
    assert_eq!(admit_turn(&store, "w2", "b", &two).await, None);
    for worker in ["w1", "w2", "w3"] {
        assert_eq!(admit(&store, worker, &two).await, Some(700), "{worker}");
    }
    assert_eq!(admit(&store, "w1", &[limit("model:other", Some(1))]).await, None);
    // A running turn is admitted again and counted once.
    assert_eq!(admit_turn(&store, "w1", "a", &two).await, None);
    // One turn has ended. The other was not ended, because a worker cannot end a turn of another
    // one.
    let ended = HeldTurns { ended: limited("model:m", &["a", "b"]), ..HeldTurns::default() };
    hold(&store, "w1", ended).await;
    assert_eq!(admit(&store, "w3", &two).await, None);
    assert_eq!(admit(&store, "w1", &two).await, Some(700));
}

#[tokio::test]
async fn turns_of_a_dead_worker_stay_counted_for_who_goes_on() {
    let (database, store) = Database::new(1).await;
    let two = [limit("model:m", Some(2))];
    for name in ["a", "b"] {
        assert_eq!(admit_turn(&store, "dead", name, &two).await, None);
    }
    // The next owner asks for admission of the first turn. It continues the second one without
    // asking, because the answer of that turn has begun.
    assert_eq!(admit_turn(&store, "w1", "a", &two).await, None);
    hold(&store, "w1", HeldTurns { entered: limited("model:m", &["b"]), ..HeldTurns::default() }).await;
    let dies =
        "UPDATE turn_limit_workers SET held_until = held_until - interval '31 s' WHERE worker_id = 'dead'";
    database.execute(dies).await;
    assert_eq!(admit(&store, "w2", &two).await, Some(700), "both run");
    let ended = HeldTurns { ended: limited("model:m", &["b"]), ..HeldTurns::default() };
    hold(&store, "w1", ended).await;
    // A worker may commit the end of a turn that it has not continued.
    let finished = HeldTurns { finished: vec![turn("a")], ..HeldTurns::default() };
    hold(&store, "w2", finished).await;
    assert_eq!(admit_turn(&store, "w1", "a", &two).await, None);
    assert_eq!(admit_turn(&store, "dead2", "c", &two).await, None);
    assert_eq!(admit(&store, "w2", &two).await, Some(700));
    // A turn that no owner continues stops counting and is deleted.
    database.execute(&dies.replace("'dead'", "'dead2'")).await;
    assert_eq!(admit(&store, "w2", &two).await, None);
    database.execute(&dies.replace("31 s", "11 minutes").replace("'dead'", "'dead2'")).await;
    store.forget_unused_limits("w9", &[]).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM turn_limit_turns WHERE worker_id = 'dead2'").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM turn_limit_turns").await, 2);
    // After a worker with the same name has restarted, none of its earlier turns is counted.
    store.forget_unused_limits("w1", &[turn("a")]).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM turn_limit_turns").await, 2);
    store.forget_unused_limits("w1", &[]).await.unwrap();
    assert_eq!(database.rows("SELECT worker_id FROM turn_limit_turns").await, [r#"{"worker_id":"w2"}"#]);
}

#[tokio::test]
async fn a_turn_under_several_limits_takes_all_or_nothing() {
    let (database, store) = Database::new(1).await;
    let both = [limit("model:m", Some(5)), limit("tenant:-", Some(1))];
    assert_eq!(admit(&store, "w1", &both).await, None);
    assert_eq!(admit(&store, "w1", &both).await, Some(700));
    assert_eq!(database.number("SELECT count(*) FROM turn_limit_turns").await, 2);
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
    // After any idle time, at most the turns of one minute can begin at once.
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
    let tokens = BTreeMap::from([("model:m".to_owned(), 1_500)]);
    hold(&store, "w1", HeldTurns { tokens, ..HeldTurns::default() }).await;
    let wait = admit(&store, "w1", &limits).await.unwrap();
    assert!((29_000..=30_100).contains(&wait), "500 of 1,000 in a minute: {wait}");
    store.forget_unused_limits("w9", &[]).await.unwrap();
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '31 s'").await;
    assert_eq!(admit(&store, "w1", &limits).await, None);

    // A limit that is added later does not count earlier turns, which were unlimited.
    let turns = LimitAmounts { turns_per_minute: Some(600), ..LimitAmounts::default() };
    let turns = [TurnLimit { key: "model:m".to_owned(), limit: turns }];
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '1 s'").await;
    assert_eq!(admit(&store, "w1", &turns).await, None);
    assert_eq!(database.number("SELECT tokens_left::bigint FROM turn_limits").await, 0);
    assert_eq!(admit(&store, "w1", &[limit("model:m", Some(100))]).await, None);
    assert_eq!(database.number("SELECT turns_left::bigint FROM turn_limits").await, 0);

    // A limit under which no turn has begun for an hour is deleted.
    database.execute("UPDATE turn_limits SET refilled_at = refilled_at - interval '61 minutes'").await;
    store.forget_unused_limits("w9", &[]).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM turn_limits").await, 0);
}

/// Several tenants may share the limit of a model, so a debt must not block them for longer.
#[tokio::test]
async fn what_is_owed_ends_within_an_hour() {
    let (_database, store) = Database::new(1).await;
    let amounts = LimitAmounts { tokens_per_minute: Some(1_000), ..LimitAmounts::default() };
    let limits = [TurnLimit { key: "model:m".to_owned(), limit: amounts }];
    assert_eq!(admit_turn(&store, "w", "a", &limits).await, None);
    for _ in 0..2 {
        let tokens = BTreeMap::from([("model:m".to_owned(), u64::MAX)]);
        hold(&store, "w", HeldTurns { tokens, finished: vec![turn("a")], ..HeldTurns::default() }).await;
    }
    let wait_ms = admit(&store, "w", &limits).await.unwrap();
    assert!((3_500_000..=3_600_100).contains(&wait_ms), "{wait_ms}");
}
