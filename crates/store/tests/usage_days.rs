//! When old calls are moved into daily sums, all totals stay the same.

use std::sync::Arc;
use std::time::Duration;

use model::{Price, PriceTable, Tenant, ThreadId, Timestamp};
use sqlx::{Connection, PgConnection, Postgres, Row, Transaction};
use store::{CleanupKind, CleanupLimit, ErasedOwner, Store, StoreConfig, UsageGroup, UsageSum};

use crate::fixture::{Database, thread};

/// The groups that remain for a call when only its daily sum is kept.
const KEPT: [UsageGroup; 4] = [UsageGroup::Day, UsageGroup::Agent, UsageGroup::Model, UsageGroup::Kind];

const CALLS: &str =
    "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens,
                                        output_tokens, cached_tokens, reasoning_tokens, is_partial, is_estimated) VALUES
    ('2026-02-27T23:59:59.999Z', 1, 't', 'a', 0, 'ann', 'turn', 'm', 1000, 100, 400, 7, false, false),
    ('2026-02-28T00:00:00Z', 1, 't', 'b', 0, 'ann', 'turn', 'm', 1000, 100, NULL, NULL, false, false),
    -- More from a cache than it read: only what it read is cheaper.
    ('2026-02-28T18:00:00Z', 1, 'u', 'c', 0, 'ann', 'turn', 'm', 10, 1, 500, 1, true, true),
    ('2026-02-28T23:59:59.999Z', 1, 'u', 'c', 1, 'ann', 'summary', NULL, 5, 5, 5, 5, true, true),
    ('2026-02-28T12:00:00Z', 1, 'u', 'd', 0, 'ann', 'summary', NULL, 1, 1, 1, 1, false, false),
    ('2026-02-28T12:00:00Z', 1, 'u', 'e', 0, 'bob', 'turn', 'n', 3, 2, 1, NULL, false, false),
    ('2026-02-28T12:00:00Z', 1, 'acme~t', 'f', 0, 'acme~ann', 'turn', 'm', 17, 19, NULL, NULL, false, false),
    ('2026-03-01T00:00:00Z', 1, 't', 'g', 0, 'ann', 'turn', 'm', 1000, 100, 1, 1, false, false),
    ('2026-03-01T08:00:00Z', 1, 't', 'h', 0, 'ann', 'turn', 'm', 1000, 100, 1, 1, false, false)";

/// Midnight of 28 February 2026, UTC.
const MIDNIGHT: Timestamp = Timestamp(1_772_236_800_000);

/// The age that noon of 1 March 2026 has now: the days before it are old.
async fn age(database: &Database) -> Duration {
    let seconds =
        database.number("SELECT extract(epoch FROM now() - '2026-03-01T12:00Z'::timestamptz)::bigint").await;
    Duration::from_secs(seconds.unsigned_abs())
}

fn priced(store: &Store) -> Store {
    let price = |from: Option<&str>, input, cached_input, output| Price {
        model: "m".to_owned(),
        from: from.map(str::to_owned),
        input,
        cached_input,
        output,
    };
    let prices = vec![
        price(None, 2.0, Some(0.5), 10.0),
        price(Some("2026-02-28"), 1.1, Some(0.1), 8.0),
        price(Some("2026-03-01T00:00:00Z"), 0.9, None, 7.0),
    ];
    store.with_prices(Some(Arc::new(PriceTable { currency: "USD".to_owned(), prices })))
}

#[tokio::test]
async fn sums_of_long_ago_go_and_later_ones_stay() {
    let (database, store) = Database::new(8).await;
    let insert = "INSERT INTO usage_days (day_at, tenant, agent_id, kind, model, calls, partial_calls, input_tokens, output_tokens,
                                          cached_tokens, cached_input_tokens, reasoning_tokens)
                  SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - age, '-', 'ann', 'turn', 'm', 1, 0, 1, 1, 0, 0, 0
                  FROM unnest(ARRAY['9 days', '11 days', '12 days']::interval[]) AS age";
    database.execute(insert).await;
    let ten_days = Duration::from_secs(10 * 86_400);
    assert_eq!(store.clean_up(CleanupKind::UsageDays, CleanupLimit::Age(ten_days), 1).await.unwrap(), 1);
    assert_eq!(store.clean_up(CleanupKind::UsageDays, CleanupLimit::Age(ten_days), 10).await.unwrap(), 1);
    assert_eq!(store.clean_up(CleanupKind::UsageDays, CleanupLimit::Age(ten_days), 10).await.unwrap(), 0);
    assert_eq!(database.number("SELECT count(*) FROM usage_days").await, 1);
}

