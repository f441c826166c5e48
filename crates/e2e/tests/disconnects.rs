//! What a disconnect does to the turn whose answer the client reads.

use serde_json::{Value, json};
use testkit::{api::Api, db_snapshot::turns::TurnMessage, http, manual_workflow::ManualWorkflow};

use crate::{
    api_client::{A_WHILE, SOON, alone, scripted},
    fixture::Fixture,
};

const STOP: (&str, &str) = ("x-antiphon-on-disconnect", "stop");

/// Sends a request whose answer streams, and returns its connection once text of the answer has
/// arrived.
async fn until_text(api: Api, path: &str, body: &Value, headers: &[(&str, &str)]) -> http::Response {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    let bytes = body.to_string();
    let request = http::HttpRequest { method: "POST", path, headers: &all, body: bytes.as_bytes() };
    let mut response = http::begin(api.0, request).await.unwrap();
    assert_eq!(response.status, 200, "{path}");
    let mut bytes = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&bytes).contains("Hello") {
            assert!(response.body.read(&mut bytes).await.unwrap() > 0, "{path} has ended");
        }
    };
    tokio::time::timeout(SOON, read).await.unwrap();
    response
}

/// Opens a turn in the thread of this name, and publishes the beginning of its answer.
async fn begun(
    api: Api,
    workflow: &ManualWorkflow,
    (path, body): (&str, &Value),
    headers: &[(&str, &str)],
) -> (http::Response, testkit::manual_workflow::DeliveredRequest) {
    let answering = async {
        let mut asked = workflow.next(SOON).await.unwrap();
        asked.say("Hello").await.unwrap();
        asked
    };
    tokio::join!(until_text(api, path, body, headers), answering)
}

async fn answer_of(fixture: &Fixture, thread: &str) -> TurnMessage {
    fixture.until_messages(thread, 2).await.remove(1)
}

/// Requests of each protocol whose answer streams: thread, path and body.
fn requests() -> Vec<(&'static str, String, Value)> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let parts = json!([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]);
    let completion = json!({"model": "default", "stream": true, "messages": messages, "metadata": {"thread_id": "completion"}});
    let run = json!({
        "threadId": "run", "runId": "r1", "state": {}, "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "m1", "role": "user", "content": "Hi"}],
    });
    vec![
        ("native", "/v1/threads/native/messages".to_owned(), json!({"content": "Hi"})),
        ("page", "/api/chat".to_owned(), json!({"id": "page", "messages": parts})),
        ("completion", "/v1/chat/completions".to_owned(), completion),
        (
            "response",
            "/v1/responses".to_owned(),
            json!({"model": "default", "stream": true, "input": "Hi", "conversation": "response"}),
        ),
        ("run", "/agui".to_owned(), run),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_stops_the_turn_only_if_the_request_says_so() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let accept = ("accept", "text/event-stream");
    for (thread, path, body) in requests() {
        let (response, _asked) = begun(api, &workflow, (&path, &body), &[accept, STOP]).await;
        drop(response);
        let answer = answer_of(&fixture, thread).await;
        assert_eq!((&*answer.content, &answer.metadata["stopped"]), ("Hello", &json!(true)), "{path}");
    }
    // The default: the answer goes on, and so it does for `continue`.
    for headers in [&[accept][..], &[accept, (STOP.0, "continue")]] {
        let thread = format!("goes_on_{}", headers.len());
        let path = format!("/v1/threads/{thread}/messages");
        let (response, asked) = begun(api, &workflow, (&path, &json!({"content": "Hi"})), headers).await;
        drop(response);
        tokio::time::sleep(A_WHILE).await;
        asked.answer(" you").await.unwrap();
        let answer = answer_of(&fixture, &thread).await;
        assert_eq!((&*answer.content, &answer.metadata["stopped"]), ("Hello you", &Value::Null));
    }
    let refused =
        api.say_with("other", &json!({"content": "Hi"}), &[accept, (STOP.0, "maybe")]).await.unwrap();
    assert_eq!((refused.status, &refused.json().unwrap()["code"]), (400, &json!("invalid_on_disconnect")));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_client_that_leaves_stops_its_turn() {
    let mut fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    // Whole streams, whole answers and requests in the background end without a stop.
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for stream in [true, false] {
        let thread = format!("whole_{stream}");
        let body = json!({"model": "default", "stream": stream, "messages": messages, "metadata": {"thread_id": thread}});
        let answer = api.send("POST", "/v1/chat/completions", Some(&body), &[STOP]).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        fixture.until_messages(&thread, 2).await;
    }
    let body = json!({"model": "default", "background": true, "input": "Hi", "conversation": "background"});
    api.send("POST", "/v1/responses", Some(&body), &[STOP]).await.unwrap();
    fixture.until_messages("background", 2).await;
    for thread in ["whole_true", "whole_false", "background"] {
        let answer = answer_of(&fixture, thread).await;
        assert_eq!(
            (&*answer.content, &answer.metadata["stopped"]),
            ("You said: Hi", &Value::Null),
            "{thread}"
        );
        let audit = api.call("GET", &format!("/v1/threads/{thread}/audit"), None).await.unwrap();
        assert_eq!(audit["entries"], json!([]), "{thread}");
    }
    // A gateway that stops cuts its streams, and the answers go on.
    let body = json!({"content": format!("slowly Hello {}", "and on ".repeat(40))});
    let headers = [("accept", "text/event-stream"), STOP];
    let response = until_text(api, "/v1/threads/drained/messages", &body, &headers).await;
    fixture.fleet.gateways[0].terminate();
    fixture.fleet.gateways[0].ended(SOON).await.unwrap();
    drop(response);
    let answer = answer_of(&fixture, "drained").await;
    assert_eq!(answer.metadata["stopped"], Value::Null, "{}", answer.content);
}
