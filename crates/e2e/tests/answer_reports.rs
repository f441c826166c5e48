//! Why an answer ended and what it used, from outside: in every protocol, during the answer and
//! once it is stored.

use std::future::Future;

use serde_json::{Value, json};
use testkit::{http, manual_workflow::ManualWorkflow};

use crate::{
    api_client::{SOON, alone, asked_for},
    fixture::Fixture,
    protocols::{stream, until_complete},
};

/// The token counts of two calls, one of which is reported when it begins, too; a third call is
/// refused by its provider.
const USED: [u64; 3] = [230, 25, 255];

/// Answers the next request. Calls are reported in chunks of metadata and, if `in_final`, in the
/// final chunk.
async fn answer(workflow: &ManualWorkflow, in_final: bool) {
    let mut asked = workflow.next(SOON).await.unwrap();
    let calls = [
        json!([{"id": "a", "model": "m-1", "input_tokens": 90, "estimated": true}]),
        json!([{"id": "a", "model": "m-1", "input_tokens": 100, "output_tokens": 20, "cached_tokens": 64}]),
        json!([{"id": "b", "input_tokens": 5, "estimated": true}, {"id": "b", "input_tokens": 0, "output_tokens": 0}]),
    ];
    for calls in calls {
        let more = json!({"chunk_type": "metadata", "metadata": {"model_calls": calls}});
        asked.say_with("", more).await.unwrap();
    }
    asked.say("Cut ").await.unwrap();
    let last = json!([{"id": "c", "model": "m-1", "input_tokens": 130, "output_tokens": 5}]);
    let mut metadata = json!({"finish_reason": "length"});
    if in_final {
        metadata["model_calls"] = last;
    } else {
        let more = json!({"chunk_type": "metadata", "metadata": {"model_calls": last}});
        asked.say_with("", more).await.unwrap();
    }
    asked.say_with("off", json!({"is_final": true, "metadata": metadata})).await.unwrap();
    asked.ack().await.unwrap();
}

/// The result of a client whose answer is streamed meanwhile.
async fn live<T>(workflow: &ManualWorkflow, client: impl Future<Output = T>, in_final: bool) -> T {
    tokio::join!(client, answer(workflow, in_final)).0
}

fn counts(usage: &Value, names: [&str; 3]) -> [u64; 3] {
    names.map(|name| usage[name].as_u64().unwrap_or(u64::MAX))
}

const COMPLETION: [&str; 3] = ["prompt_tokens", "completion_tokens", "total_tokens"];
const RESPONSE: [&str; 3] = ["input_tokens", "output_tokens", "total_tokens"];
const RUN: [&str; 3] = ["inputTokens", "outputTokens", "totalTokens"];

fn check_completion(completion: &Value) {
    assert_eq!(counts(&completion["usage"], COMPLETION), USED, "{completion}");
    assert_eq!(completion["usage"]["prompt_tokens_details"]["cached_tokens"], 64, "{completion}");
    assert_eq!(completion["choices"][0]["finish_reason"], "length", "{completion}");
}

fn check_response(response: &Value) {
    assert_eq!(counts(&response["usage"], RESPONSE), USED, "{response}");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens", "{response}");
}

fn check_page(events: &[Value]) {
    let finish = events.iter().find(|event| event["type"] == "finish").unwrap();
    assert_eq!(finish["finishReason"], "length", "{finish}");
    let metadata = &finish["messageMetadata"];
    assert_eq!(metadata["finish_reason"], "length", "{finish}");
    assert_eq!(counts(&metadata["usage"], RESPONSE)[..2], USED[..2], "{finish}");
}

fn check_run(events: &[Value]) {
    let end = events.last().unwrap();
    assert_eq!(end["metadata"]["finish_reason"], "length", "{end}");
    assert_eq!(counts(&end["usage"][0], RUN), USED, "{end}");
}

