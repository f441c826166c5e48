//! How a new owner continues the work of the previous one, and what happens to commits that cannot
//! be applied as intended.

use model::{AgentId, GatewayId, Role, TaskId, ThreadId};
use serde_json::json;
use store::TaskStatus;
use tokio::time::timeout;
use wire::query::{
    ChangedThreads, ChangedThreadsQuery, decode_changed_threads, encode_changed_threads_query,
};

use crate::fixture::{Fixture, SOON, count, next, until};

#[tokio::test]
async fn a_new_owner_goes_on_with_what_was_requested() {
    let mut fixture = Fixture::new().await;
    fixture.send_task("a1", "k1", "one").await;
    fixture.open_turn("t1", "x", "hello").await;
    let mut work = fixture.work("default");
    let (first, second) = (next(&mut work).await, next(&mut work).await);
    fixture.another_worker().await;
    assert!(timeout(SOON * 3, work.next()).await.is_err(), "the requests are the ones that are there");
    for (item, request) in [first, second] {
        assert_eq!(item.delivered, 1);
        fixture.answer(&request, &["done"]).await;
        item.ack().await.unwrap();
    }
    let said = fixture.said("a1", 2).await;
    assert_eq!(said, [(Role::User, "one".to_owned()), (Role::Assistant, "done".to_owned())]);
    assert_eq!(fixture.said("t1", 2).await.len(), 2);
    fixture.end().await;
}

#[tokio::test]
async fn a_new_owner_takes_up_an_answer_that_has_begun() {
    let mut fixture = Fixture::new().await;
    fixture.send_task("a1", "k1", "one").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    fixture.answer_part(&request, 0, "be", false).await;
    fixture.another_worker().await;
    tokio::time::sleep(SOON).await;
    fixture.answer_part(&request, 1, "gun", true).await;
    item.ack().await.unwrap();
    let said = fixture.said("a1", 2).await;
    assert_eq!(said[1], (Role::Assistant, "begun".to_owned()));
    assert!(timeout(SOON, work.next()).await.is_err(), "nothing was requested again");
    fixture.end().await;
}

/// Gateways ignore an owner with a lower epoch than one they know. That happens when Postgres has
/// forgotten a takeover.
#[tokio::test]
async fn an_owner_rises_above_an_epoch_that_a_gateway_knows() {
    let fixture = Fixture::new().await;
    fixture.send_task("a1", "k1", "one").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    let client = async_nats::connect(fixture.nats.url()).await.unwrap();
    let subject = wire::subject::query(ThreadId::parse("a1").unwrap().bucket().partition(count()));
    let ask = async |epoch: u64| -> Option<ChangedThreads> {
        let question = ChangedThreadsQuery { epoch, ..ChangedThreadsQuery::default() };
        let payload = encode_changed_threads_query(&GatewayId::of_number(7), &question);
        let reply = timeout(SOON, client.request(subject.clone(), payload)).await.ok()?.ok()?;
        Some(decode_changed_threads(&reply.payload).unwrap())
    };
    let own = ask(0).await.expect("it has an owner").epoch;
    let seen = own + 1_000_000_000_000;
    assert_eq!(ask(seen).await, None, "its reply would not be taken");
    until("the owner's epoch is above", async || ask(seen).await.is_some_and(|it| it.epoch > seen)).await;
    let incidents = fixture.store.incidents(true, 100).await.unwrap();
    assert!(incidents.len() == 1 && incidents[0].acknowledged.is_some(), "{incidents:?}");
    assert!(incidents[0].detail.contains(&seen.to_string()), "{incidents:?}");
    // The task continues.
    fixture.answer(&request, &["done"]).await;
    item.ack().await.unwrap();
    assert_eq!(fixture.said("a1", 2).await[1], (Role::Assistant, "done".to_owned()));
    assert!(timeout(SOON, work.next()).await.is_err(), "nothing was requested again");
    fixture.end().await;
}