async fn sums(store: &Store, by: &[UsageGroup]) -> Vec<UsageSum> {
    store.usage(Timestamp(0), Timestamp(i64::from(u32::MAX) * 1_000), by, 100).await.unwrap()
}

/// The totals that must not change: overall, by each group and by all of them. Each is computed for
/// all tenants and for two of them.
async fn all_sums(store: &Store) -> Vec<Vec<UsageSum>> {
    let store = priced(store);
    let acme = store.for_tenant(Some(Tenant::parse("acme").unwrap()));
    let mut all = Vec::new();
    for store in [&store, &store.for_tenant(None), &acme] {
        all.push(sums(store, &[]).await);
        all.push(sums(store, &KEPT).await);
        for group in KEPT {
            all.push(sums(store, &[group]).await);
        }
    }
    all
}

#[tokio::test]
async fn sums_and_costs_stay_when_calls_become_sums_of_days() {
    let (database, store) = Database::new(1).await;
    database.execute(CALLS).await;
    let age = age(&database).await;
    let before = all_sums(&store).await;
    let costs: Vec<_> = before[2].iter().map(|sum| (sum.calls, sum.cost.as_deref())).collect();
    // 600 * 2 + 400 * 0.5 + 1000; then 1000 * 1.1 + 800, 10 * 0.1 + 8, 17 * 1.1 + 152; then 2 *
    // (900 + 700).
    assert_eq!(costs, [(1, Some("0.0024")), (6, Some("0.0020797")), (2, Some("0.0032"))]);
    assert_eq!(store.usage_details_from().await.unwrap(), None);
    let mut rolled = Vec::new();
    loop {
        rolled.push(store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), 2).await.unwrap());
        assert_eq!(all_sums(&store).await, before, "after {rolled:?}");
        if rolled.last() == Some(&0) {
            break;
        }
    }
    assert_eq!(rolled, [2, 2, 2, 1, 0], "the day that is not over yet at that age stays");
    assert_eq!(database.number("SELECT count(*) FROM usage").await, 2);
    assert_eq!(database.number("SELECT count(*) FROM usage_days").await, 5);
    assert_eq!(store.usage_details_from().await.unwrap().as_deref(), Some("2026-03-01"));
    let of_acme = store.for_tenant(Some(Tenant::parse("acme").unwrap()));
    assert_eq!(of_acme.usage_details_from().await.unwrap().as_deref(), Some("2026-03-01"));
    let unknown = store.for_tenant(Some(Tenant::parse("acm").unwrap()));
    assert_eq!(unknown.usage_details_from().await.unwrap(), None);
}

#[tokio::test]
async fn sums_that_no_bigint_holds_are_the_highest_one() {
    let (database, store) = Database::new(1).await;
    // A call can report at most 2^53 tokens, so the sum of 1,024 calls overflows.
    let calls = "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens,
                                    cached_tokens, reasoning_tokens, is_partial)
                 SELECT '2026-02-28T12:00Z', 1, 't', gen_random_uuid()::text, 0, 'ann', 'turn', 'm', 1::bigint << 53, 1::bigint << 53,
                        1::bigint << 53, 1::bigint << 53, false
                 FROM generate_series(1, 1500)";
    database.execute(calls).await;
    let most = |sum: &UsageSum| {
        [sum.input_tokens, sum.output_tokens, sum.cached_tokens, sum.reasoning_tokens] == [i64::MAX; 4]
    };
    let before = sums(&store, &[]).await;
    assert!(most(&before[0]), "{before:?}");
    let age = age(&database).await;
    // The first two parts each fit a bigint; their sum does not.
    for (limit, rolled) in [(900, 900), (900, 600)] {
        assert_eq!(
            store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), limit).await.unwrap(),
            rolled
        );
        assert_eq!(sums(&store, &[]).await, before);
    }
    database.execute(calls).await;
    assert_eq!(store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), 5_000).await.unwrap(), 1_500);
    let after = sums(&store, &[]).await;
    assert!(most(&after[0]) && after[0].calls == 3_000, "{after:?}");
}

#[tokio::test]
async fn what_sums_of_days_do_not_know_is_not_said() {
    let (database, store) = Database::new(1).await;
    database.execute(CALLS).await;
    while store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age(&database).await), 10).await.unwrap()
        > 0
    {}
    let threads: Vec<_> = sums(&store, &[UsageGroup::Thread])
        .await
        .into_iter()
        .map(|sum| (sum.of[2].clone(), sum.calls))
        .collect();
    assert_eq!(threads, [(Some("t".to_owned()), 2), (None, 7)]);
    // All calls of a day count as made at its start.
    let calls = async |from: Timestamp, to: Timestamp| {
        store.usage(from, to, &[], 10).await.unwrap().first().map_or(0, |sum| sum.calls)
    };
    assert_eq!(calls(MIDNIGHT, Timestamp(MIDNIGHT.0 + 1)).await, 6);
    assert_eq!(calls(Timestamp(MIDNIGHT.0 + 1), Timestamp(MIDNIGHT.0 + 86_400_000)).await, 0);
}

