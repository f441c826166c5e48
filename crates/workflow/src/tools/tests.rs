use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use runtime::{endpoint, spawn_named};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::request::tests::turn;

/// `METHOD path?query key=<Idempotency-Key> secret=<X-Secret> body` of each request.
type Seen = Arc<Mutex<Vec<String>>>;

async fn answer(seen: Seen, request: Request) -> Response {
    let (events, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let header = |name: &str| events.headers.get(name).map_or("-", |value| value.to_str().unwrap());
    let body_text = String::from_utf8_lossy(&body);
    let (key, secret) = (header("idempotency-key"), header("x-secret"));
    let line = format!("{} {} key={key} secret={secret} {body_text}", events.method, events.uri);
    seen.lock().unwrap().push(line);
    match events.uri.path() {
        "/long" => "ä".repeat(100).into_response(),
        "/missing" => (StatusCode::NOT_FOUND, "no such thing").into_response(),
        "/moved" => (StatusCode::FOUND, [("location", "/echo")]).into_response(),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            "late".into_response()
        }
        _ => format!("got {body_text}").into_response(),
    }
}

/// A server of tools, and a registry with a tool per path.
async fn fixture() -> (Tools, Seen) {
    let seen = Seen::default();
    let listener = endpoint::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    let state = seen.clone();
    let router = Router::new().fallback(move |request| answer(state.clone(), request));
    spawn_named("tools", endpoint::serve(listener, router, CancellationToken::new()));
    let tools = json!({"tools": [
        {"name": "echo", "description": "Says it again.", "url": format!("{at}/echo"), "headers": {"X-Secret": "s"},
         "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
        {"name": "get", "url": format!("{at}/get?fixed=1"), "method": "GET"},
        {"name": "long", "url": format!("{at}/long"), "max_result_bytes": 9},
        {"name": "missing", "url": format!("{at}/missing")},
        {"name": "moved", "url": format!("{at}/moved")},
        {"name": "slow", "url": format!("{at}/slow"), "timeout_seconds": 0.2},
        {"name": "away", "url": "http://127.0.0.1:1/x"},
    ]});
    (Tools::parse(&tools.to_string()).unwrap(), seen)
}

async fn call(tools: &Tools, name: &str, arguments: &str) -> (String, bool) {
    let answer = tools.call(name, arguments, (&turn(), "u0001-x:0.0"), None).await.result().clone();
    (answer.text, answer.is_error)
}

#[tokio::test]
async fn a_call_carries_its_arguments_its_key_and_the_tools_headers() {
    let (tools, seen) = fixture().await;
    assert_eq!(call(&tools, "echo", r#"{"q": "x"}"#).await, (r#"got {"q":"x"}"#.to_owned(), false));
    assert!(!call(&tools, "get", r#"{"a": "x y", "n": [1]}"#).await.1);
    assert_eq!(
        *seen.lock().unwrap(),
        [
            r#"POST /echo key=u0001-x:0.0 secret=s {"q":"x"}"#,
            "GET /get?fixed=1&a=x+y&n=%5B1%5D key=u0001-x:0.0 secret=- ",
        ]
    );
}

#[tokio::test]
async fn tool_failures_are_results_for_the_model() {
    let (tools, seen) = fixture().await;
    let error = |text: &str| (text.to_owned(), true);
    assert_eq!(call(&tools, "none", "{}").await, error("error: there is no tool \"none\""));
    let allowed = ["get".to_owned()];
    let answer = tools.call("echo", "{}", (&turn(), "k"), Some(&allowed)).await.result().clone();
    assert_eq!((answer.text, answer.is_error), error("error: there is no tool \"echo\""));
    for wrong in ["{", "[]", "7", ""] {
        let (text, is_error) = call(&tools, "echo", wrong).await;
        assert!(is_error && text.starts_with("error: the arguments are not a JSON object: "), "{text}");
    }
    assert!(seen.lock().unwrap().is_empty(), "nothing of this reached a tool");
    assert_eq!(
        call(&tools, "missing", "{}").await,
        error("error: the tool answered 404 Not Found: no such thing")
    );
    assert_eq!(call(&tools, "moved", "{}").await, error("error: the tool answered 302 Found: "));
    assert_eq!(call(&tools, "slow", "{}").await, error("error: the tool did not answer within 0.2 s"));
    assert_eq!(call(&tools, "away", "{}").await, error("error: the tool cannot be reached"));
}

/// Only calls that may have run have an unknown outcome.
#[tokio::test]
async fn outcomes_say_whether_a_tool_may_have_run() {
    let (tools, _) = fixture().await;
    for (name, expected) in [
        ("echo", "answered"),
        ("missing", "answered"),
        ("none", "not run"),
        ("away", "not run"),
        ("slow", "unknown"),
    ] {
        let outcome = match tools.call(name, "{}", (&turn(), "k"), None).await {
            ToolOutcome::Answered(_) => "answered",
            ToolOutcome::NotRun(_) => "not run",
            ToolOutcome::Unknown(_) => "unknown",
        };
        assert_eq!((name, outcome), (name, expected));
    }
    let once = json!({"tools": [{"name": "pay", "url": "http://h/", "idempotent": false}]});
    let once = Tools::parse(&once.to_string()).unwrap();
    assert!(!once.is_idempotent("pay") && tools.is_idempotent("echo") && tools.is_idempotent("of-a-server"));
}

#[tokio::test]
async fn a_result_that_is_too_long_says_so() {
    let (tools, _) = fixture().await;
    assert_eq!(call(&tools, "long", "{}").await, ("ääää\n[cut off after 9 bytes]".to_owned(), false));
}

#[tokio::test]
async fn the_model_gets_the_definitions_of_allowed_tools() {
    let (tools, _) = fixture().await;
    assert_eq!((tools.len(), tools.definitions(None).await.len()), (7, 7));
    let allowed = ["echo".to_owned(), "other".to_owned()];
    assert_eq!(
        json!(tools.definitions(Some(&allowed)).await),
        json!([{"type": "function", "function": {"name": "echo", "description": "Says it again.",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}])
    );
    assert_eq!(tools.definitions(Some(&[])).await, [] as [Value; 0]);
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let why = |tool: Value| {
        let mut whole = json!({"name": "f", "url": "http://h/"});
        let changes = tool.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(changes);
        Tools::parse(&json!({"tools": [whole]}).to_string()).unwrap_err().to_string()
    };
    assert_eq!(why(json!({"name": "a b"})), "tool \"a b\": a name has 1 to 64 letters, digits, _ and -");
    assert!(why(json!({"url": "h"})).starts_with("tool \"f\": url \"h\": "));
    assert!(why(json!({"url": "file:///etc/passwd"})).contains("only http and https"));
    assert!(why(json!({"method": "get"})).contains("method \"get\""));
    assert!(why(json!({"parameters": []})).contains("must be a JSON schema"));
    assert!(why(json!({"timeout_seconds": 0})).contains("from 0.1 to 600"));
    assert!(why(json!({"max_result_bytes": 0})).contains("max_result_bytes must be from 1"));
    assert!(why(json!({"headers": {"Idempotency-Key": "x"}})).contains("is set for each call"));
    let secret = why(json!({"headers": {"Authorization": "Bearer \n s3cret"}}));
    assert!(secret.contains("\"Authorization\"") && !secret.contains("s3cret"), "{secret}");
    assert!(why(json!({"time_out": 3})).contains("unknown field `time_out`"));
    let two = json!({"tools": [{"name": "f", "url": "http://h/"}, {"name": "f", "url": "http://h/"}]});
    assert!(Tools::parse(&two.to_string()).unwrap_err().to_string().contains("there are two of this name"));
    assert!(Tools::parse("[]").is_err());
}
