//! What the calls of models have used, as owners read it from the chunks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use model::{AnswerCalls, Chunk, ChunkKind, Metadata, ModelCall, TurnId};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wire::pb;
use workflow::Tools;

use crate::fixture::{Fixture, Upstream, eventually, hint, metadata, request, steps};

/// The calls that the chunks of an answer report, as an owner counts them.
fn calls(chunks: &[pb::Chunk]) -> Result<Vec<ModelCall>> {
    let mut chunks: Vec<_> = chunks.iter().collect();
    chunks.sort_by_key(|chunk| chunk.chunk_id);
    let mut calls = AnswerCalls::default();
    for chunk in chunks {
        let kind = ChunkKind::ALL[chunk.chunk_type as usize];
        let metadata = Metadata::new(metadata(chunk))?;
        calls.take(&Chunk {
            kind,
            metadata,
            ..Chunk::content(chunk.chunk_id as u32, &chunk.chunk, chunk.is_final)
        });
    }
    Ok(calls.finish())
}

/// An endpoint that answers with these bodies, one after another, and then with "ok.".
async fn endpoint(bodies: Vec<Vec<u8>>) -> Result<Upstream> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let base_url = format!("http://{}/v1", listener.local_addr()?);
    let bodies = Arc::new(Mutex::new(VecDeque::from(bodies)));
    let router = Router::new().fallback(async move || {
        let next = bodies.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let ok = b"data: {\"choices\":[{\"delta\":{\"content\":\"ok.\"}}]}\n\ndata: [DONE]\n\n";
        ([(CONTENT_TYPE, "text/event-stream")], next.unwrap_or_else(|| ok.to_vec()))
    });
    tokio::spawn(runtime::endpoint::serve(listener, router, CancellationToken::new()));
    Ok(Upstream { base_url, ..Upstream::new(&steps(json!([]))).await? })
}

