//! Requests and their chunks, with the scripted engine.

use std::time::Duration;

use anyhow::{Context, Result};
use model::TurnId;
use serde_json::{Value, json};
use workflow::{EngineConfig, Script};

use crate::fixture::{Fixture, TEST_TIMEOUT, eventually, hint, metadata, request, scripted, steps, story};

#[tokio::test]
async fn an_answer_is_chunks_with_the_token_and_then_an_ack() -> Result<()> {
    let fixture = Fixture::new().await?;
    let service = fixture.service(EngineConfig::Scripted(Script::echo())).await?;
    let mut asked = request("t1", "hello");
    asked["correlation_id"] = json!("c-7");
    fixture.publish(&asked).await?;
    let frames = fixture.frames_until_final("t1").await?;
    assert!(frames.iter().all(|frame| frame.turn_token == "secret"));
    assert!(
        frames
            .iter()
            .all(|frame| frame.delivery_id.len() == 16 && frame.delivery_id == frames[0].delivery_id)
    );
    let chunks: Vec<_> = frames.into_iter().flat_map(|frame| frame.chunks).collect();
    assert_eq!(story(&chunks), ["0.content:You said: hello"]);
    assert_eq!(chunks.iter().map(|chunk| chunk.chunk_id).collect::<Vec<_>>(), [0, 1, 2]);
    for chunk in &chunks {
        assert_eq!((chunk.session_id.as_str(), chunk.message_id.as_str()), ("t1", "u0001-t1-a"));
        assert_eq!((chunk.attempt, chunk.correlation_id.as_str()), (0, "c-7"));
    }
    let last = chunks.last().context("a last one")?;
    assert_eq!(metadata(last).get("tokens_used"), Some(&json!(15)));
    fixture.all_requests_are_done().await?;
    assert_eq!(fixture.deliveries().await?, 1);
    service.drain().await
}

#[tokio::test]
async fn invalid_requests_are_terminated_at_once() -> Result<()> {
    let fixture = Fixture::new().await?;
    let _service = fixture.service(EngineConfig::Scripted(Script::echo())).await?;
    let mut elsewhere = request("t1", "x");
    elsewhere["subject"] = json!("chunks.0.another");
    for garbage in [json!({}), json!("x"), json!({"turn_id": 7}), elsewhere] {
        fixture.publish(&garbage).await?;
    }
    fixture.publish(&request("t2", "fine")).await?;
    assert_eq!(story(&fixture.chunks_until_final("t2").await?), ["0.content:You said: fine"]);
    fixture.all_requests_are_done().await?;
    assert_eq!(fixture.deliveries().await?, 5, "each once");
    Ok(())
}

#[tokio::test]
async fn tools_make_steps() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = steps(json!([
        {"reasoning": {"content": "hm"}},
        {"tools": [{"name": "f", "arguments": {"q": "{input}"}, "result": "rain"}]},
        {"text": {"content": "It says {result}.", "chars": 4}},
    ]));
    let _service = fixture.service(scripted(&script)?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    assert_eq!(
        story(&fixture.chunks_until_final("t1").await?),
        [
            "0.reasoning:hm",
            "0.tool_call call_0:{\"q\":\"hi\"}",
            "0.tool_result call_0:rain",
            "1.content:It says rain."
        ]
    );
    Ok(())
}

#[tokio::test]
async fn failures_say_what_they_mean() -> Result<()> {
    let fixture = Fixture::new().await?;
    let scenario = |class: &str, more: Value| {
        let mut error = json!({"class": class, "message": "no {run}"});
        error.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"when": {"input_contains": class}, "steps": [{"text": {"content": "Well"}}, {"error": error}]})
    };
    let script = json!({"scenarios": [
        scenario("transient", json!({"retry_after": 2.5})),
        scenario("permanent", json!({"code": "bad_input"})),
        scenario("auth", json!({})),
    ]});
    let _service = fixture.service(scripted(&script)?).await?;
    let mut hints = Vec::new();
    for class in ["transient", "permanent", "auth"] {
        fixture.publish(&request(class, class)).await?;
        let chunks = fixture.chunks_until_final(class).await?;
        assert_eq!(story(&chunks), ["0.content:Well", "0.error:no 0"]);
        hints.push(hint(chunks.last().context("a last one")?)?);
    }
    let expected = [
        ("transient", Some(2_500), "scripted"),
        ("permanent", None, "bad_input"),
        ("auth", None, "scripted"),
    ];
    assert_eq!(hints, expected.map(|(class, after, code)| (class, after, code.to_owned())));
    fixture.all_requests_are_done().await?;
    assert_eq!(fixture.deliveries().await?, 3, "a failure that was published is not delivered again");
    Ok(())
}

