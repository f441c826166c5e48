//! The engine that calls a model, against a scripted endpoint.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::Request;
use model::TurnId;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use workflow::Tools;

use crate::fixture::{Fixture, Upstream, eventually, hint, metadata, request, steps, story};

/// Tools `slow` and `fast` on a server that records `tool key body` of each call.
async fn tools() -> Result<(Tools, Arc<Mutex<Vec<String>>>)> {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let at = format!("http://{}", listener.local_addr()?);
    let state = seen.clone();
    let router = Router::new().fallback(async move |request: Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
        let key =
            parts.headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("-").to_owned();
        let tool = parts.uri.path().trim_start_matches('/').to_owned();
        if tool == "slow" {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let call = format!("{tool} {key} {}", String::from_utf8_lossy(&body));
        state.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        format!("{tool} is done")
    });
    tokio::spawn(runtime::endpoint::serve(listener, router, CancellationToken::new()));
    let file = json!({"tools": [
        {"name": "slow", "url": format!("{at}/slow")}, {"name": "fast", "url": format!("{at}/fast")}]});
    Ok((Tools::parse(&file.to_string())?, seen))
}

#[tokio::test]
async fn a_models_text_is_streamed_and_counted() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = steps(
        json!([{"reasoning": {"content": "hm"}}, {"text": {"content": "Ja: {input} 🌍", "chars": 2, "every_ms": 5}}]),
    );
    let upstream = Upstream::new(&script).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    fixture.publish(&request("t1", "Grüße")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    assert_eq!(story(&chunks), ["0.reasoning:hm", "0.content:Ja: Grüße 🌍"]);
    assert_eq!(
        Value::Object(metadata(chunks.last().context("a last one")?)),
        json!({
            "model": "scripted", "finish_reason": "stop", "steps": 1, "tokens_used": 18,
            "usage": {"prompt_tokens": 5, "completion_tokens": 13, "total_tokens": 18},
        })
    );
    assert_eq!(upstream.counts.completed(), 1);
    fixture.all_requests_are_done().await
}

fn calling() -> Value {
    steps(json!([
        {"text": {"content": "Let me see. "}},
        {"tools": [{"name": "slow", "arguments": {"city": "{input}"}}, {"name": "fast"}, {"name": "none"}]},
        {"text": {"content": "First {result}"}},
        {"tools": [{"name": "fast", "arguments": {"again": true}}]},
        {"text": {"content": "Now {result}."}},
    ]))
}

