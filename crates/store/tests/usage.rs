//! The usage of a turn is written once, in the commit of the turn and with the same fence.

use std::sync::Arc;

use model::{FinishReason, Metadata, ModelCall, Price, PriceTable, Timestamp, TurnId, UsageKind};
use partition::UsageWrite;
use store::{Committed, UsageGroup};

use crate::fixture::{Database, Owner, key, thread};
use crate::values::agent;

fn used(of: &str, input: &str, number: u16, call: ModelCall) -> UsageWrite {
    let turn = TurnId::foreground(&thread(of), input).unwrap();
    UsageWrite {
        answer: key(of, turn.answer(0).as_str()),
        turn,
        number,
        agent: agent("helper"),
        kind: UsageKind::FollowUp,
        call,
        is_partial: number > 0,
        finish_reason: (number == 0).then_some(FinishReason::Length),
    }
}

fn call(model: &str, input_tokens: u64, output_tokens: u64) -> ModelCall {
    ModelCall { model: Some(model.into()), input_tokens, output_tokens, ..ModelCall::default() }
}

async fn rows(database: &Database) -> Vec<String> {
    let sql = "SELECT call, agent_id, kind, model, input_tokens, output_tokens, cached_tokens, reasoning_tokens, is_partial, finish_reason
               FROM usage ORDER BY thread_id, message_id, call";
    database.rows(sql).await
}

#[tokio::test]
async fn calls_are_written_with_their_commit_and_once() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let counted = ModelCall { cached_tokens: Some(5), reasoning_tokens: Some(0), ..call("m", 7, 3) };
    // The same call twice in one commit: the first one counts.
    let again = used("t", "x", 0, call("other", 99, 99));
    commit.usage = vec![used("t", "x", 0, counted), used("t", "x", 1, ModelCall::default()), again];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let written = [
        r#"{"call":0,"agent_id":"helper","kind":"follow_up","model":"m","input_tokens":7,"output_tokens":3,"cached_tokens":5,"reasoning_tokens":0,"is_partial":false,"finish_reason":"length"}"#,
        r#"{"call":1,"agent_id":"helper","kind":"follow_up","model":null,"input_tokens":0,"output_tokens":0,"cached_tokens":null,"reasoning_tokens":null,"is_partial":true,"finish_reason":null}"#,
    ];
    assert_eq!(rows(&database).await, written);
    // The turn is decided again, with another call.
    commit.usage[0].call = call("other", 99, 99);
    commit.usage.push(commit.usage[0].clone());
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(rows(&database).await, written);
}

#[tokio::test]
async fn estimates_are_marked_and_summed() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let cut = ModelCall { is_estimated: true, ..call("m", 100, 5) };
    commit.usage = vec![used("t", "x", 0, call("m", 7, 3)), used("t", "x", 1, cut)];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let marks = database.rows("SELECT call, is_estimated FROM usage ORDER BY call").await;
    assert_eq!(marks, [r#"{"call":0,"is_estimated":false}"#, r#"{"call":1,"is_estimated":true}"#]);
    let (from, to) = (Timestamp(0), Timestamp(i64::from(u32::MAX) * 1_000));
    let sum = store.usage(from, to, &[], 10).await.unwrap().remove(0);
    assert_eq!((sum.calls, sum.estimated_calls, sum.input_tokens, sum.output_tokens), (2, 1, 107, 8));
}

#[tokio::test]
async fn a_late_call_is_counted_unless_its_thread_was_erased() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let late = |of: &str| used(of, "x", UsageWrite::FIRST_LATE, call("m", 7, 3));
    let insert = "INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ($bucket, 'gone', 'op')";
    let insert = insert.replace("$bucket", &thread("gone").bucket().get().to_string());
    database.execute(&insert).await;
    let mut commit = owner.empty();
    commit.usage = vec![late("t"), late("gone")];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(database.rows("SELECT thread_id FROM usage").await, [r#"{"thread_id":"t"}"#]);
}

#[tokio::test]
async fn tokens_from_a_cache_are_never_cheaper_than_their_price() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/usage-chunks");
    let mut commit = owner.empty();
    for (number, name) in ["cached-beyond-input.json", "control-cached-within-input.json"].iter().enumerate()
    {
        let chunk: serde_json::Value =
            serde_json::from_slice(&std::fs::read(data.join(name)).unwrap()).unwrap();
        let metadata = Metadata::new(chunk["metadata"].as_object().unwrap().clone()).unwrap();
        let call = metadata.model_calls().unwrap().remove(0).call;
        assert_eq!((call.input_tokens, call.cached_tokens), (90_030, Some(90_000)), "{name}");
        commit.usage.push(used(&format!("t{number}"), "x", 0, call));
    }
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let price =
        Price { model: "tern-2".to_owned(), from: None, input: 8.0, cached_input: Some(0.8), output: 40.0 };
    let store =
        store.with_prices(Some(Arc::new(PriceTable { currency: "USD".to_owned(), prices: vec![price] })));
    let (from, to) = (Timestamp(0), Timestamp(i64::from(u32::MAX) * 1_000));
    let sums = store.usage(from, to, &[UsageGroup::Thread], 10).await.unwrap();
    let costs: Vec<_> = sums.iter().map(|sum| sum.cost.as_deref()).collect();
    assert_eq!(costs, [Some("0.0726"), Some("0.0726")]);
}

#[tokio::test]
async fn who_has_lost_the_lease_writes_no_usage() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    store.renounce(&[owner.grant.partition]).await.unwrap();
    let mut commit = owner.empty();
    commit.usage = vec![used("t", "x", 0, call("m", 7, 3))];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Fenced);
    assert!(rows(&database).await.is_empty());
}

