//! Batches that continue because an external client asks for it.

use serde_json::{Value, json};
use testkit::http::TextResponse;

use crate::{
    api_client::{SOON, alone, asked_for},
    fixture::Fixture,
};

async fn beat(fixture: &Fixture, thread: &str, batch: &str, body: &Value) -> TextResponse {
    let path = format!("/v1/threads/{thread}/batches/{batch}/continue");
    fixture.api().send("POST", &path, Some(body), &[]).await.unwrap()
}

#[track_caller]
fn refused(answer: &TextResponse, status: u16, code: &str) {
    let problem = answer.json().unwrap();
    assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_continues_the_last_batch_once_for_each_request() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    refused(&beat(&fixture, "talk", "7", &json!({})).await, 404, "unknown_batch");
    let turn = api.say("talk", "count to three").await.unwrap();
    let asked = asked_for(&workflow, &turn).await;
    asked.answer("One").await.unwrap();
    let batch = fixture.until_messages("talk", 2).await[0].batch_id.to_string();

    let once = json!({"request_id": "r-1"});
    let first = beat(&fixture, "talk", &batch, &once).await;
    assert_eq!(first.status, 202, "{}", first.text);
    let again = beat(&fixture, "talk", &batch, &once).await;
    assert_eq!((again.status, &again.text), (202, &first.text), "under way");
    refused(&beat(&fixture, "talk", &batch, &json!({"request_id": "r-2"})).await, 409, "batch_open");
    let asked = workflow.next(SOON).await.unwrap();
    assert_eq!(json!(asked.request.turn_id), first.json().unwrap()["turn_id"]);
    let seen: Vec<_> = asked.request.context.iter().map(|it| it.content.clone()).collect();
    assert_eq!(&seen[..2], ["count to three", "One"]);
    asked.answer("two").await.unwrap();
    let messages = fixture.until_messages("talk", 4).await;
    assert!(messages.iter().all(|message| message.batch_id.to_string() == batch), "{messages:?}");
    assert_eq!(messages[2].batch_type, "continuation");
    let again = beat(&fixture, "talk", &batch, &once).await;
    assert_eq!((again.status, &again.text), (202, &first.text), "it is done");
    fixture.no_request_comes(&workflow).await;
    let history = api.history("talk").await.unwrap();
    let history: Vec<_> = history.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(history, ["count to three", "One", "two"], "the heartbeat is not shown");

    // A batch cannot be continued unless it is the last one, closed and complete.
    let turn = api.say("talk", "and now?").await.unwrap();
    refused(&beat(&fixture, "talk", &batch, &json!({})).await, 409, "batch_open");
    let mut asked = asked_for(&workflow, &turn).await;
    let call = json!({"chunk_type": "tool_call", "metadata": {"tool_call_id": "a", "tool_name": "clock"}, "is_final": true});
    asked.say_with("{}", call).await.unwrap();
    asked.ack().await.unwrap();
    let last = fixture.until_messages("talk", 7).await.pop().unwrap().batch_id.to_string();
    refused(&beat(&fixture, "talk", &batch, &json!({})).await, 409, "batch_not_last");
    refused(&beat(&fixture, "talk", &last, &json!({})).await, 409, "batch_incomplete");
    refused(&beat(&fixture, "talk", &last, &json!({"request_id": "no id"})).await, 400, "invalid_id");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_over_nats_is_judged_when_its_turn_begins() {
    let fixture = Fixture::with(alone).await;
    fixture.settle("ann", json!({})).await;
    let workflow = fixture.manual_workflow().await;
    let task = |id: &str, batch: &str| {
        let metadata = json!({"continues": batch, "heartbeat": true});
        json!({"task_id": id, "content": "Go on.", "metadata": metadata}).to_string().into_bytes()
    };
    fixture.send_tasks("ann", [("t-1".to_owned(), "count to three".to_owned())]).await;
    workflow.next(SOON).await.unwrap().answer("One").await.unwrap();
    let batch = fixture.until_messages("ann", 2).await[0].batch_id.to_string();
    fixture.send_entry("ann", task("beat-1", &batch)).await;
    fixture.send_entry("ann", task("beat-1", &batch)).await;
    workflow.next(SOON).await.unwrap().answer("two").await.unwrap();
    let messages = fixture.until_messages("ann", 4).await;
    assert!(messages.iter().all(|message| message.batch_id.to_string() == batch), "{messages:?}");
    // Another batch, and one that does not exist.
    fixture.send_tasks("ann", [("t-2".to_owned(), "and now?".to_owned())]).await;
    workflow.next(SOON).await.unwrap().answer("Done.").await.unwrap();
    fixture.until_messages("ann", 6).await;
    fixture.send_entry("ann", task("beat-2", &batch)).await;
    fixture.send_entry("ann", task("beat-3", "1")).await;
    fixture.until_tasks("ann", &["completed", "completed", "completed", "failed", "failed"]).await;
    fixture.no_request_comes(&workflow).await;
    assert_eq!(fixture.messages_of("ann").await.len(), 6);
}
