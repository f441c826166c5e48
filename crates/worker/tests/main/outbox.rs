//! What follows turns after their commit.

use std::collections::{BTreeMap, BTreeSet};

use model::Role;
use serde_json::json;

use crate::fixture::{Fixture, next, until};

#[tokio::test]
async fn tasks_follow_from_a_persons_turn_and_integrators_hear_of_it() {
    let fixture = Fixture::new().await;
    fixture.put("helper-1", json!({"work_request": true, "memory": true})).await;
    let turn = fixture.open_turn("t1", "x", "hello").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    assert_eq!((request.task.clone(), request.correlation_id.as_deref()), (None, Some("c-1")));
    fixture.answer(&request, &["hi"]).await;
    item.ack().await.unwrap();
    let said = fixture.said("t1", 2).await;
    assert_eq!(said, [(Role::User, "hello".to_owned()), (Role::Assistant, "hi".to_owned())]);

    let mut kinds = Vec::new();
    for _ in 0..2 {
        let (item, request) = next(&mut work).await;
        let input = request.context.last().unwrap();
        assert_eq!(input.metadata.get("assistant_message_id"), Some(&json!(turn.answer(0).as_str())));
        let kind = request.task.clone().unwrap().kind;
        let queue = format!("helper-1+{kind}");
        assert_eq!((request.agent_id.as_str(), request.thread_id.as_str()), ("helper-1", queue.as_str()));
        kinds.push(kind);
        fixture.answer(&request, &["noted"]).await;
        item.ack().await.unwrap();
    }
    kinds.sort_unstable();
    assert_eq!(kinds, ["memory", "work_request"]);
    for kind in kinds {
        // The input comes from the system and is not shown.
        fixture.said(&format!("helper-1+{kind}"), 1).await;
    }
    until("all turns are published", async || fixture.stored("TURNS").await.len() == 3).await;
    let events = fixture.stored("TURNS").await;
    let (event, _) = &events[0];
    let batch = fixture.history("t1").await[0].batch_id.to_string();
    let expected = json!({
        "turn_id": turn.as_str(), "thread_id": "t1", "agent_id": "helper-1", "status": "completed",
        "message_id": turn.answer(0).as_str(), "batch_id": batch,
    });
    assert_eq!(*event, expected);
    let ids: BTreeSet<&String> = events.iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len(), 3);
    assert!(events[0].1.starts_with(turn.as_str()), "{}", events[0].1);
    until("the outbox is empty", async || fixture.count("outbox").await == 0).await;
    fixture.end().await;
}

#[tokio::test]
async fn the_outbox_waits_for_nats() {
    let fixture = Fixture::new().await;
    let turns: Vec<_> = {
        let mut turns = Vec::new();
        for number in 0..20 {
            turns.push(fixture.open_turn(&format!("t{number}"), "x", "hello").await);
        }
        turns
    };
    let mut work = fixture.work("default");
    let mut requests = Vec::new();
    for _ in &turns {
        requests.push(next(&mut work).await);
    }
    for (item, request) in &requests {
        fixture.answer(request, &["hi"]).await;
        item.ack().await.unwrap();
    }
    fixture.nats.kill().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    fixture.nats.restart().await.unwrap();
    until("every turn is published once", async || fixture.stored("TURNS").await.len() >= turns.len()).await;
    until("the outbox is empty", async || fixture.count("outbox").await == 0).await;
    let events: BTreeSet<String> =
        fixture.stored("TURNS").await.iter().map(|(event, _)| event["turn_id"].to_string()).collect();
    assert_eq!(events.len(), turns.len());
    fixture.end().await;
}

#[tokio::test]
async fn outbox_of_last_owner_is_sent_in_order_before_new() {
    let mut fixture = Fixture::new().await;
    fixture.stop().await;
    let left = 2_700;
    fixture
        .execute(
            "INSERT INTO outbox (bucket, position, entries)
         SELECT 0, n, jsonb_build_array(jsonb_build_object('turn', jsonb_build_object(
             'id', 'u0000-' || n, 'thread', 't' || n % 7, 'agent', 'a1', 'status', 'completed')))
         FROM generate_series(1, 2700) AS n",
        )
        .await;
    let turn = fixture.open_turn("t4", "x", "hello").await;
    fixture.start_again().await;
    let (item, request) = next(&mut fixture.work("default")).await;
    fixture.answer(&request, &["hi"]).await;
    item.ack().await.unwrap();
    until("the outbox is empty", async || fixture.count("outbox").await == 0).await;
    let events = fixture.stored("TURNS").await;
    let mut last_of: BTreeMap<String, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (event, id) in &events {
        let name = event["turn_id"].as_str().unwrap();
        let Some(number) = name.strip_prefix("u0000-").and_then(|number| number.parse().ok()) else {
            continue;
        };
        assert_eq!(*id, format!("u0000-{number}.{number}"));
        let last = last_of.insert(event["thread_id"].to_string(), number);
        assert!(last < Some(number) && seen.insert(number), "{number} after {last:?}");
    }
    assert_eq!(seen.len(), left);
    assert!(events.iter().any(|(event, _)| event["turn_id"] == turn.as_str()));
    fixture.end().await;
}

#[tokio::test]
async fn old_idempotency_keys_and_responses_are_forgotten() {
    let fixture = Fixture::with(|config| {
        let hour = std::time::Duration::from_secs(3_600);
        let kind = store::CleanupKind::IdempotencyKeys;
        config.cleanup.set(worker::CleanupRule { kind, max_age: hour, max_bytes: None });
    })
    .await;
    fixture
        .execute(
            "INSERT INTO idempotency_keys (bucket, thread_id, key, digest, turn_id, created_at)
         SELECT 0, 't1', n, '', 'u0000-x', now() - make_interval(hours => n) FROM generate_series(0, 4) AS n",
        )
        .await;
    fixture.execute(
        "INSERT INTO responses (bucket, thread_id, turn_id, model, background, metadata, created_at)
         SELECT 0, 't1', n, 'm', false, '{}', now() - make_interval(days => n) FROM generate_series(29, 31) AS n",
    )
    .await;
    until("the old ones are gone", async || fixture.count("idempotency_keys").await == 1).await;
    until("and of responses too", async || fixture.count("responses").await == 1).await;
    fixture.end().await;
}