#[tokio::test]
async fn handed_back_request_is_answered_as_next_attempt() -> Result<()> {
    let fixture = Fixture::new().await?;
    let back = steps(json!([{"text": {"content": "Hal"}}, {"hand_back": true}]));
    let first = fixture.service(scripted(&back)?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    fixture.frames_until("t1", |frame| frame.chunks.iter().any(|chunk| chunk.attempt == 2)).await?;
    first.drain().await?;
    let _second = fixture.service(EngineConfig::Scripted(Script::echo())).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    let last = chunks.last().context("a last one")?;
    assert!(last.attempt >= 3, "{last:?}");
    let answer: Vec<_> = chunks.iter().filter(|chunk| chunk.attempt == last.attempt).cloned().collect();
    assert_eq!(story(&answer), ["0.metadata:", "0.content:You said: hi"]);
    assert_eq!(answer[0].chunk_id, 0, "each attempt begins at the beginning");
    fixture.all_requests_are_done().await
}

#[tokio::test]
async fn what_dies_without_a_word_is_delivered_again() -> Result<()> {
    let fixture = Fixture::new().await?;
    let dying = steps(json!([{"text": {"content": "Hal"}}, {"cut": true}]));
    let first = fixture.service(scripted(&dying)?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    fixture.frames_until("t1", |_| true).await?;
    first.drain().await?;
    assert_eq!(fixture.requests_left().await?, 1);
    let _second = fixture.service(EngineConfig::Scripted(Script::echo())).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    let attempts: Vec<_> = chunks.iter().map(|chunk| (chunk.attempt, chunk.chunk.as_str())).collect();
    assert_eq!(attempts, [(0, "Hal"), (1, ""), (1, "You said"), (1, ": hi"), (1, "")]);
    Ok(())
}

#[tokio::test]
async fn a_drain_finishes_what_it_can_and_hands_back_the_rest() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = json!({"scenarios": [
        {"when": {"input_contains": "short"}, "steps": [{"text": {"content": "a", "chars": 1}}, {"delay_ms": 700}, {"text": {"content": "b"}}]},
        {"steps": [{"text": {"content": "begun"}}, {"hang": true}]},
    ]});
    let service = fixture.service_with(scripted(&script)?, Duration::from_secs(4)).await?;
    fixture.publish(&request("t1", "short")).await?;
    fixture.publish(&request("t2", "long")).await?;
    fixture.frames_until("t1", |_| true).await?;
    fixture.frames_until("t2", |_| true).await?;
    service.drain().await?;
    assert_eq!(story(&fixture.chunks_until_final("t1").await?), ["0.content:ab"]);
    assert_eq!(fixture.requests_left().await?, 1);
    let begun = std::time::Instant::now();
    let _next = fixture.service(EngineConfig::Scripted(Script::echo())).await?;
    let chunks = fixture.chunks_until_final("t2").await?;
    assert_eq!(chunks.last().context("a last one")?.attempt, 1);
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "handed back, not left to time out: {:?}",
        begun.elapsed()
    );
    Ok(())
}

/// Without NATS, the service cannot hand a request back, and a process that is stopping has no time
/// to wait for NATS.
#[tokio::test]
async fn a_drain_ends_while_nats_is_away() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = steps(json!([{"text": {"content": "begun"}}, {"hang": true}]));
    let service = fixture.service_with(scripted(&script)?, Duration::from_secs(1)).await?;
    fixture.publish(&request("t1", "hi")).await?;
    fixture.frames_until("t1", |_| true).await?;
    fixture.signal("-STOP")?;
    let begun = std::time::Instant::now();
    service.drain().await?;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    fixture.signal("-CONT")
}

