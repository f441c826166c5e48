//! The logs alone show a turn from its request to its cause.

use model::ThreadId;
use serde_json::{Value, json};
use testkit::fleet::{FleetOptions, Process};

use crate::{
    api_client::{SOON, alone, asked_for},
    fixture::Fixture,
};

/// Lines of a process' log as JSON.
fn lines(process: &Process) -> Vec<Value> {
    let log = std::fs::read_to_string(process.log()).unwrap();
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

impl Fixture {
    /// Publishes one chunk of a message without a turn.
    async fn publish_chunk(&self, thread: &str, chunk: &Value) {
        let subject = self.publisher.subject(&ThreadId::parse(thread).unwrap());
        let mut chunk = chunk.clone();
        chunk["session_id"] = json!(thread);
        self.publisher.publish_raw(&subject, None, chunk.to_string().into()).await.unwrap();
    }
}

fn as_json(options: FleetOptions, level: &str) -> FleetOptions {
    alone(options).with_env("ANTIPHON_LOG_FORMAT", "json").with_env("ANTIPHON_LOG", level)
}

/// The lines that contain this text.
fn about<'a>(lines: &'a [Value], text: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line.to_string().contains(text)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_followed_from_request_to_cause_by_logs() {
    let fixture = Fixture::with(|options| as_json(options, "info")).await;
    let workflow = fixture.manual_workflow().await;
    let api = fixture.api();
    let headers = [("x-request-id", "request-1"), ("x-correlation-id", "order-7")];
    let failing = api.say_with("talk", &json!({"content": "hello"}), &headers).await.unwrap().json().unwrap();
    let turn = failing["turn_id"].as_str().unwrap();
    let mut asked = workflow.next(SOON).await.unwrap();
    asked.fail("the tool is broken", json!({"class": "permanent", "code": "impossible"})).await.unwrap();
    asked.ack().await.unwrap();
    let worker = || lines(&fixture.fleet.workers[0]);
    fixture
        .until("the failure is logged", SOON, async || !about(&worker(), "a run of a turn failed").is_empty())
        .await;

    // The client has the request's id. The log line of the request names the thread, and the
    // worker's lines name the turn, the agent and the cause.
    let gateway = lines(&fixture.fleet.gateways[0]);
    let request = about(&gateway, "request-1");
    let line = request.iter().find(|line| line["message"] == "a request was answered").unwrap();
    assert_eq!((&line["method"], &line["path"]), (&json!("POST"), &json!("/v1/threads/talk/messages")));
    assert!(line["status"] == 202 && line["took_ms"].is_number(), "{line}");
    let worker_lines = worker();
    let failed = about(&worker_lines, "a run of a turn failed")[0].to_string();
    for part in [turn, "talk", "order-7", "the tool is broken", "waited_ms", "ran_ms", "agent"] {
        assert!(failed.contains(part), "{part}: {failed}");
    }

    // A successful turn has one line too, with its tokens and its duration.
    let turn = api.say("talk", "again").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    let waiting = api.say("talk", "a third time").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let calls = json!([{"model": "m", "input_tokens": 12, "output_tokens": 3}]);
    asked.say_with("well", json!({"is_final": true, "metadata": {"model_calls": calls}})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture
        .until("its end is logged", SOON, async || !about(&worker(), "a turn has finished").is_empty())
        .await;
    let worker_lines = worker();
    let ended = about(&worker_lines, "a turn has finished");
    assert_eq!(ended.len(), 1, "{ended:?}");
    let ended = ended[0].to_string();
    for part in [
        &*turn.id,
        "\"input_tokens\":12",
        "\"output_tokens\":3",
        "\"chunks\":1",
        "waited_ms",
        "ran_ms",
        "\"kind\":\"message\"",
    ] {
        assert!(ended.contains(part), "{part}: {ended}");
    }

    // The next turn has waited for this one.
    asked_for(&workflow, &waiting).await.answer("well").await.unwrap();
    fixture.until_messages("talk", 4).await;
    let waited = || {
        let lines = worker();
        let ended = about(&lines, "a turn has finished");
        ended.into_iter().find(|line| line.to_string().contains(&waiting.id)).cloned()
    };
    fixture.until("its end is logged", SOON, async || waited().is_some()).await;
    let line = waited().unwrap();
    assert!(line["waited_ms"].as_i64().unwrap() >= 1_000, "{line}");

    // A refusal is logged with its code.
    let refused =
        api.send("GET", "/v1/turns/u0000-unknown", None, &[("x-request-id", "request-2")]).await.unwrap();
    assert_eq!(refused.status, 404);
    let gateway = lines(&fixture.fleet.gateways[0]);
    let found = about(&gateway, "request-2");
    assert_eq!((&found[0]["code"], &found[0]["status"]), (&json!("unknown_turn"), &json!(404)));

    // The input keeps its sender's correlation id, and so does its answer.
    api.say_with("kept", &json!({"content": "hello"}), &headers).await.unwrap();
    workflow.next(SOON).await.unwrap().answer("well").await.unwrap();
    let kept = fixture.until_messages("kept", 2).await;
    assert!(kept.iter().all(|message| message.metadata["correlation_id"] == "order-7"), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_followed_at_debug_level() {
    let fixture = Fixture::with(|options| as_json(options, "debug")).await;
    let chunk = |id: u32, text: &str, is_final: bool| json!({"message_id": "m", "chunk_id": id, "chunk": text, "chunk_type": "content", "is_final": is_final});
    let logged = async |text: &str| {
        let is_logged = async || !about(&lines(&fixture.fleet.workers[0]), text).is_empty();
        fixture.until(text, SOON, is_logged).await;
    };
    fixture.publish_chunk("talk", &chunk(0, "a", false)).await;
    logged("streaming 1 chunks for message m (session talk)").await;
    fixture.publish_chunk("talk", &chunk(2, "c", false)).await;
    logged("out-of-order chunk received: expected 1, got 2; waiting for missing chunks").await;
    fixture.publish_chunk("talk", &chunk(1, "b", false)).await;
    logged("streaming 2 chunks for message m (session talk)").await;
    fixture.publish_chunk("talk", &chunk(3, "d", true)).await;
    logged("message m finalized: 4 chunks, unknown tokens, 4 bytes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_several_messages_that_fail_at_once_is_logged() {
    let fixture = Fixture::with(|options| alone(options).with_env("ANTIPHON_GAP_TIMEOUT_SECONDS", 1)).await;
    let chunk = |message: &str| json!({"message_id": message, "chunk_id": 1, "chunk": "b", "chunk_type": "content", "is_final": true});
    let names = ["m1", "m2", "m3"];
    for name in names {
        fixture.publish_chunk("talk", &chunk(name)).await;
    }
    let log = || std::fs::read_to_string(fixture.fleet.workers[0].log()).unwrap();
    let given_up = |name: &str| {
        log()
            .lines()
            .any(|line| line.contains("a message was given up") && line.contains(&format!("talk/{name}")))
    };
    fixture.until("all are logged", SOON, async || names.iter().all(|name| given_up(name))).await;
}
