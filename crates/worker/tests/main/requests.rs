//! Turn requests: their content, and what happens to abandoned ones.

use model::{AgentId, Role, TaskId, TurnId};
use serde_json::json;
use store::TaskStatus;
use tokio::time::timeout;
use wire::work::{ContextMessage, TaskRef};

use crate::fixture::{Fixture, SOON, TEST_TIMEOUT, count, next, until};

fn said(message: &ContextMessage) -> (&str, &str, &str) {
    (message.role.as_str(), message.content.as_str(), message.message_id.as_str())
}

#[tokio::test]
async fn a_task_is_requested_answered_and_remembered() {
    let fixture = Fixture::new().await;
    fixture.put("a1", json!({"deadline_ms": 5000, "system": "Be brief.", "max_attempts": "many"})).await;
    fixture.send_task("a1", "k1", "one").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    let (agent, turn) = (AgentId::parse("a1").unwrap(), TurnId::parse(&request.turn_id).unwrap());
    assert_eq!((request.run, request.attempt, item.delivered), (0, 0, 1));
    assert_eq!((request.workflow.as_str(), request.deadline_ms), ("default", 5000));
    assert_eq!((request.agent_id.as_str(), request.thread_id.as_str()), ("a1", "a1"));
    assert_eq!(request.task, Some(TaskRef { task_id: "k1".to_owned(), kind: "task".to_owned() }));
    assert_eq!(request.message_id, turn.answer(0).as_str());
    assert_eq!(request.subject, wire::subject::partition_chunks(count(), &agent.thread()));
    assert_eq!(request.stop_subject, wire::subject::stop(&turn, 0));
    assert_eq!(request.settings.get("system"), Some(&json!("Be brief.")), "as they were put");
    assert_eq!(request.settings.get("max_attempts"), Some(&json!("many")));
    assert_eq!(
        request.context.iter().map(said).collect::<Vec<_>>(),
        [("user", "one", turn.input().as_str())]
    );
    assert_eq!(fixture.stored("WORK").await[0].1, wire::subject::work_id(turn.as_str(), 0, &request.subject));

    fixture.answer_with(&request, "not-the-token", &["for", "ged"]).await;
    fixture.answer(&request, &["first ", "answer"]).await;
    item.ack().await.unwrap();
    let expected = [(Role::User, "one".to_owned()), (Role::Assistant, "first answer".to_owned())];
    assert_eq!(fixture.said("a1", 2).await, expected);

    fixture.send_task("a1", "k2", "two").await;
    let (item, request) = next(&mut work).await;
    let context: Vec<_> = request.context.iter().map(|it| (it.role.as_str(), it.content.as_str())).collect();
    assert_eq!(context, [("user", "one"), ("assistant", "first answer"), ("user", "two")]);
    fixture.answer(&request, &["second"]).await;
    item.ack().await.unwrap();
    fixture.said("a1", 4).await;
    let task = fixture.store.task(&agent, &TaskId::parse("k2").unwrap()).await.unwrap().unwrap();
    assert_eq!(task.status, TaskStatus::Completed);
    fixture.end().await;
}

#[tokio::test]
async fn many_agents_are_requested_side_by_side_and_each_in_its_order() {
    let fixture = Fixture::new().await;
    for number in 0..3 {
        for agent in 0..60 {
            fixture.send_task(&format!("a{agent}"), &format!("k{number}"), &format!("task {number}")).await;
        }
    }
    let mut work = fixture.work("default");
    let mut command = std::collections::BTreeMap::<String, Vec<String>>::new();
    for _ in 0..180 {
        let (item, request) = next(&mut work).await;
        let input = request.context.last().unwrap().content.clone();
        command.entry(request.agent_id.clone()).or_default().push(input);
        fixture.answer(&request, &["done"]).await;
        item.ack().await.unwrap();
    }
    assert_eq!(command.len(), 60);
    for (agent, tasks) in command {
        assert_eq!(tasks, ["task 0", "task 1", "task 2"], "{agent}");
    }
    fixture.end().await;
}

