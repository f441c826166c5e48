//! The example services in other languages answer on a real fleet.

use std::{collections::BTreeSet, time::Duration};

use futures_util::StreamExt;
use serde_json::{Value, json};
use testkit::{
    WAIT_TIMEOUT, api::Api, db_snapshot::turns, examples, fleet::WorkflowOptions, fleet::WorkflowProgram,
    nats_addresses, sse::Follower, sse::StreamEvent,
};
use tokio::process::Command;

use crate::{
    api_client::{SOON, alone, events, said, text_seen, until_ended},
    fixture::Fixture,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_serves_a_workflow() {
    let service = examples::python("example").await.unwrap();
    let script = "import json, sys, workflow; print(json.dumps([workflow.call_keys('t', *step) for step in json.loads(sys.argv[1])]))";
    tells_calls_apart(&service, &["-c", script]).await;
    serves_a_workflow(service, "Python heard: ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_typescript_serves_a_workflow() {
    let service = examples::typescript("example").await.unwrap();
    let script = "import { callKeys } from './dist/tool_calls.js'; \
         console.log(JSON.stringify(JSON.parse(process.argv[1]).map((step) => callKeys('t', ...step))))";
    tells_calls_apart(&service, &["--input-type=module", "-e", script]).await;
    serves_a_workflow(service, "TypeScript heard: ").await;
}

/// Checks that the idempotency key is the same for the same call of another attempt, and different
/// for any other call.
async fn tells_calls_apart(service: &WorkflowOptions, script: &[&str]) {
    let WorkflowProgram::Program { binary, dir, .. } = &service.program else { panic!("a program") };
    let call = |name: &str, arguments: &str| json!({"id": "x", "name": name, "arguments": arguments});
    let (pay, look) = (call("pay", r#"{"to":"ann","n":{"b":1,"a":2}}"#), call("look", "{}"));
    let pay_again = call("pay", r#"{ "n": {"a": 2, "b": 1}, "to": "ann" }"#);
    let steps = json!([
        [0, [pay, look]],
        [0, [look, pay_again]],
        [0, [call("pay", r#"{"to":"bob"}"#)]],
        [0, [pay, pay_again]],
        [0, [call("pay", "{")]],
        [1, [pay]],
    ]);
    let mut command = Command::new(binary);
    command.args(script).arg(steps.to_string()).current_dir(dir).kill_on_drop(true);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let keys: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    let ([pay, look], [look_again, pay_again]) = (&keys[0][..], &keys[1][..]) else { panic!("{keys:?}") };
    assert_eq!((pay, look), (pay_again, look_again), "in another order and form");
    assert_eq!(pay, &keys[3][0], "the first of equal calls");
    let others = [pay, look, &keys[2][0], &keys[3][1], &keys[4][0], &keys[5][0]];
    assert_eq!(BTreeSet::from(others).len(), others.len(), "{keys:?}");
    assert!(keys.concat().iter().all(|key| key.starts_with("t:")), "{keys:?}");
}

/// Tests an answer, failures, a tool, the model's context, a task, a stop, a redelivery after a
/// kill, and a drain.
async fn serves_a_workflow(service: WorkflowOptions, greeting: &str) {
    let mut fixture = Fixture::with(|options| alone(options).with_workflow(service.clone())).await;
    let api = fixture.api();
    // Changes the existing consumer, so that unacknowledged requests are redelivered soon.
    let consumer = fixture.manual_workflow_of("example", Duration::from_secs(2)).await;
    let settings = json!({"backoff_base_ms": 1});
    for agent in ["talk", "ann"] {
        api.put_agent(agent, "example", settings.clone()).await.unwrap();
    }
    let follower = fixture.following("talk").await;
    let hello = api.say("talk", "hello there").await.unwrap();
    until_ended(&follower, &hello.answer).await;
    assert_eq!(text_seen(&follower, &hello.answer), format!("{greeting}hello there "));
    let failing = api.say("talk", "fail now").await.unwrap();
    until_ended(&follower, &failing.answer).await;
    let failed = turns::failed_turns(&fixture.pool).await.unwrap();
    assert_eq!((failed[0].turn_id.as_str(), failed[0].is_retryable), (failing.id.as_str(), false));
    shows_what_is_no_declared_failure(&fixture, api, &follower).await;
    calls_a_tool(&fixture, api, &follower, greeting).await;
    lets_the_model_read_the_whole_request(&fixture).await;
    fixture.send_tasks("ann", [("k".to_owned(), "a task".to_owned())]).await;
    fixture.until_tasks("ann", &["completed"]).await;
    let task = fixture.messages_of("ann").await;
    assert_eq!(said(&task), [("user", "a task"), ("assistant", &format!("{greeting}a task "))]);
    assert_eq!(task[1].metadata["model"], "echo");
    // A stop ends the answer at once; the service continues with other turns.
    let many = vec!["word"; 500].join(" ");
    let stopped = api.say("talk", &many).await.unwrap();
    let pieces = |message: &str| text_seen(&follower, message).split(' ').count();
    // The answer is streamed: some pieces arrive before its end.
    fixture.until("it speaks", SOON, async || pieces(&stopped.answer) > 5).await;
    api.stop(&stopped.id).await.unwrap();
    until_ended(&follower, &stopped.answer).await;
    fixture
        .until("the request is done with", SOON, async || consumer.standing().await.unwrap() == (0, 0))
        .await;
    // If the service is killed within an answer, the next attempt follows.
    let cut = api.say("talk", "one two three four five six seven eight nine ten").await.unwrap();
    fixture.until("it speaks", SOON, async || pieces(&cut.answer) > 2).await;
    fixture.fleet.workflows[0].restart().await.unwrap();
    until_ended(&follower, &cut.answer).await;
    let resets = events(&follower).iter().filter(|event| matches!(event, StreamEvent::Reset { .. })).count();
    assert_eq!(resets, 1);
    let messages = fixture.messages_of("talk").await;
    let last = messages.last().unwrap();
    assert_eq!(last.content, format!("{greeting}one two three four five six seven eight nine ten "));
    assert_eq!((last.message_id.as_str(), last.attempt), (cut.answer.as_str(), 1));
    // On SIGTERM the service finishes the turns in progress.
    let drained = api.say("talk", "and now to something completely different").await.unwrap();
    fixture.until("it speaks", SOON, async || pieces(&drained.answer) > 2).await;
    fixture.fleet.workflows[0].terminate();
    let status = fixture.fleet.workflows[0].ended(WAIT_TIMEOUT).await.unwrap();
    assert!(status.success(), "{status}: {}", fixture.fleet.workflows[0].log_tail());
    until_ended(&follower, &drained.answer).await;
    let last = fixture.messages_of("talk").await.pop().unwrap();
    assert_eq!((last.message_id.as_str(), last.attempt), (drained.answer.as_str(), 0));
}

/// The error's text is visible at once, and the turn can be retried.
async fn shows_what_is_no_declared_failure(fixture: &Fixture, api: Api, follower: &Follower) {
    let crashing = api.say("talk", "crash now").await.unwrap();
    until_ended(follower, &crashing.answer).await;
    let shown = events(follower).into_iter().find_map(|event| match event {
        StreamEvent::Failed { message, code, text, .. } if message == crashing.answer => Some((code, text)),
        _ => None,
    });
    let (code, text) = shown.unwrap();
    assert_eq!(code, "unexpected");
    assert!(text.contains("the model cannot be reached"), "{text}");
    let failed = turns::failed_turns(&fixture.pool).await.unwrap();
    let failed = failed.iter().find(|turn| turn.turn_id == crashing.id).unwrap();
    assert!(failed.is_retryable && failed.text == text, "{failed:?}");
}

/// Call and result are messages with the same id, an error is a result for the model, and each
/// model call is in the ledger.
async fn calls_a_tool(fixture: &Fixture, api: Api, follower: &Follower, greeting: &str) {
    for (city, is_error) in [("Bonn", false), ("Atlantis", true)] {
        let before = fixture.messages_of("talk").await.len();
        let turn = api.say("talk", &format!("weather in {city}")).await.unwrap();
        until_ended(follower, &turn.answer).await;
        let messages = fixture.messages_of("talk").await.split_off(before);
        let [_, call, result, last] = &messages[..] else { panic!("{messages:?}") };
        let called = &call.tool_calls.as_ref().unwrap()[0];
        assert!(called.to_string().contains(city), "{called}");
        assert_eq!((result.role.as_str(), result.tool_call_id.as_deref()), ("tool", called["id"].as_str()));
        assert_eq!(result.metadata["is_error"] == true, is_error);
        assert!(
            result.content.starts_with(if is_error { "error: " } else { "It rains in Bonn." }),
            "{result:?}"
        );
        assert_eq!(last.content, format!("{greeting}{} ", result.content));
        assert_eq!(
            (&last.metadata["model"], &last.metadata["finish_reason"]),
            (&json!("echo"), &json!("stop"))
        );
        let counted =
            "SELECT count(*) FROM usage WHERE message_id = $1 AND NOT is_estimated AND output_tokens > 0";
        let counted = sqlx::query_scalar::<_, i64>(counted).bind(&turn.answer).fetch_one(&fixture.pool).await;
        assert_eq!(counted.unwrap(), 2);
    }
}

/// The model's context contains the agent's settings, the client's requests, the facts and the
/// summary.
async fn lets_the_model_read_the_whole_request(fixture: &Fixture) {
    let nats = async_nats::connect(nats_addresses(fixture.nats.url()).unwrap()).await.unwrap();
    let subject = "chunks.0.shown";
    let mut chunks = nats.subscribe(subject).await.unwrap();
    let request = json!({
        "turn_id": "u0001-shown", "run": 0, "attempt": 0, "workflow": "example", "agent_id": "shown", "thread_id": "shown",
        "message_id": "u0001-shown-0", "turn_token": "of-no-turn", "subject": subject, "stop_subject": "stop.u0001-shown.0",
        "deadline_ms": 30_000, "context_tokens": 9,
        "settings": {"system": "Be brief.", "model": "m-1", "temperature": 0.1, "max_tokens": 50, "other": true},
        "parameters": {"instructions": "In French.", "temperature": 0.9, "seed": 7, "max_tokens": 90},
        "memory": [{"fact_id": "f", "text": "Ann has a boat", "kind": "note", "confidence": 1.0}],
        "summary": "They spoke\nof boats.",
        "context": [
            {"role": "user", "content": "Which boat?", "message_id": "1"},
            {"role": "assistant", "content": "", "message_id": "2", "tool_calls": [{"id": "c", "name": "weather", "arguments": "{}"}]},
            {"role": "tool", "content": "rain", "message_id": "3", "tool_call_id": "c"},
            {"role": "assistant", "content": "That one.", "message_id": "4"},
            {"role": "user", "content": "show", "message_id": "5"},
        ],
    });
    nats.publish("work.example", request.to_string().into()).await.unwrap();
    let mut text = String::new();
    let ended = async {
        while let Some(chunk) = chunks.next().await {
            let chunk: Value = serde_json::from_slice(&chunk.payload).unwrap();
            text += chunk["chunk"].as_str().unwrap();
            if chunk["is_final"] == true {
                return chunk;
            }
        }
        Value::Null
    };
    let last = tokio::time::timeout(SOON, ended).await.unwrap();
    assert_eq!(last["metadata"], json!({"model": "m-1", "finish_reason": "stop"}));
    let body: Value = serde_json::from_str(&text).unwrap();
    let texts: Vec<(&str, &str)> = body["messages"].as_array().unwrap().iter().map(said_to_model).collect();
    assert_eq!(texts[..2], [("system", "Be brief."), ("system", "In French.")]);
    assert!(texts[2].0 == "user" && texts[2].1.contains("\n> They spoke\n> of boats.\n"), "{texts:?}");
    assert!(texts[2].1.ends_with("Which boat?"), "{texts:?}");
    assert_eq!(texts[3..6], [("assistant", ""), ("tool", "rain"), ("assistant", "That one.")]);
    assert!(texts[6].0 == "user" && texts[6].1.contains("\n> Ann has a boat\n\nshow"), "{texts:?}");
    let call = json!([{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]);
    assert_eq!(
        (&body["messages"][3]["tool_calls"], &body["messages"][4]["tool_call_id"]),
        (&call, &json!("c"))
    );
    let asked = ["model", "temperature", "seed", "max_tokens"].map(|key| body[key].clone());
    assert_eq!(asked, [json!("m-1"), json!(0.9), json!(7), json!(50)]);
    assert_eq!((&body["other"], &body["tools"][0]["function"]["name"]), (&Value::Null, &json!("weather")));
}

fn said_to_model(message: &Value) -> (&str, &str) {
    (message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or_default())
}
