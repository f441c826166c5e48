//! The interfaces of providers besides chat completions: a turn with a tool, and the content of its
//! second request.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use workflow::{Interface, Tools};

use crate::fixture::{Fixture, Upstream, metadata, request, steps, story};
use crate::usage;

/// Answers the first request with the first events and further ones with the second. Returns the
/// path and body of each request.
async fn endpoint(first: &[Value], second: &[Value]) -> Result<(Upstream, Arc<Mutex<Vec<(String, Value)>>>)> {
    let body = |events: &[Value]| events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>();
    let (first, second) = (body(first), body(second));
    let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let seen = requests.clone();
    let router = Router::new().fallback(async move |request: Request| {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((path, serde_json::from_slice(&body).unwrap_or_default()));
        ([(CONTENT_TYPE, "text/event-stream")], if seen.len() == 1 { first.clone() } else { second.clone() })
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let base_url = format!("http://{}/v1", listener.local_addr()?);
    tokio::spawn(runtime::endpoint::serve(listener, router, CancellationToken::new()));
    Ok((Upstream { base_url, ..Upstream::new(&steps(json!([]))).await? }, requests))
}

async fn turn(interface: Interface, first: &[Value], second: &[Value]) -> Result<Vec<(String, Value)>> {
    let fixture = Fixture::new().await?;
    let (upstream, requests) = endpoint(first, second).await?;
    let _service = fixture.service(upstream.engine_of(interface, Tools::none()?)).await?;
    fixture.publish(&request("t1", "Tide?")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    let story = story(&chunks);
    assert_eq!(story.first().map(String::as_str), Some("0.reasoning:hm"), "{story:?}");
    assert_eq!(story.last().map(String::as_str), Some("1.content:High."), "{story:?}");
    let last = metadata(chunks.last().context("a last one")?);
    assert_eq!((&last["finish_reason"], &last["model"]), (&json!("stop"), &json!("m-1")));
    let used = usage::calls(&chunks)?;
    let counts: Vec<_> =
        used.iter().map(|call| (call.input_tokens, call.output_tokens, call.cached_tokens)).collect();
    assert_eq!(counts, [(613, 58, Some(600)), (700, 5, None)]);
    let requests = requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(requests.len(), 2);
    Ok(requests)
}

#[tokio::test]
async fn a_turn_with_anthropic() -> Result<()> {
    let start = |usage: Value| json!({"type": "message_start", "message": {"model": "m-1", "content": [], "usage": usage}});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let end = |reason: &str, tokens: u64| json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": tokens}});
    let requests = turn(
        Interface::Anthropic,
        &[
            start(json!({"input_tokens": 13, "cache_read_input_tokens": 600, "output_tokens": 1})),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
            json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "tide", "input": {}}}),
            end("tool_use", 58),
            json!({"type": "message_stop"}),
        ],
        &[
            start(json!({"input_tokens": 700, "output_tokens": 1})),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            delta(0, json!({"type": "text_delta", "text": "High."})),
            end("end_turn", 5),
            json!({"type": "message_stop"}),
        ],
    )
    .await?;
    let (path, second) = &requests[1];
    assert_eq!(path, "/v1/messages");
    let answer = &second["messages"][1]["content"];
    assert_eq!(answer[0], json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}));
    assert_eq!(answer[1], json!({"type": "tool_use", "id": "toolu_1", "name": "tide", "input": {}}));
    let result = &second["messages"][2]["content"][0];
    assert_eq!(
        (&result["tool_use_id"], &result["cache_control"]),
        (&json!("toolu_1"), &json!({"type": "ephemeral"}))
    );
    Ok(())
}

#[tokio::test]
async fn a_turn_with_google() -> Result<()> {
    let event = |parts: Value, finish: Value, usage: Value| json!({"candidates": [{"content": {"parts": parts}, "finishReason": finish}], "usageMetadata": usage, "modelVersion": "m-1"});
    let usage = json!({"promptTokenCount": 613, "candidatesTokenCount": 18, "thoughtsTokenCount": 40, "totalTokenCount": 671, "cachedContentTokenCount": 600});
    let call = json!([{"functionCall": {"name": "tide", "args": {}}, "thoughtSignature": "c2ln"}]);
    let requests = turn(
        Interface::Google,
        &[
            event(json!([{"text": "hm", "thought": true}]), Value::Null, json!({})),
            event(call.clone(), json!("STOP"), usage),
        ],
        &[event(
            json!([{"text": "High."}]),
            json!("STOP"),
            json!({"promptTokenCount": 700, "candidatesTokenCount": 5}),
        )],
    )
    .await?;
    let (path, second) = &requests[1];
    assert_eq!(path, "/v1/models/m:streamGenerateContent?alt=sse");
    assert_eq!(second["contents"][1]["parts"], call, "with the signature");
    assert_eq!(second["contents"][2]["parts"][0]["functionResponse"]["name"], "tide");
    Ok(())
}

#[tokio::test]
async fn a_turn_with_responses() -> Result<()> {
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "ZW5j"});
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "tide", "arguments": "{}"});
    let completed = |usage: Value| json!({"type": "response.completed", "response": {"status": "completed", "model": "m-1", "output": [], "usage": usage}});
    let requests = turn(
        Interface::Responses,
        &[
            json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning}),
            json!({"type": "response.output_item.done", "output_index": 1, "item": call}),
            completed(json!({"input_tokens": 613, "output_tokens": 58, "input_tokens_details": {"cached_tokens": 600}})),
        ],
        &[
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "High."}),
            completed(json!({"input_tokens": 700, "output_tokens": 5})),
        ],
    )
    .await?;
    let (path, second) = &requests[1];
    assert_eq!(path, "/v1/responses");
    assert_eq!(second["input"][1], reasoning, "with what was encrypted");
    assert_eq!(second["input"][2]["call_id"], "call_1");
    assert_eq!(
        (&second["input"][3]["type"], &second["store"]),
        (&json!("function_call_output"), &json!(false))
    );
    Ok(())
}
