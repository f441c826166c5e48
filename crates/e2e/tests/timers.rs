//! Later events: schedules, delayed tasks, and follow-ups that are snoozed or cancelled.

use serde_json::{Value, json};
use testkit::manual_workflow::{DeliveredRequest, ManualWorkflow};

use crate::{
    api_client::{A_WHILE, SOON},
    fixture::Fixture,
};

/// The time `seconds` from now, by the database's clock.
pub(crate) async fn in_seconds(fixture: &Fixture, seconds: f64) -> String {
    let sql = "SELECT to_char((clock_timestamp() + $1 * interval '1 s') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')";
    sqlx::query_scalar(sql).bind(seconds).fetch_one(&fixture.pool).await.unwrap()
}

async fn asked_with(workflow: &ManualWorkflow, content: &str) -> DeliveredRequest {
    let asked = workflow.next(SOON).await.unwrap();
    assert_eq!(asked.request.context.last().unwrap().content, content);
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_and_delayed_tasks_wait_until_they_are_due() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({})).await;
    let schedule = async |name: &str, body: Value| {
        api.call("PUT", &format!("/v1/agents/ann/schedules/{name}"), Some(&body)).await.unwrap()
    };
    let due = in_seconds(&fixture, 2.0).await;
    let delayed = json!({"task_id": "later", "content": "call back", "not_before": due});
    api.call("POST", "/v1/agents/ann/tasks", Some(&delayed)).await.unwrap();
    // A service sends this task twice, and another task once.
    let due_later = in_seconds(&fixture, 2.5).await;
    let sent = json!({"task_id": "sent", "content": "write back", "not_before": due_later});
    for task in [&delayed, &delayed, &sent] {
        fixture.send_entry("ann", task.to_string().into_bytes()).await;
    }
    let too_late = json!({"task_id": "x", "content": "x", "not_before": in_seconds(&fixture, 4e7).await});
    fixture.send_entry("ann", too_late.to_string().into_bytes()).await;
    fixture.send_tasks("ann", [("now".to_owned(), "at once".to_owned())]).await;
    // A replaced schedule counts at once, although its first version would be due in months; so
    // does a deletion.
    schedule("report", json!({"cron": "0 0 1 1 *", "content": "old"})).await;
    let at = in_seconds(&fixture, 3.0).await;
    schedule("report", json!({"at": at, "content": "new"})).await;
    schedule("gone", json!({"at": in_seconds(&fixture, 3.5).await, "content": "gone"})).await;
    api.call("DELETE", "/v1/agents/ann/schedules/gone", None).await.unwrap();
    asked_with(&workflow, "at once").await.answer("done").await.unwrap();
    asked_with(&workflow, "call back").await.answer("called").await.unwrap();
    asked_with(&workflow, "write back").await.answer("written").await.unwrap();
    let asked = asked_with(&workflow, "new").await;
    let task = asked.request.task.as_ref().unwrap().task_id.clone();
    asked.answer("reported").await.unwrap();
    fixture.until_tasks("ann", &["completed"; 4]).await;
    assert_eq!(
        fixture.letters("?reason=invalid_not_before").await["dead_letters"].as_array().unwrap().len(),
        1
    );
    for (task, due) in [("later", &due), ("sent", &due_later), (task.as_str(), &at)] {
        let sql = "SELECT created_at >= $2::timestamptz FROM tasks WHERE agent_id = 'ann' AND task_id = $1";
        let in_time: bool =
            sqlx::query_scalar(sql).bind(task).bind(due).fetch_one(&fixture.pool).await.unwrap();
        assert!(in_time, "{task} before {due}");
    }
    tokio::time::sleep(A_WHILE).await;
    fixture.no_request_comes(&workflow).await;
    let shown = api.call("GET", "/v1/agents/ann/schedules/report", None).await.unwrap();
    assert_eq!((&shown["next_at"], &shown["version"]), (&Value::Null, &json!(2)), "it is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_writes_into_the_thread_where_people_talk() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("talk", json!({})).await;
    api.say("talk", "remind me").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("I will").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let at = in_seconds(&fixture, 1.0).await;
    let body = json!({"at": at, "content": "Remind the user"});
    api.call("PUT", "/v1/agents/talk/schedules/reminder", Some(&body)).await.unwrap();
    let asked = asked_with(&workflow, "Remind the user").await;
    let context: Vec<_> = asked.request.context.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(context, ["remind me", "I will", "Remind the user"], "it knows what was said there");
    asked.answer("As I promised: it is time").await.unwrap();
    fixture.until_messages("talk", 4).await;
    let history = api.history("talk").await.unwrap();
    assert_eq!(history.last().unwrap()["content"], "As I promised: it is time");
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups_are_snoozed_cancelled_and_explained() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let by_default = json!({"trigger_type": "question_unanswered", "after_seconds": 3_600});
    fixture.settle("bob", json!({"follow_ups": {"enabled": true, "default": by_default}})).await;
    api.call("POST", "/v1/threads", Some(&json!({"thread_id": "chat", "agent_id": "bob"}))).await.unwrap();
    let said = api.say("chat", "hello").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("where do you live?").await.unwrap();
    let newest = async || {
        let page = api.call("GET", "/v1/threads/chat/follow-ups", None).await.unwrap();
        page["follow_ups"][0].clone()
    };
    let is = async |status: &str| {
        fixture.until(status, SOON, async || newest().await["status"] == status).await;
        newest().await
    };
    let waits = is("pending").await;
    assert_eq!((&waits["armed_by"], &waits["source"]), (&json!(said.id), &json!("default")));
    let one = |follow_up: &Value| {
        format!("/v1/threads/chat/follow-ups/{}", follow_up["follow_up_id"].as_str().unwrap())
    };
    let dry_run = api.call("GET", &one(&waits), None).await.unwrap();
    assert_eq!(dry_run["verdict"], "fire");
    // A message that a person has just sent counts at once.
    api.say("chat", "wait").await.unwrap();
    let asked = workflow.next(SOON).await.unwrap();
    let shown = api.call("GET", &one(&waits), None).await.unwrap();
    assert_eq!((&shown["status"], &shown["decided_by"]), (&json!("cancelled"), &json!("message")));
    asked.answer("yes?").await.unwrap();
    fixture
        .until("the next one waits", SOON, async || {
            let newest = newest().await;
            newest["status"] == "pending" && newest["follow_up_id"] != waits["follow_up_id"]
        })
        .await;
    let waits = newest().await;
    let armed_by = waits["armed_by"].clone();
    let snooze = format!("{}/snooze", one(&waits));
    let snoozed = api.call("POST", &snooze, Some(&json!({"seconds": 1}))).await.unwrap();
    assert_eq!(snoozed["status"], "done");
    let asked = workflow.next(SOON).await.unwrap();
    let turn = asked.request.turn_id.clone();
    let shown = api.call("GET", &format!("/v1/turns/{turn}"), None).await.unwrap();
    assert_eq!(shown["follow_up"]["armed_by"], armed_by);
    asked.answer("you have not said where you live").await.unwrap();
    // The answer arms the next follow-up, which is cancelled.
    let next = is("pending").await;
    assert_eq!(api.call("DELETE", &one(&next), None).await.unwrap()["status"], "done");
    assert_eq!(is("cancelled").await["decided_by"], "client");
    let late = api.send("POST", &snooze, Some(&json!({"seconds": 1})), &[]).await.unwrap();
    assert_eq!((late.status, &late.json().unwrap()["code"]), (409, &json!("follow_up_ended")));
    let history = api.call("GET", "/v1/threads/chat/history", None).await.unwrap();
    let texts: Vec<_> =
        history["messages"].as_array().unwrap().iter().map(|one| one["content"].clone()).collect();
    assert_eq!(
        texts,
        ["hello", "where do you live?", "wait", "yes?", "you have not said where you live"],
        "its input is hidden"
    );
    fixture.no_request_comes(&workflow).await;
}