#[tokio::test]
async fn a_stop_ends_a_turn_that_would_never_end() -> Result<()> {
    let fixture = Fixture::new().await?;
    let _service =
        fixture.service(scripted(&steps(json!([{"text": {"content": "begun"}}, {"hang": true}])))?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    fixture.frames_until("t1", |_| true).await?;
    fixture.bus.publish_cancel(&TurnId::parse("u0001-t1")?, 1).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(fixture.requests_left().await?, 1, "another run was meant");
    fixture.bus.publish_cancel(&TurnId::parse("u0001-t1")?, 0).await?;
    fixture.all_requests_are_done().await
}

#[tokio::test]
async fn keepalives_are_sent_in_silence_unless_muted() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = json!({"scenarios": [
        {"when": {"input_contains": "mute"}, "steps": [{"silence_ms": 1_000}, {"error": {"class": "auth"}}]},
        {"steps": [{"delay_ms": 1_000}, {"text": {"content": "late"}}]},
    ]});
    let _service = fixture.service(scripted(&script)?).await?;
    let asked = |thread: &str, input: &str| {
        let mut asked = request(thread, input);
        asked["deadline_ms"] = json!(900);
        asked
    };
    fixture.publish(&asked("t1", "slow")).await?;
    fixture.publish(&asked("t2", "mute")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    let signs = chunks.iter().take_while(|chunk| chunk.chunk.is_empty() && !chunk.is_final).count();
    assert!((2..=3).contains(&signs), "{signs} signs in 1 s, one each 300 ms");
    assert_eq!(story(&chunks), ["0.metadata:", "0.content:late"]);
    let silent = fixture.chunks_until_final("t2").await?;
    assert!(silent.iter().filter(|chunk| !chunk.is_final).count() <= 1, "{silent:?}");
    Ok(())
}

#[tokio::test]
async fn tricks_repeat_and_reverse_frames() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = steps(json!([
        {"text": {"content": "a"}}, {"duplicate": 2}, {"reorder": 3}, {"text": {"content": "bcde", "chars": 1}},
    ]));
    let _service = fixture.service(scripted(&script)?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    let order: Vec<_> = chunks.iter().map(|chunk| chunk.chunk_id).collect();
    assert_eq!(order, [0, 0, 0, 3, 2, 1, 4, 5]);
    Ok(())
}

#[tokio::test]
async fn turns_run_concurrently_up_to_the_limit() -> Result<()> {
    let fixture = Fixture::new().await?;
    let slow = steps(json!([{"text": {"content": "begun"}}, {"delay_ms": 400}, {"text": {"content": "."}}]));
    let _service = fixture.service(scripted(&slow)?).await?;
    let begun = std::time::Instant::now();
    for number in 0..8 {
        fixture.publish(&request(&format!("t{number}"), "hi")).await?;
    }
    tokio::time::timeout(TEST_TIMEOUT, fixture.all_requests_are_done()).await??;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(800), "four at a time: {took:?}");
    assert!(took < Duration::from_millis(2_400), "not one after the other: {took:?}");
    eventually(async || Ok(fixture.deliveries().await? == 8)).await
}

#[tokio::test]
async fn server_outage_of_seconds_loses_no_chunk_and_no_attempt() -> Result<()> {
    let fixture = Fixture::new().await?;
    let text = "0123456789".repeat(20);
    let script = steps(json!([{"text": {"content": text, "chars": 1, "every_ms": 15}}]));
    let _service = fixture.service(scripted(&script)?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    fixture.frames_until("t1", |_| true).await?;
    fixture.signal("-STOP")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    fixture.signal("-CONT")?;
    let mut chunks = fixture.chunks_until_final("t1").await?;
    // Tries whose acks came too late are stored twice, and the last chunk may overtake retried
    // ones.
    eventually(async || {
        chunks = fixture.chunks_until_silence(Duration::from_millis(500), "t1").await?;
        chunks.sort_by_key(|chunk| chunk.chunk_id);
        chunks.dedup_by_key(|chunk| chunk.chunk_id);
        Ok(chunks.len() == 201)
    })
    .await?;
    assert_eq!(story(&chunks), [format!("0.content:{text}")]);
    assert!(chunks.iter().all(|chunk| chunk.attempt == 0));
    fixture.all_requests_are_done().await?;
    assert_eq!(fixture.deliveries().await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_long_turn_in_progress_is_not_delivered_again() -> Result<()> {
    let fixture = Fixture::new().await?;
    let script = steps(json!([{"delay_ms": 36_000}, {"text": {"content": "done"}}]));
    let _service = fixture.service(scripted(&script)?).await?;
    fixture.publish(&request("t1", "hi")).await?;
    let chunks = fixture.chunks_until_final("t1").await?;
    assert_eq!(story(&chunks), ["0.metadata:", "0.content:done"]);
    assert!(chunks.iter().all(|chunk| chunk.attempt == 0));
    fixture.all_requests_are_done().await?;
    assert_eq!(fixture.deliveries().await?, 1);
    Ok(())
}