#[tokio::test]
async fn sums_are_those_of_the_rows_and_of_one_tenant() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let counted = ModelCall { cached_tokens: Some(5), reasoning_tokens: Some(1), ..call("m", 7, 3) };
    let mut foreign = used("other~t", "x", 0, call("m", 100, 100));
    foreign.agent = agent("other~helper");
    commit.usage = vec![
        used("t", "x", 0, counted),
        used("t", "x", 1, call("m", 10, 20)),
        used("u", "y", 0, call("n", 1, 2)),
        used("u", "z", 0, ModelCall::default()),
        foreign,
    ];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    database.execute("INSERT INTO threads (bucket, thread_id, metadata) SELECT DISTINCT bucket, thread_id, '{\"user_id\": \"ada\"}'::jsonb FROM usage WHERE thread_id = 't'").await;
    let (from, to) = (Timestamp(0), Timestamp(i64::from(u32::MAX) * 1_000));
    let own = store.for_tenant(None);
    let sums = async |by: &[UsageGroup]| {
        let sums = own.usage(from, to, by, 10).await.unwrap();
        let line = |sum: &store::UsageSum| {
            let of: Vec<&str> = sum.of.iter().flatten().map(String::as_str).collect();
            format!(
                "{} {}/{} {}+{} {} {}",
                of.join(","),
                sum.partial_calls,
                sum.calls,
                sum.input_tokens,
                sum.output_tokens,
                sum.cached_tokens,
                sum.reasoning_tokens
            )
        };
        sums.iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(sums(&[]).await, [" 1/4 18+25 5 1"]);
    assert_eq!(sums(&[UsageGroup::Model]).await, ["m 1/2 17+23 5 1", "n 0/1 1+2 0 0", " 0/1 0+0 0 0"]);
    assert_eq!(
        sums(&[UsageGroup::Kind, UsageGroup::Agent, UsageGroup::User]).await,
        ["helper,ada,follow_up 1/2 17+23 5 1", "helper,follow_up 0/2 1+2 0 0"]
    );
    let day = &own.usage(from, to, &[UsageGroup::Day], 10).await.unwrap()[0].of[0];
    let today = database.rows("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day").await;
    assert_eq!(today, [format!(r#"{{"day":"{}"}}"#, day.as_deref().unwrap())]);
    assert!(own.usage(from, from, &[], 10).await.unwrap().is_empty(), "the end is not part of it");
    assert_eq!(store.usage(from, to, &[UsageGroup::Thread], 10).await.unwrap().len(), 3, "of all tenants");
}

#[tokio::test]
async fn costs_follow_the_price_of_the_time_of_each_call() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let cached = ModelCall { cached_tokens: Some(400_000), ..call("m", 1_000_000, 100_000) };
    commit.usage = vec![
        used("t", "old", 0, call("m", 1_000_000, 100_000)),
        used("t", "new", 0, cached),
        used("t", "tiny", 0, call("m", 1, 1)),
        used("t", "other", 0, call("n", 5, 5)),
        used("t", "none", 0, ModelCall::default()),
    ];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    database
        .execute(
            "UPDATE usage SET created_at = CASE WHEN message_id LIKE '%old%' THEN '2026-05-31T23:59:59.999Z'::timestamptz
                                                ELSE '2026-06-01T00:00:00Z'::timestamptz END",
        )
        .await;
    let price = |from: Option<&str>, input, cached_input, output| Price {
        model: "m".to_owned(),
        from: from.map(str::to_owned),
        input,
        cached_input,
        output,
    };
    let prices = vec![price(Some("2026-06-01"), 1.1, Some(0.1), 8.0), price(None, 2.0, None, 10.0)];
    let priced = store.with_prices(Some(Arc::new(PriceTable { currency: "USD".to_owned(), prices })));
    let (from, to) = (Timestamp(0), Timestamp(i64::from(u32::MAX) * 1_000));
    let costs = async |by: &[UsageGroup]| {
        let sums = priced.usage(from, to, by, 10).await.unwrap();
        sums.into_iter().map(|sum| (sum.cost, sum.unpriced_calls)).collect::<Vec<_>>()
    };
    // The costs are old 2 + 1; new 0.6 * 1.1 + 0.4 * 0.1 + 0.8; tiny 1.1e-6 + 8e-6.
    assert_eq!(
        costs(&[UsageGroup::Day]).await,
        [(Some("3".to_owned()), 0), (Some("1.5000091".to_owned()), 2)]
    );
    let by_model = [(Some("4.5000091".to_owned()), 0), (None, 1), (None, 1)];
    assert_eq!(costs(&[UsageGroup::Model]).await, by_model);
    let unpriced = store.usage(from, to, &[], 10).await.unwrap();
    assert_eq!((unpriced[0].cost.as_deref(), unpriced[0].unpriced_calls), (None, 5));
}