#[tokio::test]
async fn tools_are_called_and_answered_in_the_order_of_the_calls() -> Result<()> {
    let fixture = Fixture::new().await?;
    let upstream = Upstream::new(&calling()).await?;
    let (tools, seen) = tools().await?;
    let _service = fixture.service(upstream.engine(tools)).await?;
    fixture.publish(&request("t1", "Bonn")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    assert_eq!(
        story(&chunks),
        [
            "0.content:Let me see. ",
            "0.tool_call call_0_0:{\"city\":\"Bonn\"}",
            "0.tool_call call_0_1:{}",
            "0.tool_call call_0_2:{}",
            "0.tool_result call_0_0:slow is done",
            "0.tool_result call_0_1:fast is done",
            "0.tool_result call_0_2:error: there is no tool \"none\"",
            "1.content:First error: there is no tool \"none\"",
            "1.tool_call call_1_0:{\"again\":true}",
            "1.tool_result call_1_0:fast is done",
            "2.content:Now fast is done.",
        ]
    );
    let listed = chunks.iter().filter_map(|chunk| metadata(chunk).get("model_calls").cloned());
    let calls: Vec<Value> = listed.flat_map(|calls| calls.as_array().cloned().unwrap_or_default()).collect();
    let ids: Vec<_> = calls.iter().filter_map(|call| call["id"].as_str()).collect();
    assert_eq!(
        ids,
        ["call-0", "call-0", "call-1", "call-1", "call-2", "call-2"],
        "when it begins and when it ends"
    );
    let calls: Vec<&Value> = calls.iter().filter(|call| call["estimated"] != true).collect();
    assert_eq!(calls.len(), 3, "{calls:?}");
    let usage = metadata(chunks.last().context("a last one")?)["usage"].clone();
    for (of_call, of_answer) in [("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")] {
        let sum: u64 = calls.iter().filter_map(|call| call[of_call].as_u64()).sum();
        assert!(sum > 0 && json!(sum) == usage[of_answer], "{calls:?} {usage}");
    }
    let ids: Vec<_> = chunks.iter().map(|chunk| chunk.chunk_id).collect();
    assert_eq!(ids, (0..ids.len() as i64).collect::<Vec<_>>());
    let calls = seen.lock().unwrap().clone();
    assert_eq!(
        calls,
        [
            "fast u0001-t1:0-732574905ad1f9e11e5e7e46e34d7e10 {}",
            "slow u0001-t1:0-f650c6941b7958b681046aa1ced30e94 {\"city\":\"Bonn\"}",
            "fast u0001-t1:1-82a9279c2ecdf5234a70baa508d1a010 {\"again\":true}"
        ],
        "at the same time, so that the fast one is done first"
    );

    // The next run of the turn has the results and makes no call.
    let mut again = request("t1", "Bonn");
    again["run"] = json!(1);
    again["message_id"] = json!("u0001-t1-1-a");
    fixture.publish(&again).await?;
    fixture.all_requests_are_done().await?;
    let both = fixture.chunks_until_silence(Duration::from_millis(300), "t1").await?;
    let second: Vec<_> = both.into_iter().filter(|chunk| chunk.message_id == "u0001-t1-1-a").collect();
    assert_eq!(story(&second), story(&chunks));
    assert_eq!(seen.lock().unwrap().len(), 3);

    // The same turn elsewhere, without kept results, makes the same calls under the same keys.
    let mut again = request("t2", "Bonn");
    again["turn_id"] = json!("u0001-t1");
    again["run"] = json!(1);
    fixture.publish(&again).await?;
    fixture.chunks_until_final("t2").await?;
    assert_eq!(seen.lock().unwrap()[3..], calls[..]);
    Ok(())
}

#[tokio::test]
async fn a_turn_ends_by_name_when_its_budget_is_spent() -> Result<()> {
    let fixture = Fixture::new().await?;
    let round = json!({"tools": [{"name": "fast"}]});
    let upstream = Upstream::new(&steps(json!([round, round, round, round]))).await?;
    let (tools, seen) = tools().await?;
    let _service = fixture.service(upstream.engine(tools)).await?;
    for (thread, budget, why) in [
        ("t1", json!({"calls": 1}), "has made 1 calls"),
        ("t2", json!({"tokens": 1}), "tokens; its"),
        ("t3", json!({"cost": 0.000_001}), "USD; its"),
    ] {
        let mut request = request(thread, "x");
        request["settings"] = json!({ "turn_budget": budget });
        fixture.publish(&request).await?;
        let chunks = fixture.chunks_until_final(thread).await?;
        let last = chunks.last().context("a last one")?;
        assert_eq!(hint(last)?, ("permanent", None, "turn_budget".to_owned()), "{thread}");
        assert!(last.chunk.contains(why), "{thread}: {last:?}");
    }
    assert_eq!(
        seen.lock().unwrap().len(),
        3,
        "the calls of each first step are made, and no further model is called"
    );
    Ok(())
}

#[tokio::test]
async fn a_turn_that_calls_tools_without_end_fails_for_good() -> Result<()> {
    let fixture = Fixture::new().await?;
    let round = json!({"tools": [{"name": "fast"}]});
    let upstream = Upstream::new(&steps(json!([round, round, round, round]))).await?;
    let (tools, seen) = tools().await?;
    let _service = fixture.service(upstream.engine(tools)).await?;
    fixture.publish(&request("t1", "x")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    let last = chunks.last().context("a last one")?;
    assert_eq!(hint(last)?, ("permanent", None, "too_many_steps".to_owned()));
    assert_eq!(seen.lock().unwrap().len(), 2, "three steps; the calls of the last one are not made");
    Ok(())
}

#[tokio::test]
async fn errors_of_the_endpoint_have_their_classes() -> Result<()> {
    let fixture = Fixture::new().await?;
    let scenario = |name: &str, steps: Value| json!({"when": {"input_contains": name}, "steps": steps});
    let script = json!({"scenarios": [
        scenario("busy", json!([{"error": {"class": "transient", "retry_after": 7}}])),
        scenario("broken", json!([{"error": {"class": "transient"}}])),
        scenario("locked", json!([{"error": {"class": "auth", "message": "wrong key sk-1"}}])),
        scenario("wrong", json!([{"error": {"class": "permanent", "message": "no such model"}}])),
        scenario("midway", json!([{"text": {"content": "Hal"}}, {"error": {"class": "permanent", "message": "too long"}}])),
        scenario("torn", json!([{"text": {"content": "Hal"}}, {"cut": true}])),
        scenario("silent", json!([{"text": {"content": "Hal"}}, {"hang": true}])),
    ]});
    let upstream = Upstream::new(&script).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    let expected = [
        (
            "busy",
            ("transient", Some(7_000), "rate_limited"),
            "the model's endpoint answered 429 Too Many Requests: an error by script",
        ),
        (
            "broken",
            ("transient", None, "upstream_error"),
            "the model's endpoint answered 503 Service Unavailable: an error by script",
        ),
        ("locked", ("auth", None, "upstream_auth"), "the model's endpoint answered 401 Unauthorized"),
        (
            "wrong",
            ("permanent", None, "upstream_refused"),
            "the model's endpoint answered 400 Bad Request: no such model",
        ),
        (
            "midway",
            ("permanent", None, "upstream_error"),
            "the model's endpoint broke off with an error: too long",
        ),
        ("torn", ("transient", None, "upstream_cut"), "the model's answer broke off"),
        ("silent", ("transient", None, "upstream_timeout"), "the model's endpoint was silent for too long"),
    ];
    for (name, _, _) in &expected {
        fixture.publish(&request(name, name)).await?;
    }
    for (name, (class, after, code), text) in expected {
        let chunks = fixture.chunks_until_final(name).await?;
        let last = chunks.last().context("a last one")?;
        assert_eq!((name, hint(last)?, last.chunk.as_str()), (name, (class, after, code.to_owned()), text));
    }
    fixture.all_requests_are_done().await?;
    assert_eq!(fixture.deliveries().await?, 7);
    Ok(())
}

#[tokio::test]
async fn an_endpoint_that_is_away_is_worth_another_try() -> Result<()> {
    let fixture = Fixture::new().await?;
    let mut upstream = Upstream::new(&steps(json!([]))).await?;
    upstream.base_url = "http://127.0.0.1:1/v1".to_owned();
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    fixture.publish(&request("t1", "x")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    assert_eq!(hint(chunks.last().context("a last one")?)?, ("transient", None, "upstream_away".to_owned()));
    Ok(())
}

#[tokio::test]
async fn a_call_is_made_again_before_the_model_has_begun() -> Result<()> {
    let fixture = Fixture::new().await?;
    let scenario = |name: &str, steps: Value| json!({"when": {"input_contains": name}, "steps": steps});
    let fails = |runs: u32, error: Value| json!({"fail_first": {"runs": runs, "error": error}});
    let script = json!({"scenarios": [
        scenario("busy", json!([fails(1, json!({"class": "transient", "retry_after": 1})), {"text": {"content": "at last"}}])),
        scenario("broken", json!([fails(2, json!({"class": "transient"})), {"text": {"content": "at last"}}])),
        scenario("wrong", json!([fails(1, json!({"class": "permanent"})), {"text": {"content": "at last"}}])),
        scenario("torn", json!([{"text": {"content": "Hal"}}, {"cut": true}])),
        scenario("cut", json!([{"cut": true}])),
    ]});
    let upstream = Upstream::new(&script).await?;
    let engine = upstream.engine_with_retries(Tools::none()?, Duration::from_secs(4));
    let _service = fixture.service(engine).await?;
    let begun = std::time::Instant::now();
    for name in ["busy", "broken", "wrong", "torn", "cut"] {
        fixture.publish(&request(name, name)).await?;
    }
    for name in ["busy", "broken"] {
        assert_eq!(story(&fixture.chunks_until_final(name).await?), ["0.content:at last"], "{name}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "not before the endpoint has asked for it");
    for (name, class, code) in [
        ("wrong", "permanent", "upstream_refused"),
        ("torn", "transient", "upstream_cut"),
        ("cut", "transient", "upstream_cut"),
    ] {
        let chunks = fixture.chunks_until_final(name).await?;
        let end = hint(chunks.last().context("a last one")?)?;
        assert_eq!((name, end), (name, (class, None, code.to_owned())));
    }
    // "torn" is cut once; "cut" is cut the first time and at least two more times.
    assert!(upstream.counts.cut() >= 4, "{} cut", upstream.counts.cut());
    assert_eq!(upstream.counts.completed(), 2);
    Ok(())
}

#[tokio::test]
async fn a_stop_ends_the_request_to_the_model() -> Result<()> {
    let fixture = Fixture::new().await?;
    let endless = steps(json!([{"text": {"content": "x".repeat(10_000), "chars": 1, "every_ms": 20}}]));
    let upstream = Upstream::new(&endless).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    fixture.publish(&request("t1", "x")).await?;
    fixture.frames_until("t1", |_| true).await?;
    assert_eq!(upstream.counts.disconnected(), 0);
    fixture.bus.publish_cancel(&TurnId::parse("u0001-t1")?, 0).await?;
    fixture.all_requests_are_done().await?;
    eventually(async || Ok(upstream.counts.disconnected() == 1)).await?;
    assert_eq!(upstream.counts.completed(), 0);
    Ok(())
}

#[tokio::test]
async fn tokens_that_come_quickly_share_chunks() -> Result<()> {
    let fixture = Fixture::new().await?;
    let text = "0123456789".repeat(200);
    let upstream =
        Upstream::new(&steps(json!([{"text": {"content": text, "chars": 1, "every_ms": 1}}]))).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    let begun = std::time::Instant::now();
    fixture.publish(&request("t1", "x")).await?;
    let frames = fixture.frames_until_final("t1").await?;
    let chunks: Vec<_> = frames.iter().flat_map(|frame| frame.chunks.clone()).collect();
    assert_eq!(story(&chunks), [format!("0.content:{text}")]);
    assert_eq!(frames[0].chunks.len(), 1, "that the call begins is published at once");
    // A token about every 2 ms, a frame every 15 ms, and a few more at the beginning and the end.
    // On a slow machine the elapsed time still bounds the number of frames.
    let most = begun.elapsed().as_millis() / 15 + 10;
    assert!(frames.len() > 2 && (frames.len() as u128) < most, "{} frames, at most {most}", frames.len());
    Ok(())
}

#[tokio::test]
async fn the_scripted_endpoint_answers_without_a_stream_too() -> Result<()> {
    let upstream = Upstream::new(&calling()).await?;
    let client = Client::new(&upstream.base_url);
    let ask = json!({"role": "user", "content": [{"type": "text", "text": "Bonn"}]});
    let first = client.complete(&json!([ask])).await?;
    let message = &first["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &first["choices"][0]["finish_reason"]),
        (&json!("Let me see. "), &json!("tool_calls"))
    );
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!("{\"city\":\"Bonn\"}"));
    let result = json!({"role": "tool", "tool_call_id": "call_0_0", "content": "sun"});
    let second = client.complete(&json!([ask, message, result])).await?;
    assert_eq!(second["choices"][0]["message"]["content"], json!("First sun"));
    let failing = steps(
        json!([{"fail_first": {"runs": 2, "error": {"class": "transient", "retry_after": 0.5}}}, {"text": {"content": "run {run}"}}]),
    );
    let upstream = Upstream::new(&failing).await?;
    let client = Client::new(&upstream.base_url);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(client.status(&json!([ask])).await?);
    }
    assert_eq!(
        statuses,
        ["HTTP/1.1 429 Too Many Requests 1", "HTTP/1.1 429 Too Many Requests 1", "HTTP/1.1 200 OK -"]
    );
    assert_eq!(client.complete(&json!([ask])).await?["choices"][0]["message"]["content"], json!("run 2"));
    assert_eq!((upstream.counts.errors(), upstream.counts.completed()), (2, 2));
    Ok(())
}

/// A hand-written HTTP client.
struct Client {
    addr: String,
}

impl Client {
    fn new(base_url: &str) -> Self {
        Self { addr: base_url.trim_start_matches("http://").trim_end_matches("/v1").to_owned() }
    }

    async fn complete(&self, messages: &Value) -> Result<Value> {
        let (_, body) = self.post(messages).await?;
        Ok(serde_json::from_str(&body)?)
    }

    /// The status line and the Retry-After.
    async fn status(&self, messages: &Value) -> Result<String> {
        let (head, _) = self.post(messages).await?;
        let after = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap_or("-");
        Ok(format!("{} {after}", head.lines().next().unwrap_or_default()))
    }

    async fn post(&self, messages: &Value) -> Result<(String, String)> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let body = json!({"model": "m", "messages": messages}).to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = tokio::net::TcpStream::connect(&self.addr).await?;
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a head")?;
        Ok((head.to_owned(), body.to_owned()))
    }
}