#[tokio::test]
async fn a_turn_that_the_store_refuses_fails_alone() {
    let fixture = Fixture::new().await;
    fixture.execute("ALTER TABLE messages ADD CONSTRAINT no_poison CHECK (content <> 'poison')").await;
    let poisoned = fixture.open_turn("t1", "x", "hello").await;
    for agent in 0..4 {
        fixture.send_task(&format!("a{agent}"), "k1", "one").await;
        fixture.send_task(&format!("a{agent}"), "k2", "two").await;
    }
    let mut work = fixture.work("default");
    let mut requests = Vec::new();
    for _ in 0..5 {
        requests.push(next(&mut work).await);
    }
    for (item, request) in &requests {
        let is_bad = ["t1", "a1"].contains(&request.thread_id.as_str());
        fixture.answer(request, &[if is_bad { "poison" } else { "fine" }]).await;
        item.ack().await.unwrap();
    }
    for _ in 0..4 {
        let (item, request) = next(&mut work).await;
        assert_eq!(request.task.as_ref().unwrap().task_id, "k2", "nothing follows from the refused turn");
        fixture.answer(&request, &["fine"]).await;
        item.ack().await.unwrap();
    }
    for agent in 0..4 {
        let expected = if agent == 1 { 2 } else { 4 };
        assert_eq!(fixture.said(&format!("a{agent}"), expected).await.len(), expected);
    }
    let (agent, task) = (AgentId::parse("a1").unwrap(), TaskId::parse("k1").unwrap());
    let row = fixture.store.task(&agent, &task).await.unwrap().unwrap();
    assert_eq!(row.status, TaskStatus::Failed);
    assert_eq!(row.failure.unwrap().code, "rejected_by_database");
    assert!(fixture.history("t1").await.is_empty());
    let failed =
        fixture.store.failed_turn(&ThreadId::parse("t1").unwrap(), &poisoned).await.unwrap().unwrap();
    assert_eq!((failed.code.as_str(), failed.opened.content.as_str()), ("rejected_by_database", "hello"));
    assert!(failed.text.contains("no_poison"), "{}", failed.text);
    until("all turns are published", async || fixture.stored("TURNS").await.len() == 9).await;
    let events: Vec<_> = fixture.stored("TURNS").await.into_iter().map(|(event, _)| event).collect();
    let failures = events.iter().filter(|event| event["status"] == "failed").collect::<Vec<_>>();
    assert_eq!(failures.len(), 2);
    for event in failures {
        assert_eq!((&event["code"], &event["message_id"]), (&json!("rejected_by_database"), &json!(null)));
    }
    until("the outbox is empty", async || fixture.count("outbox").await == 0).await;
    assert!(timeout(SOON, work.next()).await.is_err());
    fixture.end().await;
}

#[tokio::test]
async fn what_meets_a_damaged_page_fails_alone_and_holds_up_nothing() {
    let fixture = Fixture::new().await;
    fixture
        .execute(
            "CREATE FUNCTION damaged() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'invalid page in block 7' USING ERRCODE = 'XX000'; END $$",
        )
        .await;
    fixture
        .execute(
            "CREATE TRIGGER damaged BEFORE INSERT ON messages FOR EACH ROW
         WHEN (NEW.content = 'here') EXECUTE FUNCTION damaged()",
        )
        .await;
    let damaged = fixture.open_turn("t1", "x", "hello").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    fixture.answer(&request, &["here"]).await;
    item.ack().await.unwrap();
    fixture.send_task("a1", "k1", "one").await;
    let (item, request) = next(&mut work).await;
    fixture.answer(&request, &["elsewhere"]).await;
    item.ack().await.unwrap();
    assert_eq!(fixture.said("a1", 2).await[1], (Role::Assistant, "elsewhere".to_owned()));
    let thread = ThreadId::parse("t1").unwrap();
    let failed = async || fixture.store.failed_turn(&thread, &damaged).await.unwrap();
    until("the turn has failed", async || failed().await.is_some()).await;
    assert_eq!(failed().await.unwrap().code, "rejected_by_database");
    fixture.end().await;
}

#[tokio::test]
async fn a_queue_that_moved_behind_its_owner_is_read_again() {
    let fixture = Fixture::new().await;
    fixture.send_task("a1", "k1", "one").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    fixture
        .execute(
            "INSERT INTO agents (bucket, agent_id, head_position)
         SELECT bucket, agent_id, position FROM tasks
         ON CONFLICT (bucket, agent_id) DO UPDATE SET head_position = excluded.head_position",
        )
        .await;
    fixture.answer(&request, &["too late"]).await;
    item.ack().await.unwrap();
    fixture.send_task("a1", "k2", "two").await;
    let (item, request) = next(&mut work).await;
    assert_eq!(request.context.last().unwrap().content, "two");
    fixture.answer(&request, &["in time"]).await;
    item.ack().await.unwrap();
    let said = fixture.said("a1", 2).await;
    assert_eq!(said[1], (Role::Assistant, "in time".to_owned()), "what was too late is nowhere");
    fixture.end().await;
}
