//! Batches that continue, and batches that are deleted: heartbeats and retention.

use serde_json::json;
use testkit::db_snapshot::turns::TurnMessage;

use crate::{
    api_client::{SOON, alone, asked_for, said, scripted},
    fixture::Fixture,
};

fn places(messages: &[TurnMessage]) -> Vec<(bool, i32, &str)> {
    let of_first = |message: &TurnMessage| message.batch_id == messages[0].position;
    messages
        .iter()
        .map(|message| (of_first(message), message.sequence_num, message.batch_type.as_str()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_answer_after_restart_stays_in_its_batch() {
    let mut fixture = Fixture::with(alone).await;
    // Any waiting batch is abandoned here: its messages are kept and counted.
    fixture.settle("talk", json!({"batch_timeout_ms": 1})).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("talk", "count to three").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let more = json!({"is_final": true, "metadata": {"continuation": true}});
    asked.say_with("One, two", more).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.fleet.workers[0].kill().await.unwrap();
    let first = fixture.messages_of("talk").await;
    let batch = first[0].batch_id.to_string();
    let whole = format!("/v1/threads/talk/batches/{batch}");
    let shown = api.call("GET", &whole, None).await.unwrap();
    assert_eq!((&shown["state"], &shown["incomplete_code"]), (&json!("abandoned"), &json!("continues")));

    fixture.fleet.workers[0].spawn().unwrap();
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    let context = asked.raw["context"].as_array().unwrap();
    let seen: Vec<_> = context.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(&seen[..2], ["count to three", "One, two"], "the batch that goes on is in, whole or not");
    asked.say_with(", three", json!({"is_final": true, "metadata": {"continuation": true}})).await.unwrap();
    asked.ack().await.unwrap();
    manual_workflow.next(SOON).await.unwrap().answer(".").await.unwrap();
    let messages = fixture.until_messages("talk", 6).await;
    assert_eq!(
        places(&messages),
        [
            (true, 0, "user_request"),
            (true, 1, "user_request"),
            (true, 2, "continuation"),
            (true, 3, "continuation"),
            (true, 4, "continuation"),
            (true, 5, "continuation"),
        ]
    );
    assert_eq!(messages[2].metadata["synthetic"], json!(true));
    let history = api.history("talk").await.unwrap();
    let history: Vec<_> = history.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(
        history,
        ["count to three", "One, two", ", three", "."],
        "the request to continue is not shown"
    );
    assert_eq!(api.call("GET", &whole, None).await.unwrap()["state"], json!("complete"));
    assert!(fixture.metric("antiphon_worker_late_continuations_total").await >= 1.0);
    fixture.no_request_comes(&manual_workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_ends_too_soon_says_why_and_is_in_no_context() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    let of = |call: &str| json!({"tool_call_id": call, "tool_name": "clock"});
    let call = |id: &str| ("tool_call", "{}", of(id));
    let result = |id: &str| ("tool_result", "noon", of(id));
    let text = ("content", "It is noon.", json!({}));
    let cases = [
        ("ends_in_result", vec![call("a"), result("a")], vec!["assistant", "tool", "assistant"], true),
        ("unanswered_calls", vec![text.clone(), call("a")], vec!["assistant", "assistant"], false),
        (
            "unanswered_calls",
            vec![call("a"), call("b"), result("b"), text.clone()],
            vec!["assistant", "tool", "assistant"],
            false,
        ),
        ("orphan_result", vec![result("x"), text.clone()], vec!["tool", "assistant"], true),
    ];
    for (number, (code, chunks, roles, is_answered)) in cases.into_iter().enumerate() {
        let thread = format!("talk-{number}");
        let turn = api.say(&thread, "What time is it?").await.unwrap();
        let mut asked = asked_for(&manual_workflow, &turn).await;
        let last = chunks.len() - 1;
        for (index, (kind, text, metadata)) in chunks.into_iter().enumerate() {
            let more = json!({"chunk_type": kind, "metadata": metadata, "is_final": index == last});
            asked.say_with(text, more).await.unwrap();
        }
        asked.ack().await.unwrap();
        let stored = fixture.until_messages(&thread, roles.len() + 1).await;
        let seen: Vec<_> = stored[1..].iter().map(|message| message.role.as_str()).collect();
        assert_eq!(seen, roles, "what came, and no more");
        assert_eq!(stored.last().unwrap().message_id, turn.answer);
        let path = format!("/v1/threads/{thread}/batches/{}", stored[0].batch_id);
        let shown = api.call("GET", &path, None).await.unwrap();
        assert_eq!(
            (&shown["state"], &shown["incomplete_code"]),
            (&json!("incomplete"), &json!(code)),
            "{shown}"
        );
        let calls = shown["calls"].as_array().unwrap();
        assert!(
            calls.iter().all(|call| call["tool_call_id"] == "b" || call["is_answered"] == is_answered),
            "{shown}"
        );
        // The next turn ignores the incomplete batch, and the context for the model is valid.
        let next = api.say(&thread, "And now?").await.unwrap();
        let asked = asked_for(&manual_workflow, &next).await;
        let context: Vec<_> = asked.request.context.iter().map(|it| it.content.as_str()).collect();
        assert_eq!(context, ["And now?"], "{code}");
        asked.answer("Half past.").await.unwrap();
        fixture.until_messages(&thread, roles.len() + 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_rules_of_an_agent_do_not_keep_goes_in_whole_batches() {
    let fixture =
        Fixture::with(|options| scripted(options).with_env("ANTIPHON_CLEANUP_INTERVAL_SECONDS", "0.1")).await;
    let api = fixture.api();
    fixture.settle("short", json!({"retention": {"max_batches": 2}})).await;
    let once = [("idempotency-key", "once")];
    let keyed = async || {
        let body = json!({"content": "tools, once"});
        api.send("POST", "/v1/threads/short/messages", Some(&body), &once).await.unwrap()
    };
    assert_eq!(keyed().await.status, 202);
    for number in 0..5 {
        for thread in ["kept", "short"] {
            api.say(thread, &format!("tools {number}")).await.unwrap();
        }
    }
    fixture.until_messages("kept", 25).await;
    fixture
        .until("two batches are left", SOON, async || fixture.messages_of("short").await.len() == 10)
        .await;
    let left = fixture.messages_of("short").await;
    assert_eq!((said(&left)[0], said(&left)[5]), (("user", "tools 3"), ("user", "tools 4")));
    assert_eq!(api.thread("short").await.unwrap()["message_count"], json!(10));
    assert_eq!(fixture.messages_of("kept").await.len(), 25);
    assert_eq!(fixture.metric("antiphon_worker_retention_deleted_batches_total").await, 4.0);
    // The same request again has the same result, also after the deletion.
    let gone = keyed().await;
    assert_eq!((gone.status, &gone.json().unwrap()["code"]), (410, &json!("turn_deleted")));
    // The thread continues as if nothing had happened.
    api.say("short", "hello").await.unwrap();
    fixture
        .until("the newest two are left", SOON, async || {
            let left = fixture.messages_of("short").await;
            left.len() == 7 && left[5].content == "hello"
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn erased_thread_takes_nothing_until_it_is_created_again() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    sqlx::query("INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ($1, 'gone', 'ada')")
        .bind(model::Bucket::of_key("gone").get() as i16)
        .execute(&fixture.pool)
        .await
        .unwrap();
    let refused = api.say_with("gone", &json!({"content": "hello"}), &[]).await.unwrap();
    assert_eq!(refused.status, 410);
    assert!(refused.text.contains("\"code\":\"thread_erased\""), "{}", refused.text);
    api.create_thread(&json!({"thread_id": "gone"})).await.unwrap();
    api.say("gone", "hello").await.unwrap();
    assert_eq!(said(&fixture.until_messages("gone", 2).await)[0], ("user", "hello"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_names_only_a_parent_batch_that_is_there() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    api.say("talk", "hello").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("hi").await.unwrap();
    let first = fixture.until_messages("talk", 2).await[0].batch_id.to_string();
    let say = async |parent: serde_json::Value| {
        let body = json!({"content": "beside", "metadata": {"parent_batch": parent}});
        api.say_with("talk", &body, &[]).await.unwrap()
    };
    let (plus, zero) = (format!("+{first}"), format!("0{first}"));
    for wrong in [json!("123456"), json!(7), json!("x"), json!("-1"), json!(null), json!(plus), json!(zero)] {
        let refused = say(wrong.clone()).await;
        let problem = refused.json().unwrap();
        assert_eq!((refused.status, &problem["code"]), (400, &json!("invalid_metadata")), "{wrong}");
    }
    assert_eq!(say(json!(first)).await.status, 202);
    workflow.next(SOON).await.unwrap().answer("well").await.unwrap();
    fixture.until_messages("talk", 4).await;
    let page = api.call("GET", "/v1/threads/talk/batches", None).await.unwrap();
    assert_eq!(page["batches"][0]["parent_batch"], json!(first));
}
