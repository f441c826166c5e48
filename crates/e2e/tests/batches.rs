//! Batches over the API: their times, their state while their turn is in progress, and batches
//! within another one.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    api_client::{SOON, alone, asked_for},
    fixture::Fixture,
};

const A_SECOND: Duration = Duration::from_secs(1);

/// A time of the API, in ms since 1970.
fn moment(value: &Value) -> i64 {
    wire::parse_rfc3339(value.as_str().unwrap_or_else(|| panic!("no moment: {value}"))).unwrap().0
}

/// The time between the two, in whole seconds.
fn seconds(from: &Value, to: &Value) -> i64 {
    let ms = moment(to) - moment(from);
    (ms + 300).div_euclid(1_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_say_when_they_were_accepted_begun_and_complete() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("talk", "What time is it?").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    // This input waits behind the first one.
    sleep(A_SECOND).await;
    let next = api.say("talk", "And now?").await.unwrap();
    let more =
        |kind: &str| json!({"chunk_type": kind, "metadata": {"tool_call_id": "c", "tool_name": "clock"}});
    asked.say_with("{}", more("tool_call")).await.unwrap();
    sleep(A_SECOND).await;
    asked.say_with("noon", more("tool_result")).await.unwrap();
    sleep(A_SECOND).await;
    asked.say("It is ").await.unwrap();
    sleep(A_SECOND).await;
    asked.answer("noon.").await.unwrap();
    asked_for(&workflow, &next).await.answer("One.").await.unwrap();
    fixture.until_messages("talk", 6).await;

    let history = api.history("talk").await.unwrap();
    let [input, call, result, answer, second, _] = &history[..] else { panic!("{history:?}") };
    let accepted = &input["created_at"];
    let since =
        |message: &Value| [&message["started_at"], &message["created_at"]].map(|at| seconds(accepted, at));
    assert_eq!([call, result, answer].map(since), [[1, 1], [2, 2], [3, 4]], "{history:?}");
    assert_eq!(seconds(accepted, &input["started_at"]), 0, "it began at once");
    let [begun, sent] = since(second);
    assert_eq!(
        (begun, sent),
        (4, 1),
        "the second was accepted while the first ran, and began after it: {second}"
    );

    // The turn and the batch show the same times.
    let shown = api.call("GET", &format!("/v1/turns/{}", turn.id), None).await.unwrap();
    assert_eq!(shown["created_at"], *accepted);
    assert_eq!((&shown["started_at"], &shown["ended_at"]), (&input["started_at"], &answer["created_at"]));
    let page = api.call("GET", "/v1/threads/talk/batches", None).await.unwrap();
    let batch = &page["batches"][1];
    assert_eq!((&batch["created_at"], &batch["started_at"]), (accepted, &input["started_at"]));
    assert_eq!((&batch["last_at"], &batch["turn_id"]), (&answer["created_at"], &json!(turn.id)));
    assert_eq!(page["owner_status"], "available");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_is_tried_again_keeps_when_it_was_accepted() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    let running = api.call("GET", &format!("/v1/turns/{}", turn.id), None).await.unwrap();
    asked.fail("no", json!({"class": "permanent"})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_failed("talk", 1).await;
    let failed = api.call("GET", &format!("/v1/turns/{}", turn.id), None).await.unwrap();
    assert_eq!((&failed["state"], &failed["created_at"]), (&json!("failed"), &running["created_at"]));
    assert!(failed["ended_at"].is_string(), "{failed}");
    sleep(A_SECOND).await;
    api.retry_turn("talk", &turn.id).await.unwrap();
    workflow.next(SOON).await.unwrap().answer("hi").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let history = api.history("talk").await.unwrap();
    let input = &history[0];
    assert_eq!(input["created_at"], running["created_at"]);
    assert!(moment(&input["started_at"]) - moment(&input["created_at"]) >= 1_000, "{input}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_shown_while_its_turn_is_under_way() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let list = async || api.call("GET", "/v1/threads/talk/batches", None).await.unwrap()["batches"].clone();
    let turn = api.say("talk", "What time is it?").await.unwrap();
    let path = format!("/v1/threads/talk/batches/{}", turn.id);
    let mut asked = asked_for(&workflow, &turn).await;
    let page = list().await;
    let [open] = &page.as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!((&open["batch_id"], &open["turn_id"]), (&Value::Null, &json!(turn.id)));
    assert_eq!((&open["state"], &open["incomplete_code"]), (&json!("open"), &json!("lone_input")));
    assert_eq!((&open["input"], &open["batch_type"]), (&json!("What time is it?"), &json!("user_request")));
    assert!(open["created_at"].is_string() && open["started_at"].is_string(), "{open}");

    let more =
        |kind: &str| json!({"chunk_type": kind, "metadata": {"tool_call_id": "c", "tool_name": "clock"}});
    let show = async |count: usize| {
        let mut shown = Value::Null;
        fixture
            .until("the messages are shown", SOON, async || {
                shown = api.call("GET", &path, None).await.unwrap();
                shown["messages"].as_array().unwrap().len() == count
            })
            .await;
        shown
    };
    asked.say_with("{}", more("tool_call")).await.unwrap();
    let calls = show(2).await;
    assert_eq!(calls["incomplete_code"], "unanswered_calls");
    assert_eq!(
        (&calls["messages"][1]["created_at"], &calls["messages"][1]["position"]),
        (&Value::Null, &Value::Null)
    );
    asked.say_with("noon", more("tool_result")).await.unwrap();
    let shown = show(3).await;
    assert_eq!((&shown["incomplete_code"], &shown["is_cut"]), (&json!("ends_in_result"), &json!(false)));
    let call = json!({"tool_call_id": "c", "name": "clock", "call_at": null, "result_at": null, "is_answered": true});
    assert_eq!(shown["calls"], json!([call]));
    assert!(shown["messages"][1]["created_at"].is_string(), "the step is finished: {shown}");
    asked.say("It is ").await.unwrap();
    let shown = show(4).await;
    assert_eq!(
        (&shown["state"], &shown["incomplete_code"]),
        (&json!("open"), &Value::Null),
        "complete for the moment"
    );
    let reasons = [&shown["finish_reason"], &shown["messages"][3]["finish_reason"]];
    assert_eq!(reasons, [&Value::Null; 2], "an answer under way has no end");
    assert_eq!(shown["messages"][3]["content"], "It is ");

    // After its commit the batch is listed with an id, and never twice.
    asked.answer("noon.").await.unwrap();
    loop {
        let page = list().await;
        let [one] = &page.as_array().unwrap()[..] else { panic!("{page}") };
        if one["state"] == "complete" {
            break;
        }
        assert_eq!((&one["state"], &one["turn_id"]), (&json!("open"), &json!(turn.id)));
    }
    let whole = api.call("GET", &path, None).await.unwrap();
    let by_id = format!("/v1/threads/talk/batches/{}", whole["batch_id"].as_str().unwrap());
    assert_eq!(api.call("GET", &by_id, None).await.unwrap(), whole);
    assert_eq!((&whole["message_count"], &whole["created_at"]), (&json!(4), &open["created_at"]));
    let unknown = api.send("GET", "/v1/threads/talk/batches/u0000-none", None, &[]).await.unwrap();
    assert_eq!(unknown.status, 404);
    // Another thread does not show the batch.
    api.create_thread(&json!({"thread_id": "other"})).await.unwrap();
    let foreign = format!("/v1/threads/other/batches/{}", turn.id);
    assert_eq!(api.send("GET", &foreign, None, &[]).await.unwrap().status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_goes_on_is_open_under_its_id() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("talk", "count").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    asked.say_with("One", json!({"is_final": true, "metadata": {"continuation": true}})).await.unwrap();
    asked.ack().await.unwrap();
    let mut asked = workflow.next(SOON).await.unwrap();
    asked.say(", two").await.unwrap();
    let id = fixture.until_messages("talk", 2).await[0].batch_id.to_string();
    let path = format!("/v1/threads/talk/batches/{id}");
    let mut shown = Value::Null;
    fixture
        .until("what goes on is shown", SOON, async || {
            shown = api.call("GET", &path, None).await.unwrap();
            shown["messages"].as_array().unwrap().len() == 3
        })
        .await;
    assert_eq!(
        (&shown["state"], &shown["batch_id"], &shown["turn_id"]),
        (&json!("open"), &json!(id), &json!(turn.id))
    );
    let messages = shown["messages"].as_array().unwrap();
    let said: Vec<_> =
        messages.iter().map(|message| (&message["content"], message["position"].is_string())).collect();
    assert_eq!(said, [(&json!("count"), true), (&json!("One"), true), (&json!(", two"), false)]);
    let page = api.call("GET", "/v1/threads/talk/batches", None).await.unwrap();
    assert_eq!(
        (page["batches"].as_array().unwrap().len(), &page["batches"][0]["state"]),
        (1, &json!("open"))
    );
    asked.answer(".").await.unwrap();
    fixture.until_messages("talk", 4).await;
    let shown = api.call("GET", &path, None).await.unwrap();
    assert_eq!((&shown["state"], &shown["batch_id"]), (&json!("complete"), &json!(id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_batches_within_a_batch_are_listed_in_pages() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let say = async |parent: Option<&Value>, count: usize| {
        let metadata = parent.map_or(json!({}), |parent| json!({"parent_batch": parent}));
        api.say_with("talk", &json!({"content": "x", "metadata": metadata}), &[]).await.unwrap();
        workflow.next(SOON).await.unwrap().answer("y").await.unwrap();
        json!(fixture.until_messages("talk", count).await[count - 2].batch_id.to_string())
    };
    let (a, b) = (say(None, 2).await, say(None, 4).await);
    let (a1, b1) = (say(Some(&a), 6).await, say(Some(&b), 8).await);
    let a2 = say(Some(&a), 10).await;
    let within = async |parent: &Value, more: &str| {
        let parent = parent.as_str().unwrap();
        let page =
            api.call("GET", &format!("/v1/threads/talk/batches?parent_batch={parent}{more}"), None).await;
        let page = page.unwrap();
        let ids: Vec<Value> =
            page["batches"].as_array().unwrap().iter().map(|it| it["batch_id"].clone()).collect();
        (ids, page["next"].clone())
    };
    assert_eq!(within(&a, "").await, (vec![a2.clone(), a1.clone()], Value::Null));
    assert_eq!(within(&b, "").await, (vec![b1.clone()], Value::Null));
    assert_eq!(within(&a1, "").await, (vec![], Value::Null));
    let (first, next) = within(&a, "&limit=1").await;
    assert_eq!((first, &next), (vec![a2.clone()], &a2));
    let more = format!("&limit=1&next={}", next.as_str().unwrap());
    assert_eq!(within(&a, &more).await, (vec![a1], Value::Null));
    // A batch in progress is listed first, and only under its own parent.
    api.say_with("talk", &json!({"content": "x", "metadata": {"parent_batch": a}}), &[]).await.unwrap();
    let asked = workflow.next(SOON).await.unwrap();
    assert_eq!(within(&a, "").await.0.len(), 3);
    assert_eq!(within(&b, "").await.0, [b1]);
    asked.answer("y").await.unwrap();
    for (path, code) in [
        ("talk/batches?parent_batch=x", "invalid_position"),
        ("none/batches?parent_batch=7", "unknown_thread"),
    ] {
        let refused = api.send("GET", &format!("/v1/threads/{path}"), None, &[]).await.unwrap();
        assert_eq!(refused.json().unwrap()["code"], code, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_reasoning_tools_are_hidden_without_their_calls() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    for (name, call) in [("frs_view_thread", "a"), ("clock", "b")] {
        let of =
            |kind: &str| json!({"chunk_type": kind, "metadata": {"tool_call_id": call, "tool_name": name}});
        asked.say_with("{}", of("tool_call")).await.unwrap();
        asked.say_with(&format!("answer of {name}"), of("tool_result")).await.unwrap();
    }
    asked.answer("done").await.unwrap();
    let stored = fixture.until_messages("talk", 6).await;
    let mut after = stored[1].position.to_string();
    let mut seen = Vec::new();
    loop {
        let path = format!("/v1/threads/talk/history?limit=1&after={after}");
        let page = api.call("GET", &path, None).await.unwrap();
        let messages = page["messages"].as_array().unwrap().clone();
        let Some(first) = messages.first() else { break };
        after = first["position"].as_str().unwrap().to_owned();
        seen.push((first["role"].clone(), first["content"].clone()));
    }
    let said: Vec<_> =
        seen.iter().map(|(role, content)| (role.as_str().unwrap(), content.as_str().unwrap())).collect();
    let [("tool", hidden), ("assistant", ""), ("tool", "answer of clock"), ("assistant", "done")] = said[..]
    else {
        panic!("{said:?}")
    };
    assert!(!hidden.contains("answer of"), "{hidden}");
    let whole = api.call("GET", "/v1/threads/talk/history?synthetic=true", None).await.unwrap();
    assert_eq!(whole["messages"][2]["content"], "answer of frs_view_thread", "operators are shown it");
}
