//! Inputs of people: what is accepted, what is refused, and answers that are streamed in the
//! response.

mod disconnects;

use std::time::Duration;

use model::{ActiveTurn, BusyPolicy, QueueStatus, RequestInfo, ThreadId, TurnId, WaitingTurn};
use serde_json::{Value, json};
use testkit::http;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::command_log::CommandLog;
use crate::fixture::{Fixture, behind, idle};
use crate::sending::{bare, exchange, post, send_with};

const MESSAGES: &str = "/v1/threads/t1/messages";
type Headers<'a> = &'a [(&'a str, &'a str)];
const JSON: (&str, &str) = ("content-type", "application/json");

async fn quiet(fixture: &Fixture) -> CommandLog {
    CommandLog::read(fixture, |_| None).await
}

fn thread() -> ThreadId {
    ThreadId::parse("t1").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_is_in_the_stream_when_it_is_accepted() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let orders = quiet(&fixture).await;
    let headers = [JSON, ("x-correlation-id", "trace-1")];
    let body = json!({"content": "hello", "metadata": {"lang": "de", "n": 1.0}});
    let reply = send_with(fixture.gateways[0], "POST", MESSAGES, &headers, body.to_string().as_bytes()).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    let opened = orders.turn(0).await;
    let turn = opened.turn.to_string();
    assert!(turn.starts_with(&format!("u{:04x}-", thread().bucket().get())));
    assert_eq!(
        reply.json(),
        json!({
            "turn_id": turn,
            "thread_id": "t1",
            "run": 0,
            "message_id": format!("{turn}-a"),
            "input_message_id": format!("{turn}-q"),
            "events_url": format!("/v1/threads/t1/events?message={turn}-a"),
            "stop_url": format!("/v1/turns/{turn}/stop"),
        })
    );
    assert_eq!((opened.thread.as_str(), opened.agent.as_str(), opened.run), ("t1", "default", 0));
    assert_eq!((opened.content.as_str(), opened.options.busy_policy), ("hello", BusyPolicy::Enqueue));
    assert_eq!(opened.metadata.to_value(), json!({"lang": "de", "n": 1}));
    assert_eq!(opened.options.correlation_id.as_deref(), Some("trace-1"));
    let other = post(fixture.gateways[0], MESSAGES, &json!({"content": "hello"})).await;
    assert_ne!(other.json()["turn_id"], turn, "without a key each one is another turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_inputs_are_refused_and_nothing_is_stored() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let orders = quiet(&fixture).await;
    let gateway = fixture.gateways[0];
    let deep = (0..80).fold(json!(1), |inner, _| json!([inner]));
    let cases = [
        (json!({}), 400, "invalid_body"),
        (json!({"content": null}), 400, "invalid_body"),
        (json!({"content": 7}), 400, "invalid_body"),
        (json!({"content": "x", "contents": "y"}), 400, "invalid_body"),
        (json!({"content": "x", "metadata": []}), 400, "invalid_body"),
        (json!([{"content": "x"}]), 400, "invalid_body"),
        (json!({"content": ""}), 400, "empty_input"),
        (json!({"content": "x".repeat((256 << 10) + 1)}), 413, "input_too_large"),
        (json!({"content": "x".repeat(2 << 20)}), 413, "body_too_large"),
        (json!({"content": "a\0b"}), 400, "invalid_content"),
        (json!({"content": "x", "agent_id": "a.b"}), 400, "invalid_id"),
        (json!({"content": "x", "agent_id": ""}), 400, "invalid_id"),
        (json!({"content": "x", "busy_policy": "wait"}), 400, "invalid_busy_policy"),
        (json!({"content": "x", "metadata": {"a": "\0"}}), 400, "invalid_metadata"),
        (json!({"content": "x", "metadata": {"a": deep}}), 400, "invalid_metadata"),
        (json!({"content": "x", "metadata": {"a": 9_007_199_254_740_993_u64}}), 400, "invalid_metadata"),
        (json!({"content": "x", "metadata": {"a": -9_007_199_254_740_993_i64}}), 400, "invalid_metadata"),
        (json!({"content": "x", "metadata": {"a": [1e25]}}), 400, "invalid_metadata"),
        (json!({"content": "x", "metadata": {"tokens_used": -1}}), 400, "invalid_metadata"),
        (json!({"content": "x", "metadata": {"a": "x".repeat(65_536)}}), 413, "metadata_too_large"),
    ];
    for (body, status, code) in cases {
        let reply = post(gateway, MESSAGES, &body).await;
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(reply.problem(), (status, code.to_owned(), false), "{shown}");
    }
    let good = json!({"content": "x"}).to_string();
    let headers: [(Headers<'_>, u16, &str); 8] = [
        (&[], 415, "unsupported_media_type"),
        (&[("content-type", "text/plain")], 415, "unsupported_media_type"),
        (&[JSON, ("idempotency-key", "")], 400, "invalid_idempotency_key"),
        (&[JSON, ("idempotency-key", "two words")], 400, "invalid_idempotency_key"),
        (&[JSON, ("idempotency-key", "é")], 400, "invalid_idempotency_key"),
        (&[JSON, ("idempotency-key", &"x".repeat(256))], 400, "invalid_idempotency_key"),
        (&[JSON, ("idempotency-key", "a"), ("idempotency-key", "b")], 400, "invalid_idempotency_key"),
        (&[JSON, ("x-correlation-id", "a b")], 400, "invalid_correlation_id"),
    ];
    for (headers, status, code) in headers {
        let reply = send_with(gateway, "POST", MESSAGES, headers, good.as_bytes()).await;
        assert_eq!(reply.problem(), (status, code.to_owned(), false), "{headers:?}");
    }
    for (text, code) in
        [("{", "invalid_json"), ("", "invalid_json"), (r#"{"content":"\ud800"}"#, "invalid_json")]
    {
        let reply = send_with(gateway, "POST", MESSAGES, &[JSON], text.as_bytes()).await;
        assert_eq!(reply.problem(), (400, code.to_owned(), false), "{text}");
    }
    let invalid_utf8 = send_with(gateway, "POST", MESSAGES, &[JSON], b"{\"content\":\"\xff\"}").await;
    assert_eq!(invalid_utf8.problem(), (400, "invalid_json".to_owned(), false));
    for path in ["/v1/threads/a.b/messages", "/v1/threads/a%00/messages", "/v1/threads/%ff/messages"] {
        let reply = post(gateway, path, &json!({"content": "x"})).await;
        assert_eq!(reply.problem(), (400, "invalid_id".to_owned(), false), "{path}");
    }
    let wrong_method = bare(gateway, "DELETE", MESSAGES).await;
    assert_eq!(wrong_method.problem(), (405, "method_not_allowed".to_owned(), false));
    assert_eq!(wrong_method.header("allow"), Some("POST"));
    assert_eq!(orders.count().await, 0);
    let largest = json!({"content": "\u{1}".repeat(256 << 10)});
    assert_eq!(
        post(gateway, MESSAGES, &largest).await.status,
        202,
        "as large as is allowed, escaped six times"
    );
    assert_eq!(orders.turn(0).await.content.len(), 256 << 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_an_end_is_refused_by_its_length() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let mut request = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for _ in 0..40 {
        request.extend_from_slice(b"10000\r\n");
        request.extend(std::iter::repeat_n(b' ', 0x10000));
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    let reply = exchange(fixture.gateways[0], &request).await;
    assert_eq!(reply.problem(), (413, "body_too_large".to_owned(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_turn() {
    let fixture = Fixture::new().await;
    let orders = quiet(&fixture).await;
    let keyed = async |gateway: usize, path: &str, key: &str, body: Value| {
        let headers = [JSON, ("idempotency-key", key)];
        send_with(fixture.gateways[gateway], "POST", path, &headers, body.to_string().as_bytes()).await
    };
    let body = json!({"content": "hello", "metadata": {"b": 1, "a": {"d": 2, "c": 3}}});
    let first = keyed(0, MESSAGES, "k1", body.clone()).await;
    let same = json!({"metadata": {"a": {"c": 3, "d": 2}, "b": 1}, "content": "hello"});
    let second = keyed(1, MESSAGES, "k1", same).await;
    assert_eq!((first.status, second.status), (202, 202));
    assert_eq!(first.json(), second.json());
    assert_eq!(orders.turn(0).await.turn, orders.turn(1).await.turn, "its owner recognises it");
    let others = [
        json!({"content": "hello!"}),
        json!({"content": "hello"}),
        json!({"content": "hello", "metadata": {"b": 1, "a": {"d": 2, "c": 4}}}),
        json!({"content": "hello", "metadata": {"b": 1, "a": {"d": 2, "c": 3}}, "agent_id": "a"}),
        json!({"content": "hello", "metadata": {"b": 1, "a": {"d": 2, "c": 3}}, "busy_policy": "reject"}),
    ];
    for other in others {
        let reply = keyed(1, MESSAGES, "k1", other.clone()).await;
        assert_eq!(reply.problem(), (422, "idempotency_key_reused".to_owned(), false), "{other}");
    }
    let elsewhere = keyed(0, "/v1/threads/t2/messages", "k1", json!({"content": "other"})).await;
    assert_ne!(elsewhere.json()["turn_id"], first.json()["turn_id"], "a key belongs to its thread");
    let turn = TurnId::parse(first.json()["turn_id"].as_str().unwrap()).unwrap();
    fixture.write_turn(&turn, 0, 10, &["answer"]).await;
    let before = orders.count().await;
    assert_eq!(keyed(0, MESSAGES, "k1", body).await.json(), first.json());
    assert_eq!(orders.count().await, before, "what is in the history is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_in_many_hands_is_one_turn() {
    let fixture = Fixture::new().await;
    let headers = [JSON, ("idempotency-key", "k")];
    let sends = (0..16).map(|n| {
        let (gateway, body) = (fixture.gateways[n % 2], json!({"content": "x"}).to_string());
        async move { send_with(gateway, "POST", MESSAGES, &headers, body.as_bytes()).await.json() }
    });
    let replies = futures_util::future::join_all(sends).await;
    assert!(replies.iter().all(|reply| reply == &replies[0] && reply["turn_id"].is_string()), "{replies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_and_policy_come_from_input_then_thread_then_default() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let orders = quiet(&fixture).await;
    let gateway = fixture.gateways[0];
    let named = json!({"thread_id": "t1", "agent_id": "helene", "busy_policy": "interrupt"});
    assert_eq!(post(gateway, "/v1/threads", &named).await.status, 201);
    let cases = [
        (json!({"content": "x"}), "helene", BusyPolicy::Interrupt),
        (
            json!({"content": "x", "agent_id": "otto", "busy_policy": "rollback"}),
            "otto",
            BusyPolicy::Rollback,
        ),
        (json!({"content": "x", "agent_id": "frieda"}), "frieda", BusyPolicy::Interrupt),
    ];
    for (n, (body, agent, policy)) in cases.into_iter().enumerate() {
        assert_eq!(post(gateway, MESSAGES, &body).await.status, 202);
        let opened = orders.turn(n).await;
        assert_eq!((opened.agent.as_str(), opened.options.busy_policy), (agent, policy));
    }
}

fn busy_with(turn: &TurnId) -> QueueStatus {
    let active = ActiveTurn {
        turn: turn.clone(),
        thread: thread(),
        run: 0,
        message: turn.answer(0),
        waits_for: None,
        idle_ms: 5,
        request: RequestInfo::default(),
        accepted_at: model::Timestamp(0),
        started_at: None,
        batch: None,
    };
    QueueStatus { active: Some(active), ..idle() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_thread_refuses_what_must_not_wait() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let orders = quiet(&fixture).await;
    let gateway = fixture.gateways[0];
    let reject = json!({"content": "x", "busy_policy": "reject"});
    assert_eq!(
        post(gateway, MESSAGES, &reject).await.status,
        202,
        "without an owner the owner decides later"
    );
    assert_eq!(orders.turn(0).await.options.busy_policy, BusyPolicy::Reject);
    let owner = fixture.owner(1, vec![]).await;
    assert_eq!(post(gateway, MESSAGES, &reject).await.status, 202);
    let other = TurnId::foreground(&thread(), "other").unwrap();
    *owner.explanation.lock().unwrap() = busy_with(&other);
    let refused = post(gateway, MESSAGES, &reject).await;
    assert_eq!(refused.problem(), (409, "thread_busy".to_owned(), true));
    *owner.explanation.lock().unwrap() = QueueStatus { waiting: vec![behind(other.clone())], ..idle() };
    assert_eq!(post(gateway, MESSAGES, &reject).await.problem().1, "thread_busy");
    // A postponed background turn does not make the thread busy.
    let passed = WaitingTurn { yields: true, ..behind(other) };
    *owner.explanation.lock().unwrap() = QueueStatus { waiting: vec![passed], ..idle() };
    assert_eq!(post(gateway, MESSAGES, &reject).await.status, 202);
    assert_eq!(post(gateway, MESSAGES, &json!({"content": "x"})).await.status, 202, "others wait");
    assert_eq!(orders.count().await, 4);
    // The input that makes the thread busy may be this very one.
    let keyed = async || {
        let headers = [JSON, ("idempotency-key", "k")];
        send_with(gateway, "POST", MESSAGES, &headers, reject.to_string().as_bytes()).await
    };
    *owner.explanation.lock().unwrap() = idle();
    let first = keyed().await.json();
    let turn = TurnId::parse(first["turn_id"].as_str().unwrap()).unwrap();
    *owner.explanation.lock().unwrap() = busy_with(&turn);
    let again = keyed().await;
    assert_eq!((again.status, again.json()), (202, first));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_backs_off_may_refuse_inputs() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture
        .write(
            "INSERT INTO agents (bucket, agent_id, backoff_attempt_count, backoff_next_run_at)
         VALUES ($bucket(t1), 't1', 3, clock_timestamp() + interval '90 s')",
        )
        .await;
    let body = json!({"content": "x"});
    assert_eq!(post(gateway, MESSAGES, &body).await.status, 202, "by default it passes");
    fixture
        .write(
            r#"INSERT INTO agent_settings (bucket, agent_id, workflow, settings)
           VALUES ($bucket(t1), 't1', 'w', '{"foreground_during_backoff": "refuse"}')"#,
        )
        .await;
    let refused = post(gateway, MESSAGES, &body).await;
    assert_eq!(refused.problem(), (409, "agent_backing_off".to_owned(), true));
    let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((80..=90).contains(&seconds), "{seconds}");
    fixture.write("UPDATE agents SET backoff_next_run_at = clock_timestamp() - interval '1 s'").await;
    assert_eq!(post(gateway, MESSAGES, &body).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_nothing_is_half_done() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture.nats.kill().await.unwrap();
    let headers = [JSON, ("idempotency-key", "k")];
    let body = json!({"content": "x"}).to_string();
    let away = send_with(gateway, "POST", MESSAGES, &headers, body.as_bytes()).await;
    assert_eq!(away.problem(), (503, "nats_unavailable".to_owned(), true));
    let streamed = [JSON, ("accept", "text/event-stream")];
    let away = send_with(gateway, "POST", MESSAGES, &streamed, body.as_bytes()).await;
    assert_eq!(away.problem(), (503, "nats_unavailable".to_owned(), true));
    // OpenAI's library repeats a request by itself, and without a key. It must not do so here,
    // because the first request may have been stored.
    let body_of_library = json!({"model": "t1", "metadata": {"thread_id": "t1"}, "messages": [{"role": "user", "content": "x"}]});
    for (key, code, again, pause) in [
        (None, "input_unconfirmed", Some("false"), None),
        (Some("another"), "nats_unavailable", None, Some("1")),
    ] {
        let mut headers = vec![JSON];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        let (path, body) = ("/v1/chat/completions", body_of_library.to_string());
        let away = send_with(gateway, "POST", path, &headers, body.as_bytes()).await;
        assert_eq!((away.status, &away.json()["error"]["code"]), (503, &json!(code)), "{away:?}");
        assert_eq!((away.header("x-should-retry"), away.header("retry-after")), (again, pause));
        assert_eq!(away.text.contains("-a of thread t1"), key.is_none(), "{away:?}");
    }
    fixture.nats.restart().await.unwrap();
    let orders = quiet(&fixture).await;
    assert_eq!(orders.count().await, 0);
    for _ in 0..50 {
        let again = send_with(gateway, "POST", MESSAGES, &headers, body.as_bytes()).await;
        if again.status == 202 {
            assert_eq!(again.json()["turn_id"], orders.turn(0).await.turn.as_str());
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("NATS is back, and inputs are not taken");
}

/// A request answered with a stream: the turn, the events, and whether it ended cleanly.
async fn in_line(fixture: &Fixture, key: Option<&str>) -> (String, Vec<Value>, bool) {
    let mut headers = vec![JSON, ("accept", "application/json;q=0.1, text/event-stream")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    let body = json!({"content": "question"}).to_string();
    let reply = send_with(fixture.gateways[0], "POST", MESSAGES, &headers, body.as_bytes()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(reply.text.starts_with(": open\nretry: 1000\n"), "{}", reply.text);
    let data = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    (reply.header("x-antiphon-turn").unwrap().to_owned(), events, reply.is_whole)
}

fn short(events: &[Value], turn: &str) -> String {
    let part = |event: &Value| {
        let message = event["message_id"].as_str().unwrap().replace(turn, "T");
        match event["chunk_type"].as_str().unwrap_or("input") {
            "input" => message,
            "system" => format!("{message}!"),
            "error" => format!("{message}?{}", event["metadata"]["code"].as_str().unwrap()),
            _ => format!("{message}:{}", event["chunk"].as_str().unwrap()),
        }
    };
    events.iter().map(part).collect::<Vec<_>>().join("|")
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_stream_ends_cleanly_with_the_answer() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![("other", 0, "eins ")]).await;
    let orders = quiet(&fixture).await;
    let playing = async {
        // Sent at once: the stream must miss nothing between the input and the subscription.
        let opened = orders.turn(0).await;
        let answer = opened.turn.answer(0);
        fixture.send(answer.as_str(), 0, "one two ").await;
        fixture.send("other", 1, "zwei ").await;
        fixture.send(answer.as_str(), 2, "three.").await;
        fixture.write_turn(&opened.turn, 0, 10, &["one two three."]).await;
        fixture.send_end(answer.as_str(), 3, 11).await;
        fixture.send("other", 2, "drei.").await;
    };
    let ((turn, events, is_whole), ()) = tokio::join!(in_line(&fixture, None), playing);
    // Text that was published before the owner was queried arrives in chunks or, if its message has
    // ended, in one piece.
    let text = |message: &str| {
        let of_it =
            events.iter().filter(|event| event["message_id"] == message && event["chunk_type"] == "content");
        of_it.map(|event| event["chunk"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!(text(&format!("{turn}-a")), "one two three.");
    // On a busy machine the answer may have ended before the stream joined: then it ends at once,
    // without open messages.
    let other = text("other");
    assert!(["eins zwei ", ""].contains(&other.as_str()), "nothing that comes after the end: {other}");
    let all = short(&events, &turn);
    assert!(all.ends_with("|T-a!") && all.matches('!').count() == 1, "{all}");
    assert!(is_whole, "it had its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_line_ends_with_the_turns_error() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    let orders = quiet(&fixture).await;
    let playing = async {
        let opened = orders.turn(0).await;
        let failure = model::MessageFailure::Turn(model::TurnError::Busy);
        let answer = opened.turn.answer(0);
        fixture.keep_failure(answer.as_str(), 11, failure.clone()).await;
        fixture
            .send_frame(&fixture.end(answer.as_str(), 0, 11, model::MessageOutcome::Failed(failure)))
            .await;
    };
    let ((turn, events, is_whole), ()) = tokio::join!(in_line(&fixture, None), playing);
    assert_eq!(short(&events, &turn), "T-a?busy");
    assert_eq!(events[0]["metadata"], json!({"code": "busy", "retryable": true}));
    assert!(is_whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_never_sent_is_found_in_the_store() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    let orders = quiet(&fixture).await;
    let playing = async {
        let opened = orders.turn(0).await;
        fail(&fixture, &opened.turn, 0).await;
    };
    let ((turn, events, is_whole), ()) = tokio::join!(in_line(&fixture, None), playing);
    assert_eq!(short(&events, &turn), "T-a?deadline");
    assert_eq!(events[0]["metadata"], json!({"code": "deadline", "retryable": true}));
    assert!(is_whole);
}

/// A protocol with steps would show a stored text in one piece as another answer. So the whole
/// answer is read from the store, and the stream ends as usual.
#[tokio::test(flavor = "multi_thread")]
async fn answer_only_in_the_store_is_whole_in_every_protocol() {
    for (path, body, texts, end) in [
        (
            "/api/chat",
            json!({"id": "t1", "messages": [{"id": "q", "role": "user", "parts": [{"type": "text", "text": "x"}]}]}),
            ["\"delta\":\"Let me see. \"", "\"delta\":\"It is 5.\""],
            "data: [DONE]\n\n",
        ),
        (
            "/v1/responses",
            json!({"model": "t1", "input": "x", "conversation": "t1", "stream": true}),
            ["\"delta\":\"Let me see. \"", "\"delta\":\"It is 5.\""],
            "",
        ),
    ] {
        let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
        let _owner = fixture.owner(1, vec![]).await;
        let orders = quiet(&fixture).await;
        let playing = async {
            let opened = orders.turn(0).await;
            fixture.write_turn(&opened.turn, 0, 10, &["Let me see. ", "It is 5."]).await;
            fixture.send_end(opened.turn.answer(0).as_str(), 2, 12).await;
        };
        let body = body.to_string();
        let asked = send_with(fixture.gateways[0], "POST", path, &[JSON], body.as_bytes());
        let (reply, ()) = tokio::join!(asked, playing);
        assert!(reply.status == 200 && reply.is_whole, "{path}: {reply:?}");
        for text in texts {
            assert_eq!(reply.text.matches(text).count(), 1, "{path}: {}", reply.text);
        }
        assert!(reply.text.ends_with(end), "{path}: {}", reply.text);
        let is_completed = reply.text.contains("response.completed") || reply.text.contains("\"finish\"");
        assert!(is_completed, "{path}: {}", reply.text);
    }
}

/// Stores the failure of a run as its owner does; the end of the run is not sent.
pub(crate) async fn fail(fixture: &Fixture, turn: &TurnId, run: u32) {
    let answer = turn.answer(run);
    let position = fixture.next_failure();
    fixture
        .keep_failure(answer.as_str(), position, model::MessageFailure::Turn(model::TurnError::Deadline))
        .await;
    fixture.lose_end(answer.as_str(), position);
    fixture.write(&format!(
        "INSERT INTO failed_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, code, text,
                                   is_retryable)
         VALUES ($bucket(t1), 't1', '{turn}', 't1', {run}, 'question', '{{\"k\": 1}}', '{{\"work_request\": true}}',
                 'deadline', 'no progress', true)
         ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE SET run = excluded.run"
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_key_may_name_another_turn_or_the_same() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let say = async |content: &str| {
        let body = json!({"content": content}).to_string();
        send_with(fixture.gateways[0], "POST", MESSAGES, &[JSON, ("idempotency-key", "k")], body.as_bytes())
            .await
    };
    let first = say("question").await.json();
    assert_eq!(say("another").await.problem(), (422, "idempotency_key_reused".to_owned(), false));
    fixture.write("DELETE FROM idempotency_keys").await;
    assert_eq!(say("question").await.json(), first, "so that nothing can happen twice");
    fixture.write("DELETE FROM idempotency_keys").await;
    let other = say("another").await;
    assert_eq!(other.status, 202, "{other:?}");
    assert_ne!(other.json()["turn_id"], first["turn_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_in_line_gets_the_answer_that_is_there() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    let headers = [JSON, ("idempotency-key", "k")];
    let body = json!({"content": "question"}).to_string();
    let first = send_with(fixture.gateways[0], "POST", MESSAGES, &headers, body.as_bytes()).await.json();
    let turn = TurnId::parse(first["turn_id"].as_str().unwrap()).unwrap();
    fail(&fixture, &turn, 0).await;
    let (name, events, is_whole) = in_line(&fixture, Some("k")).await;
    assert_eq!((short(&events, &name).as_str(), is_whole), ("T-a?deadline", true));
    fixture.write("DELETE FROM failed_turns").await;
    // The second run succeeded; two steps were streamed under the answer's id.
    fixture.write_turn(&turn, 1, 10, &["Let me see. ", "It is 5."]).await;
    fixture.lose_end(turn.answer(1).as_str(), 12);
    let (name, events, is_whole) = in_line(&fixture, Some("k")).await;
    assert_eq!(
        (short(&events, &name).as_str(), is_whole),
        ("T-q|T-a1:Let me see. |T-a1:It is 5.|T-a1:|T-a1!", true)
    );
    // The stream shows how the first run failed, and then the second run.
    let mut late = Client::at(fixture.gateways[0], first["events_url"].as_str().unwrap(), None).await;
    assert_eq!(late.next().await, format!("{turn}-a?deadline"));
    late.until(&format!("{turn}-a1!")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_url_of_an_answers_events_shows_it_whatever_became_of_it() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    let accepted = post(fixture.gateways[0], MESSAGES, &json!({"content": "x"})).await.json();
    let turn = TurnId::parse(accepted["turn_id"].as_str().unwrap()).unwrap();
    let url = accepted["events_url"].as_str().unwrap();
    let mut early = Client::at(fixture.gateways[0], url, None).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let answer = turn.answer(0);
    fixture.send(answer.as_str(), 0, "one ").await;
    assert_eq!(early.next().await, format!("{turn}-a:one "));
    let mut during = Client::at(fixture.gateways[1], url, None).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    fixture.send(answer.as_str(), 0, "one two.").await;
    assert_eq!(during.until(&format!("{turn}-a:two.")).await, format!("{turn}-a:one |{turn}-a:two."));
    fixture.write_turn(&turn, 0, 10, &["one two."]).await;
    fixture.send_end(answer.as_str(), 2, 11).await;
    assert_eq!(early.until(&format!("{turn}-a!")).await, format!("{turn}-a:two.|{turn}-a!"));
    let mut late = Client::at(fixture.gateways[1], url, None).await;
    assert_eq!(
        late.until(&format!("{turn}-a!")).await,
        format!("{turn}-q|{turn}-a:one two.|{turn}-a:|{turn}-a!")
    );
    let bad = http::get(fixture.gateways[0], "/v1/threads/t1/events?message=a.b").await.unwrap();
    assert_eq!((bad.status, bad.text.contains("invalid_id")), (400, true));
}
