//! Refusals, over HTTP and over NATS: with the reason, and without any other effect.

use serde_json::{Value, json};
use testkit::db_snapshot::{self, turns};

use crate::{
    api_client::{SOON, said, scripted},
    fixture::Fixture,
};

/// Nearly the limit of a NATS message by default.
const MEGABYTE: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn inputs_and_tasks_that_cannot_be_are_refused_over_http() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    let long_id = "x".repeat(129);
    let content = |text: &str| json!({"content": text});
    let messages = |thread: &str| format!("/v1/threads/{thread}/messages");
    let tasks = |agent: &str| format!("/v1/agents/{agent}/tasks");
    let cases: Vec<(&str, String, Value, u16, &str)> = vec![
        ("POST", messages("talk"), content(""), 400, "empty_input"),
        ("POST", messages("talk"), content(&"x".repeat(MEGABYTE)), 413, "input_too_large"),
        ("POST", messages("talk"), content("a\u{0}b"), 400, "invalid_content"),
        (
            "POST",
            messages("talk"),
            json!({"content": "x", "metadata": {"k": "a\u{0}b"}}),
            400,
            "invalid_metadata",
        ),
        (
            "POST",
            messages("talk"),
            json!({"content": "x", "metadata": {"tokens_used": -1}}),
            400,
            "invalid_metadata",
        ),
        (
            "POST",
            messages("talk"),
            json!({"content": "x", "metadata": {"synthetic": true}}),
            400,
            "invalid_metadata",
        ),
        ("POST", messages("talk"), json!({"content": 7}), 400, "invalid_body"),
        ("POST", messages("talk"), json!({}), 400, "invalid_body"),
        (
            "POST",
            messages("talk"),
            json!({"content": "x", "busy_policy": "shout"}),
            400,
            "invalid_busy_policy",
        ),
        ("POST", messages("talk"), json!({"content": "x", "agent_id": "a b"}), 400, "invalid_id"),
        ("POST", messages("a.b"), content("x"), 400, "invalid_id"),
        ("POST", messages("a%2Fb"), content("x"), 400, "invalid_id"),
        ("POST", messages(&long_id), content("x"), 400, "invalid_id"),
        ("POST", tasks("ann"), json!({"task_id": "", "content": "x"}), 400, "invalid_id"),
        ("POST", tasks("ann"), json!({"task_id": "a.b", "content": "x"}), 400, "invalid_id"),
        ("POST", tasks("ann"), json!({"task_id": "k", "content": ""}), 400, "empty_input"),
        (
            "POST",
            tasks("ann"),
            json!({"task_id": "k", "content": "x".repeat(MEGABYTE)}),
            413,
            "input_too_large",
        ),
        ("POST", tasks("a*"), json!({"task_id": "k", "content": "x"}), 400, "invalid_id"),
        ("PUT", "/v1/agents/ann".into(), json!({"workflow": "a.b"}), 400, "invalid_id"),
        (
            "PUT",
            "/v1/agents/ann".into(),
            json!({"workflow": "w", "settings": {"deadline_ms": 0}}),
            400,
            "invalid_settings",
        ),
        ("POST", "/v1/turns/nonsense/stop".into(), json!({}), 400, "invalid_id"),
        ("POST", "/v1/turns/u0001-missing/stop".into(), json!({}), 404, "unknown_turn"),
        ("POST", "/v1/agents/ann/explode".into(), json!({}), 404, "unknown_address"),
    ];
    for (method, path, body, status, code) in cases {
        let answer = api.send(method, &path, Some(&body), &[]).await.unwrap();
        let shown = answer.text.chars().take(200).collect::<String>();
        let problem = answer.json().unwrap();
        assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{method} {path}: {shown}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 5), "{shown}");
    }
    for (path, code) in [
        ("/v1/threads/missing", "unknown_thread"),
        ("/v1/threads/missing/history", "unknown_thread"),
        ("/v1/threads/missing/failed-turns", "unknown_thread"),
        ("/v1/agents/missing", "unknown_agent"),
        ("/v1/agents/missing/tasks", "unknown_agent"),
        ("/v1/agents/missing/tasks/k", "unknown_task"),
    ] {
        let answer = api.send("GET", path, None, &[]).await.unwrap();
        assert_eq!((answer.status, answer.json().unwrap()["code"].clone()), (404, json!(code)), "{path}");
    }
    let key = [("idempotency-key", "a key with blanks")];
    let answer = api.say_with("talk", &content("x"), &key).await.unwrap();
    assert_eq!(
        (answer.status, answer.json().unwrap()["code"].clone()),
        (400, json!("invalid_idempotency_key"))
    );
    // None of the refused requests had any effect.
    assert_eq!(turns::messages(&fixture.pool).await.unwrap().len(), 0);
    assert_eq!(turns::tasks(&fixture.pool).await.unwrap().len(), 0);
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (0, 0));
    let refused = fixture.fleet.gateways[0].metrics().await.unwrap();
    assert!(refused.sum("antiphon_gateway_http_errors_total") >= 29.0);
    // The largest and most unusual valid values.
    let largest = format!("large...{}", "\u{1F600}".repeat((256 << 10) / 4 - 2));
    let turn = api.say("large", &largest).await.unwrap();
    let stored = fixture.until_messages("large", 2).await;
    assert_eq!((stored[0].message_id.as_str(), stored[0].content.len()), (turn.input.as_str(), 256 << 10));
    assert_eq!(stored[1].content, format!("You said: {largest}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tasks_become_dead_letters_and_block_no_queue() {
    let fixture = Fixture::with(scripted).await;
    let task = |id: &str, content: &str| json!({"task_id": id, "content": content}).to_string().into_bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"not JSON".to_vec(), "malformed"),
        (b"{\"task_id\":\"k\"".to_vec(), "malformed"),
        (vec![0x0a, 0xff, 0xff, 0xff], "malformed"),
        (task("", "x"), "invalid_command"),
        (task("a b", "x"), "invalid_command"),
        (task("k", ""), "empty_input"),
        (task("k", "a\u{0}b"), "invalid_command"),
        (task("k", &"x".repeat(MEGABYTE)), "input_too_large"),
        (b"{\"task_id\":\"k\",\"content\":\"x\",\"kind\":\"chore\"}".to_vec(), "invalid_command"),
        (b"{\"task_id\":\"k\",\"content\":\"x\",\"metadata\":{\"n\":1e999}}".to_vec(), "malformed"),
        (b"{\"task_id\":\"k\",\"content\":\"x\",\"metadata\":{\"n\":1e99}}".to_vec(), "metadata_error"),
        (
            b"{\"task_id\":\"k\",\"content\":\"x\",\"metadata\":{\"synthetic\":true}}".to_vec(),
            "metadata_error",
        ),
    ];
    for (payload, _) in &cases {
        fixture.send_entry("ann", payload.clone()).await;
    }
    fixture.send_tasks("ann", [("k".to_owned(), "hello".to_owned())]).await;
    fixture.until_tasks("ann", &["completed"]).await;
    assert_eq!(
        said(&fixture.messages_of("ann").await),
        [("user", "hello"), ("assistant", "You said: hello")]
    );
    fixture
        .until("each is a dead letter", SOON, async || {
            db_snapshot::dead_letters(&fixture.pool).await.unwrap().len() == cases.len()
        })
        .await;
    let mut letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
    letters.sort_by_key(|letter| letter.stream_seq);
    for (letter, (payload, code)) in letters.iter().zip(&cases) {
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(60)]).into_owned();
        assert_eq!(
            (letter.kind.as_str(), letter.reason.as_str()),
            ("entry", *code),
            "{shown}: {}",
            letter.detail
        );
        assert_eq!(letter.raw, *payload, "kept as it came");
        assert_eq!(letter.subject.as_deref(), Some(&*fixture.task_subject("ann")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_agents_are_refused_without_auto_create() {
    let fixture =
        Fixture::with(|options| scripted(options).with_env("ANTIPHON_AUTO_CREATE_AGENTS", "false")).await;
    let api = fixture.api();
    fixture.settle("known", json!({})).await;
    fixture.send_tasks("stranger", [("k".to_owned(), "hello".to_owned())]).await;
    fixture.send_tasks("known", [("k".to_owned(), "hello".to_owned())]).await;
    fixture.until_tasks("known", &["completed"]).await;
    fixture
        .until("the stranger's task is a dead letter", SOON, async || {
            db_snapshot::dead_letters(&fixture.pool).await.unwrap().len() == 1
        })
        .await;
    let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
    assert_eq!(letters[0].reason, "unknown_agent");
    assert_eq!(fixture.tasks_of("stranger").await.len(), 0);
    assert_eq!(api.send("GET", "/v1/agents/stranger", None, &[]).await.unwrap().status, 404);
    // Once the agent is known, the same task is accepted.
    fixture.settle("stranger", json!({})).await;
    fixture.send_tasks("stranger", [("k".to_owned(), "hello".to_owned())]).await;
    fixture.until_tasks("stranger", &["completed"]).await;
}
