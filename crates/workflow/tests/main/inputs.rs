//! Recorded responses of endpoints: each file of `inputs` is the answer to a turn, with its
//! expected result.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use model::ChunkKind;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wire::pb;
use workflow::Tools;

use crate::fixture::{Fixture, Upstream, hint, metadata, request};
use crate::usage;

struct Case {
    /// `folder/file`, which is also the input of the turn.
    name: String,
    bytes: Vec<u8>,
    expected: Value,
}

impl Case {
    fn thread(&self) -> String {
        self.name.replace(['/', '.'], "-")
    }
}

fn cases() -> Result<Vec<Case>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/main/inputs");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    folders.sort();
    let mut cases = Vec::new();
    for folder in folders {
        let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json"))?)?;
        let of = folder.file_name().and_then(|name| name.to_str()).context("a name")?;
        for (file, expected) in expected.as_object().context("cases")? {
            let bytes = std::fs::read(folder.join(file))?;
            cases.push(Case { name: format!("{of}/{file}"), bytes, expected: expected.clone() });
        }
    }
    Ok(cases)
}

type Requests = Arc<Mutex<HashMap<String, Vec<Value>>>>;

/// An endpoint that answers a turn with the file that the turn names, and its further requests with
/// "ok.".
async fn endpoint(cases: &[Case]) -> Result<(Upstream, Requests)> {
    let bodies: HashMap<String, (Vec<u8>, bool)> = cases
        .iter()
        .map(|case| (case.name.clone(), (case.bytes.clone(), case.expected["loop"] == true)))
        .collect();
    let requests = Requests::default();
    let seen = requests.clone();
    let router = Router::new().fallback(async move |request: Request| {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let said = messages.iter().rfind(|message| message["role"] == "user");
        let name = said.and_then(|said| said["content"].as_str()).unwrap_or_default().to_owned();
        let ok = b"data: {\"choices\":[{\"delta\":{\"content\":\"ok.\"}}]}\n\ndata: [DONE]\n\n".to_vec();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let of_turn = seen.entry(name.clone()).or_default();
        of_turn.push(body);
        let answer = match bodies.get(&name) {
            Some((bytes, repeats)) if of_turn.len() == 1 || *repeats => bytes.clone(),
            _ => ok,
        };
        ([(CONTENT_TYPE, "text/event-stream")], answer)
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let base_url = format!("http://{}/v1", listener.local_addr()?);
    tokio::spawn(runtime::endpoint::serve(listener, router, CancellationToken::new()));
    Ok((Upstream { base_url, ..Upstream::new(&crate::fixture::steps(json!([]))).await? }, requests))
}

/// The three tools, and `tool turn` of each call.
async fn tools() -> Result<(Tools, Arc<Mutex<Vec<(String, String)>>>)> {
    let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let state = seen.clone();
    let router = Router::new().fallback(async move |request: Request| {
        let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("-");
        let turn = key.split(':').next().unwrap_or_default().to_owned();
        let tool = request.uri().path().trim_start_matches('/').to_owned();
        state.lock().unwrap_or_else(PoisonError::into_inner).push((tool, turn));
        "done"
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let at = format!("http://{}", listener.local_addr()?);
    tokio::spawn(runtime::endpoint::serve(listener, router, CancellationToken::new()));
    let tool = |name: &str, properties: Value| json!({"name": name, "url": format!("{at}/{name}"), "parameters": {"type": "object", "properties": properties}});
    let file = json!({"tools": [
        tool("find_boat", json!({"harbour": {"type": "string"}, "berth": {"type": "integer"}})),
        tool("write_log", json!({"line": {"type": "string"}})),
        tool("tide", json!({})),
    ]});
    Ok((Tools::parse(&file.to_string())?, seen))
}

fn kind(chunk: &pb::Chunk) -> ChunkKind {
    ChunkKind::ALL[chunk.chunk_type as usize]
}

/// The text of one kind in the first step.
fn text_of(chunks: &[pb::Chunk], of: ChunkKind) -> String {
    chunks
        .iter()
        .filter(|chunk| chunk.step == 0 && kind(chunk) == of)
        .map(|chunk| chunk.chunk.as_str())
        .collect()
}

/// `[name, arguments]` of each call, in the order of the history.
fn calls_of(chunks: &[pb::Chunk]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for chunk in chunks.iter().filter(|chunk| kind(chunk) == ChunkKind::ToolCall) {
        let metadata = metadata(chunk);
        let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, name) = (text("tool_call_id"), text("tool_name"));
        match calls.iter_mut().find(|(known, ..)| *known == id) {
            Some((_, _, arguments)) => arguments.push_str(&chunk.chunk),
            None => calls.push((id, name, chunk.chunk.clone())),
        }
    }
    calls.into_iter().map(|(_, name, arguments)| (name, arguments)).collect()
}

fn order_of(chunks: &[pb::Chunk]) -> Vec<&'static str> {
    let mut order: Vec<&str> = Vec::new();
    for chunk in chunks.iter().filter(|chunk| chunk.step == 0) {
        let name = match kind(chunk) {
            ChunkKind::Content if !chunk.chunk.is_empty() => "text",
            ChunkKind::Reasoning => "reasoning",
            ChunkKind::ToolCall => "call",
            _ => continue,
        };
        if order.last() != Some(&name) {
            order.push(name);
        }
    }
    order
}

/// Keys that a case may expect; `loop` is for the endpoint, and `control` for readers.
const EXPECTATIONS: [&str; 14] = [
    "end",
    "klass",
    "says",
    "text",
    "reasoning",
    "calls",
    "executed",
    "usage",
    "finish",
    "next_ok",
    "max_requests",
    "order",
    "loop",
    "control",
];

/// The expectations of a file that no test checks.
fn unknown_expectations(expected: &Value) -> Vec<&str> {
    let keys = expected.as_object().into_iter().flat_map(|map| map.keys()).map(String::as_str);
    keys.filter(|key| !EXPECTATIONS.contains(key)).collect()
}

#[test]
fn an_expectation_that_is_misspelt_is_found() {
    assert_eq!(unknown_expectations(&json!({"end": "failed", "class": "transient"})), ["class"]);
}

fn check(case: &Case, chunks: &[pb::Chunk], requests: &[Value], executed: &[String]) -> Result<()> {
    let expected = &case.expected;
    let unknown = unknown_expectations(expected);
    ensure!(unknown.is_empty(), "no test looks at {unknown:?}");
    let last = chunks.last().context("a last chunk")?;
    let has_failed = kind(last) == ChunkKind::Error;
    if let Some(end) = expected["end"].as_str() {
        ensure!(has_failed == (end == "failed"), "it ended with {last:?}");
    }
    if let Some(class) = expected["klass"].as_str() {
        ensure!(hint(last)?.0 == class, "{:?}", hint(last)?);
    }
    if let Some(words) = expected["says"].as_str() {
        ensure!(last.chunk.contains(words), "{}", last.chunk);
    }
    for (key, of) in [("text", ChunkKind::Content), ("reasoning", ChunkKind::Reasoning)] {
        if let Some(text) = expected[key].as_str() {
            ensure!(text_of(chunks, of) == text, "{key}: {:?}", text_of(chunks, of));
        }
    }
    if let Some(calls) = expected["calls"].as_array() {
        let made = calls_of(chunks);
        ensure!(
            made.len() == calls.len() && executed.len() == calls.len(),
            "{made:?}, executed: {executed:?}"
        );
        for (call, (name, arguments)) in calls.iter().zip(&made) {
            let wanted: Value = serde_json::from_str(call[1].as_str().context("arguments")?)?;
            ensure!(
                call[0] == name.as_str() && wanted == serde_json::from_str::<Value>(arguments)?,
                "{made:?}"
            );
        }
    }
    if let Some(tools) = expected["executed"].as_array() {
        ensure!(json!(tools) == json!(executed), "executed: {executed:?}");
    }
    if let Some(counts) = expected["usage"].as_array() {
        let calls = usage::calls(chunks)?;
        let call = calls.first().context("a call")?;
        let result = json!([call.input_tokens, call.output_tokens, call.cached_tokens]);
        ensure!(result.as_array().is_some_and(|result| result.starts_with(counts)), "{call:?}");
        ensure!(!call.is_estimated, "{call:?}");
    }
    if let Some(reason) = expected["finish"].as_str() {
        ensure!(metadata(last)["finish_reason"] == reason, "{:?}", metadata(last));
    }
    if expected["next_ok"] == true {
        ensure!(requests.len() == 2, "{} requests", requests.len());
        let messages = requests[1]["messages"].as_array().context("messages")?;
        let calls: Vec<&Value> =
            messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten().collect();
        ensure!(!calls.is_empty(), "the calls are missing: {messages:?}");
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().context("a text")?;
            let arguments: Value = serde_json::from_str(arguments)?;
            ensure!(arguments.is_object(), "{arguments}");
        }
    }
    if let Some(most) = expected["max_requests"].as_u64() {
        ensure!(requests.len() as u64 <= most, "{} requests", requests.len());
        ensure!(metadata(last)["finish_reason"] == "length", "{:?}", metadata(last));
    }
    if let Some(order) = expected["order"].as_array() {
        ensure!(json!(order_of(chunks)) == json!(order), "{:?}", order_of(chunks));
    }
    Ok(())
}

#[tokio::test]
async fn what_endpoints_send_is_read() -> Result<()> {
    let cases = cases()?;
    assert!(cases.len() >= 58, "{} cases", cases.len());
    let fixture = Fixture::new().await?;
    let (upstream, requests) = endpoint(&cases).await?;
    let (tools, executed) = tools().await?;
    let _service = fixture.service(upstream.engine(tools)).await?;
    for case in &cases {
        fixture.publish(&request(&case.thread(), &case.name)).await?;
    }
    // One consumer for all turns: a stream does not allow one for each.
    let finals = Cell::new(0);
    let all_have_ended = |frame: &pb::Frame| {
        finals.set(finals.get() + frame.chunks.iter().filter(|chunk| chunk.is_final).count());
        finals.get() == cases.len()
    };
    let mut answers: HashMap<String, Vec<pb::Chunk>> = HashMap::new();
    for chunk in fixture.frames_until("*", all_have_ended).await?.into_iter().flat_map(|frame| frame.chunks) {
        answers.entry(chunk.session_id.clone()).or_default().push(chunk);
    }
    let mut wrong = Vec::new();
    for case in &cases {
        let chunks = answers.get(&case.thread()).cloned().unwrap_or_default();
        let requests = requests.lock().unwrap().get(&case.name).cloned().unwrap_or_default();
        let turn = format!("u0001-{}", case.thread());
        let executed = executed.lock().unwrap().clone().into_iter().filter(|(_, of)| *of == turn);
        let mut executed: Vec<String> = executed.map(|(tool, _)| tool).collect();
        executed.sort();
        if let Err(error) = check(case, &chunks, &requests, &executed) {
            wrong.push(format!("{}: {error:#}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    Ok(())
}

/// The model learns why its call was not made.
#[tokio::test]
async fn a_model_learns_why_its_call_was_not_made() -> Result<()> {
    let cases = cases()?;
    let fixture = Fixture::new().await?;
    let (upstream, requests) = endpoint(&cases).await?;
    let (tools, _) = tools().await?;
    let _service = fixture.service(upstream.engine(tools)).await?;
    for (name, words) in [
        ("next-request/arguments-no-json.sse", "the arguments are not a JSON object: "),
        ("next-request/arguments-are-a-list.sse", "the arguments are not a JSON object: they are a list"),
        (
            "truncation/length-after-whole-arguments.sse",
            "not called: the answer with this call was cut off (length)",
        ),
        (
            "truncation/filter-after-whole-arguments.sse",
            "not called: the answer with this call was cut off (content_filter)",
        ),
    ] {
        let case = cases.iter().find(|case| case.name == name).context(name)?;
        fixture.publish(&request(&case.thread(), &case.name)).await?;
        let chunks = fixture.chunks_until_final(&case.thread()).await?;
        let refused = chunks.iter().find(|chunk| kind(chunk) == ChunkKind::ToolResult).context("a result")?;
        assert!(
            refused.chunk.contains(words) && metadata(refused)["is_error"] == true,
            "{name}: {}",
            refused.chunk
        );
        let seen = requests.lock().unwrap()[name].clone();
        let result =
            seen[1]["messages"].as_array().and_then(|messages| messages.last()).context("a result")?;
        assert_eq!(
            (&result["role"], result["content"].as_str()),
            (&json!("tool"), Some(refused.chunk.as_str())),
            "{name}"
        );
    }
    Ok(())
}