#[tokio::test]
async fn two_workers_at_once_count_each_call_once() {
    let (database, store) = Database::new(1).await;
    database
        .execute(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             SELECT '2026-02-20'::date + n % 3, 1, 't', 'm' || n, 0, 'a' || n % 5, 'turn', 'm', n, 1, false FROM generate_series(1, 600) AS n",
        )
        .await;
    let (age, before) = (age(&database).await, all_sums(&store).await);
    let other = Store::connect(&StoreConfig::new(&database.url)).await.unwrap();
    let work = async |store: &Store| {
        let mut rolled = 0;
        while database.number("SELECT count(*) FROM usage").await > 0 {
            rolled += store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), 7).await.unwrap();
        }
        rolled
    };
    let (own, others) = tokio::join!(work(&store), work(&other));
    assert_eq!(own + others, 600);
    assert!(own > 0 && others > 0, "{own} {others}");
    assert_eq!(all_sums(&store).await, before);
    assert_eq!(database.number("SELECT count(*) FROM usage_days").await, 15);
}

/// A worker that has moved four calls into sums and has not committed.
async fn begun(session: &mut PgConnection, age: Duration) -> Transaction<'_, Postgres> {
    let mut transaction = session.begin().await.unwrap();
    let statement = sqlx::query(include_str!("../src/api/usage/roll_up.sql")).bind(age).bind(4_i64);
    let row = statement.fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(row.get::<i64, _>("count"), 4);
    transaction
}

#[tokio::test]
async fn calls_that_another_worker_has_in_hand_are_left_to_it() {
    let (database, store) = Database::new(1).await;
    database.execute(CALLS).await;
    let (age, before) = (age(&database).await, all_sums(&store).await);
    let mut session = database.session().await;
    let first = begun(&mut session, age).await;
    let second = tokio::spawn({
        let store = store.clone();
        async move { store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), 100).await.unwrap() }
    });
    // The second worker has chosen its calls and waits for a sum to which both add.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(waiting).await == 0 {
        assert!(!second.is_finished(), "the two have no sum in common");
    }
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), 3);
    assert_eq!(all_sums(&store).await, before);
}

#[tokio::test]
async fn worker_that_dies_in_between_loses_and_repeats_nothing() {
    let (database, store) = Database::new(1).await;
    database.execute(CALLS).await;
    let (age, before) = (age(&database).await, all_sums(&store).await);
    let mut session = database.session().await;
    let transaction = begun(&mut session, age).await;
    assert_eq!(all_sums(&store).await, before, "what is not committed is not seen");
    transaction.rollback().await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM usage_days").await, 0);
    assert_eq!(all_sums(&store).await, before);
    assert_eq!(store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), 100).await.unwrap(), 7);
    assert_eq!(all_sums(&store).await, before);
}

async fn erase(store: &Store, threads: &[ThreadId]) {
    store.mark_erased(threads, "op", "run", None).await.unwrap();
    store.erase_some(threads).await.unwrap();
}

#[tokio::test]
async fn sums_are_erased_with_their_agent_or_tenant() {
    let (database, store) = Database::new(1).await;
    database.execute(CALLS).await;
    let age = age(&database).await;
    store.clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(age), 100).await.unwrap();
    let left = async || database.rows("SELECT DISTINCT agent_id FROM usage_days ORDER BY 1").await;
    let (acme, ann, bob) = (r#"{"agent_id":"acme~ann"}"#, r#"{"agent_id":"ann"}"#, r#"{"agent_id":"bob"}"#);
    erase(&store, &[thread("u")]).await;
    assert_eq!(left().await, [acme, ann, bob]);
    assert_eq!(store.rows_of_threads(&[thread("bob")]).await.unwrap()["usage_days"], 1);
    erase(&store, &[thread("bob")]).await;
    assert_eq!(left().await, [acme, ann]);
    let tenant = ErasedOwner::Tenant(Some(Tenant::parse("acme").unwrap()));
    assert_eq!(store.threads_to_erase(&tenant).await.unwrap(), [thread("acme~ann")]);
    assert_eq!(store.erase_owner(&tenant).await.unwrap()["usage_days"], 1);
    assert_eq!(left().await, [ann]);
}