#[tokio::test]
async fn counts_are_found_wherever_endpoints_put_them() -> Result<()> {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/usage-streams");
    let expected: Value = serde_json::from_slice(&std::fs::read(data.join("expected.json"))?)?;
    let fixture = Fixture::new().await?;
    let cases = expected.as_object().context("cases")?;
    assert!(cases.len() >= 12, "{} cases", cases.len());
    for (name, case) in cases {
        let upstream = endpoint(vec![std::fs::read(data.join(name))?]).await?;
        let service = fixture.service(upstream.engine(Tools::none()?)).await?;
        let thread = name.trim_end_matches(".sse");
        fixture.publish(&request(thread, "x")).await?;
        let chunks = fixture.chunks_until_final(thread).await?;
        let last = chunks.last().context("a last one")?;
        let has_failed = ChunkKind::ALL[last.chunk_type as usize] == ChunkKind::Error;
        assert_eq!(has_failed, case["end"] == "failed", "{name}");
        if let Some(class) = case["klass"].as_str() {
            assert_eq!(hint(last)?.0, class, "{name}");
        }
        let [call] = &calls(&chunks)?[..] else { panic!("{name}: {:?}", calls(&chunks)?) };
        assert_eq!(call.model.as_deref(), Some("tern-2"), "{name}");
        let counts = json!([call.input_tokens, call.output_tokens, call.cached_tokens]);
        let counts: Vec<&Value> = counts.as_array().into_iter().flatten().collect();
        let wanted: Vec<&Value> = case["usage"].as_array().into_iter().flatten().collect();
        assert_eq!(counts[..wanted.len()], wanted[..], "{name}");
        assert!(!call.is_estimated, "{name}");
        service.drain().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_is_known_from_its_beginning() -> Result<()> {
    let fixture = Fixture::new().await?;
    let endless =
        steps(json!([{"text": {"content": "0123456789".repeat(1_000), "chars": 10, "every_ms": 20}}]));
    let upstream = Upstream::new(&endless).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    fixture.publish(&request("t1", &"x".repeat(3_200))).await?;
    let some =
        fixture.frames_until("t1", |frame| frame.chunks.iter().any(|chunk| chunk.chunk_id >= 5)).await?;
    fixture.bus.publish_cancel(&TurnId::parse("u0001-t1")?, 0).await?;
    fixture.all_requests_are_done().await?;
    let chunks: Vec<_> = some.into_iter().flat_map(|frame| frame.chunks).collect();
    let [call] = &calls(&chunks)?[..] else { panic!("{:?}", calls(&chunks)?) };
    assert!(call.is_estimated && call.model.as_deref() == Some("m"), "{call:?}");
    assert!((1_000..1_100).contains(&call.input_tokens), "1,000 tokens of input: {call:?}");
    let text: usize = chunks.iter().map(|chunk| chunk.chunk.len()).sum();
    assert_eq!(call.output_tokens, ModelCall::estimated_tokens(text));
    assert!(text >= 10);
    Ok(())
}

#[tokio::test]
async fn a_call_that_the_endpoint_refuses_has_used_nothing() -> Result<()> {
    let fixture = Fixture::new().await?;
    let scenario = |name: &str, steps: Value| json!({"when": {"input_contains": name}, "steps": steps});
    let script = json!({"scenarios": [
        scenario("busy", json!([{"error": {"class": "transient"}}])),
        scenario("torn", json!([{"text": {"content": "sixteen bytes..."}}, {"cut": true}])),
    ]});
    let upstream = Upstream::new(&script).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    fixture.publish(&request("t1", "busy")).await?;
    assert_eq!(calls(&fixture.chunks_until_final("t1").await?)?, []);
    fixture.publish(&request("t2", "torn")).await?;
    let torn = calls(&fixture.chunks_until_final("t2").await?)?;
    assert!(torn.len() == 1 && torn[0].is_estimated && torn[0].output_tokens == 5, "{torn:?}");
    Ok(())
}

#[tokio::test]
async fn a_request_that_has_expired_is_not_begun() -> Result<()> {
    let fixture = Fixture::new().await?;
    let upstream = Upstream::new(&steps(json!([{"text": {"content": "hi"}}]))).await?;
    let mut late = request("t1", "x");
    late["expires_at"] = json!("2026-01-01T00:00:00Z");
    fixture.publish(&late).await?;
    let mut in_time = request("t2", "x");
    in_time["expires_at"] = json!("2126-01-01T00:00:00Z");
    fixture.publish(&in_time).await?;
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    fixture.chunks_until_final("t2").await?;
    fixture.all_requests_are_done().await?;
    assert!(fixture.chunks_until_silence(Duration::from_millis(300), "t1").await?.is_empty());
    assert_eq!((upstream.counts.completed(), fixture.deliveries().await?), (1, 2));
    Ok(())
}

#[tokio::test]
async fn a_delivery_after_the_first_listens_before_it_calls_a_model() -> Result<()> {
    let fixture = Fixture::new().await?;
    let upstream = Upstream::new(&steps(json!([{"text": {"content": "hi"}}]))).await?;
    let mut asked = request("t1", "x");
    // Its first delivery was by a service that died; nothing keeps a later one from beginning.
    asked["expires_at"] = json!("2026-01-01T00:00:00Z");
    fixture.publish(&asked).await?;
    fixture.take_and_give_back().await?;
    let stop = {
        let (bus, turn) = (fixture.bus.clone(), TurnId::parse("u0001-t1")?);
        async move |fixture: &Fixture| -> Result<()> {
            fixture.frames_until("t1", |_| true).await?;
            Ok(bus.publish_cancel(&turn, 0).await?)
        }
    };
    let _service = fixture.service(upstream.engine(Tools::none()?)).await?;
    stop(&fixture).await?;
    fixture.all_requests_are_done().await?;
    let chunks = fixture.chunks_until_silence(Duration::from_millis(300), "t1").await?;
    assert!(chunks.len() == 1 && chunks[0].chunk.is_empty() && chunks[0].attempt == 1, "{chunks:?}");
    assert_eq!(calls(&chunks)?, []);
    eventually(async || Ok(upstream.counts.completed() + upstream.counts.disconnected() == 0)).await
}