#[tokio::test]
async fn a_run_past_its_deadline_is_stopped_and_its_request_deleted() {
    let fixture = Fixture::with(|config| config.limits.tick_ms = 100).await;
    fixture.put("a1", json!({"deadline_ms": 1500, "backoff_base_ms": 600_000})).await;
    fixture.send_task("a1", "k1", "one").await;
    until("the request is stored", async || fixture.stored("WORK").await.len() == 1).await;
    let request = fixture.stored("WORK").await.remove(0).0;
    let turn = TurnId::parse(request["turn_id"].as_str().unwrap()).unwrap();
    let mut stop = fixture.bus.subscribe_cancel(&turn, 0).await.unwrap();
    timeout(TEST_TIMEOUT, stop.stopped()).await.expect("the run is cancelled after its deadline");
    until("the request is gone", async || fixture.stored("WORK").await.is_empty()).await;
    let task =
        || async { fixture.store.task(&AgentId::parse("a1").unwrap(), &TaskId::parse("k1").unwrap()).await };
    assert_eq!(task().await.unwrap().unwrap().status, TaskStatus::Pending, "its agent backs off");
    fixture.end().await;
}

#[tokio::test]
async fn a_request_that_no_message_can_hold_fails_its_task_at_once() {
    let fixture = Fixture::new().await;
    fixture.put("a1", json!({"system": "x".repeat(2 << 20)})).await;
    fixture.send_task("a1", "k1", "one").await;
    let (agent, task) = (AgentId::parse("a1").unwrap(), TaskId::parse("k1").unwrap());
    until("the task has failed", async || {
        let row = fixture.store.task(&agent, &task).await.unwrap();
        row.is_some_and(|row| row.status == TaskStatus::Failed)
    })
    .await;
    let failure = fixture.store.task(&agent, &task).await.unwrap().unwrap().failure.unwrap();
    assert!(failure.text.contains("and a message may take"), "{failure:?}");
    assert!(fixture.stored("WORK").await.is_empty());
    fixture.end().await;
}

#[tokio::test]
async fn settings_that_cannot_be_read_harm_their_agent_alone() {
    let fixture = Fixture::new().await;
    fixture.put("a1", json!({})).await;
    fixture.put("a2", json!({})).await;
    fixture.execute("UPDATE agent_settings SET settings = '[]' WHERE agent_id = 'a1'").await;
    fixture.send_task("a1", "k1", "one").await;
    fixture.send_task("a2", "k1", "two").await;
    let mut work = fixture.work("default");
    assert_eq!(next(&mut work).await.1.agent_id, "a2");
    let (agent, task) = (AgentId::parse("a1").unwrap(), TaskId::parse("k1").unwrap());
    until("the task has failed", async || {
        let row = fixture.store.task(&agent, &task).await.unwrap();
        row.is_some_and(|row| row.status == TaskStatus::Failed)
    })
    .await;
    fixture.end().await;
}

/// A killed NATS server may have delivered a request to two services under the same delivery
/// number.
#[tokio::test]
async fn answers_of_two_deliveries_are_not_mixed() {
    let fixture = Fixture::new().await;
    fixture.send_task("a1", "k1", "one").await;
    let (_item, request) = next(&mut fixture.work("default")).await;
    for (delivery, id, text) in [("x", 0, "one "), ("y", 0, "two "), ("y", 1, "TWO"), ("x", 1, "ONE")] {
        let chunk = json!({"session_id": request.thread_id, "message_id": request.message_id, "chunk_id": id,
            "turn_token": request.turn_token, "delivery_id": delivery, "chunk": text, "is_final": id == 1});
        fixture.publish(&request.subject, serde_json::to_vec(&chunk).unwrap().into()).await;
    }
    assert_eq!(fixture.said("a1", 2).await[1].1, "one ONE");
    fixture.end().await;
}

#[tokio::test]
async fn a_turn_waits_for_nats_and_its_agent_does_not_suffer() {
    let fixture = Fixture::new().await;
    fixture.send_task("a1", "k1", "one").await;
    let mut work = fixture.work("default");
    let (item, request) = next(&mut work).await;
    fixture.send_task("a1", "k2", "two").await;
    fixture.answer(&request, &["done"]).await;
    item.ack().await.unwrap();
    fixture.nats.kill().await.unwrap();
    tokio::time::sleep(SOON).await;
    fixture.nats.restart().await.unwrap();
    let (item, request) = next(&mut work).await;
    assert_eq!((request.run, request.context.last().unwrap().content.as_str()), (0, "two"));
    fixture.answer(&request, &["done"]).await;
    item.ack().await.unwrap();
    assert_eq!(fixture.said("a1", 4).await.len(), 4);
    fixture.end().await;
}
