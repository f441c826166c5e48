//! The usage of model calls, as owners read it from the chunks.

use std::time::Duration;

use anyhow::Result;
use model::{AnswerCalls, Chunk, ChunkKind, Metadata, ModelCall, TurnId};
use serde_json::{Value, json};
use wire::pb;
use workflow::Tools;

use crate::fixture::{Fixture, Upstream, eventually, metadata, request, steps};

/// The calls that the chunks of an answer report, as an owner counts them.
pub(crate) fn calls(chunks: &[pb::Chunk]) -> Result<Vec<ModelCall>> {
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
    // The first delivery of the request went to a service that died. A later delivery begins
    // despite the expiry.
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