fn check_report(shown: &Value) {
    assert_eq!(shown["finish_reason"], "length", "{shown}");
    let usage = json!({"input_tokens": USED[0], "output_tokens": USED[1], "cached_tokens": 64});
    assert_eq!(shown["usage"], usage, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_reports_the_end_and_the_sum_of_the_calls() {
    let fixture = Fixture::with(alone).await;
    let (addr, api, workflow) =
        (fixture.fleet.gateway_addrs()[0], fixture.api(), fixture.manual_workflow().await);
    for in_final in [false, true] {
        let thread = |name: &str| format!("{name}-{in_final}");
        let whole = json!({"model": "talk", "metadata": {"thread_id": thread("completion")},
            "messages": [{"role": "user", "content": "Say it."}]});
        let key = [("idempotency-key", "once")];
        let complete = || api.send("POST", "/v1/chat/completions", Some(&whole), &key);
        check_completion(&live(&workflow, complete(), in_final).await.unwrap().json().unwrap());
        check_completion(&complete().await.unwrap().json().unwrap());

        let mut streamed = whole.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let chunks = stream(addr, "POST", "/v1/chat/completions", Some(&streamed));
        let chunks = live(&workflow, chunks, in_final).await;
        assert_eq!(counts(&chunks.last().unwrap()["usage"], COMPLETION), USED, "{chunks:?}");

        let ask = json!({"model": "talk", "input": "Say it.", "conversation": thread("response")});
        let respond = api.call("POST", "/v1/responses", Some(&ask));
        let response = live(&workflow, respond, in_final).await.unwrap();
        check_response(&response);
        let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        check_response(&api.call("GET", &path, None).await.unwrap());
        let events = stream(addr, "GET", &format!("{path}?stream=true"), None).await;
        check_response(&events.last().unwrap()["response"]);

        let chat = thread("page");
        let said = json!([{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Say it."}]}]);
        let body = json!({"id": chat, "messages": said, "trigger": "submit-message"});
        check_page(&live(&workflow, stream(addr, "POST", "/api/chat", Some(&body)), in_final).await);
        check_page(&stream(addr, "GET", &format!("/api/chat/{chat}/stream"), None).await);

        let run = thread("run");
        let ask = crate::protocols::agui(addr, "/agui", &run, "one", "Say it.");
        check_run(&live(&workflow, ask, in_final).await);
        check_run(&crate::protocols::agui(addr, "/agui/connect", &run, "one", "").await);

        check_native(&fixture, &workflow, &thread("native"), in_final).await;
    }
    let path = "/v1/usage?from=2026-01-01T00:00:00Z&to=2126-01-01T00:00:00Z&group_by=finish_reason";
    let ledger = api.call("GET", path, None).await.unwrap();
    let of = &ledger["usage"][0];
    assert_eq!(
        (&of["finish_reason"], &of["calls"], &of["input_tokens"]),
        (&json!("length"), &json!(24), &json!(12 * 230))
    );
    assert_eq!(ledger["usage"].as_array().unwrap().len(), 1, "{ledger}");
}

/// Checks the native stream, the history, the batch and the turn.
async fn check_native(fixture: &Fixture, workflow: &ManualWorkflow, thread: &str, in_final: bool) {
    let (addr, api) = (fixture.fleet.gateway_addrs()[0], fixture.api());
    let turn = api.say(thread, "Say it.").await.unwrap();
    let path = format!("/v1/threads/{thread}/events?message={}", turn.answer);
    let end =
        |events: Vec<Value>| events.into_iter().find(|event| event["chunk"] == "message_complete").unwrap();
    check_report(&end(live(workflow, until_complete(addr, &path), in_final).await));
    check_report(&end(until_complete(addr, &path).await));
    let history = api.history(thread).await.unwrap();
    let [input, answer] = &history[..] else { panic!("{history:?}") };
    assert_eq!((&input["finish_reason"], &input["usage"]), (&Value::Null, &Value::Null));
    check_report(answer);
    let batch = format!("/v1/threads/{thread}/batches/{}", answer["batch_id"].as_str().unwrap());
    let shown = api.call("GET", &batch, None).await.unwrap();
    check_report(&shown);
    check_report(&shown["messages"][1]);
    check_report(&api.call("GET", &format!("/v1/turns/{}", turn.id), None).await.unwrap());
    let page = http::get_json(addr, &format!("/v1/threads/{thread}/batches")).await.unwrap();
    check_report(&page["batches"][0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_repeated_answers_report_what_the_ledger_has() {
    let fixture = Fixture::with(alone).await;
    let (addr, api) = (fixture.fleet.gateway_addrs()[0], fixture.api());
    let workflow = fixture.manual_workflow().await;
    let turn = api.say("stopped", "Say it.").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    let call = json!([{"id": "a", "model": "m-1", "input_tokens": 100, "estimated": true}]);
    asked.say_with("", json!({"chunk_type": "metadata", "metadata": {"model_calls": call}})).await.unwrap();
    asked.say("sixteen bytes...").await.unwrap();
    let path = format!("/v1/threads/stopped/events?message={}", turn.answer);
    let events = tokio::spawn(async move { until_complete(addr, &path).await });
    fixture
        .until("the text is there", SOON, async || {
            let path = format!("/v1/turns/{}", turn.id);
            let shown = api.call("GET", &path, None).await.unwrap_or_default();
            shown["state"] == "running" && shown["waiting"].is_null()
        })
        .await;
    api.stop(&turn.id).await.unwrap();
    let reports = |shown: &Value| {
        let usage = json!({"input_tokens": 100, "output_tokens": 5, "estimated": true});
        assert_eq!((&shown["finish_reason"], &shown["usage"]), (&json!("stopped"), &usage), "{shown}");
    };
    reports(events.await.unwrap().last().unwrap());
    reports(api.history("stopped").await.unwrap().last().unwrap());
    reports(&api.call("GET", &format!("/v1/turns/{}", turn.id), None).await.unwrap());

    let turn = api.say("twice", "Say it.").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    let used = |id: &str, output: u64| {
        let calls = json!([{"id": id, "input_tokens": 100, "output_tokens": output}]);
        json!({"chunk_type": "metadata", "metadata": {"model_calls": calls}})
    };
    asked.say_with("", used("a", 1)).await.unwrap();
    asked.hand_back().await.unwrap();
    let mut again = asked_for(&workflow, &turn).await;
    again.say_with("", used("a", 2)).await.unwrap();
    again.answer("Done.").await.unwrap();
    fixture.until_messages("twice", 2).await;
    let answer = api.history("twice").await.unwrap().pop().unwrap();
    assert_eq!(answer["usage"], json!({"input_tokens": 200, "output_tokens": 3}), "{answer}");
    assert_eq!(answer["finish_reason"], "stop");
}
