//! Mistakes of workflow services, as shown to the person who waits for the answer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{
    db_snapshot::turns,
    http,
    manual_workflow::DeliveredRequest,
    sse::{Follower, StreamEvent},
};

use crate::{
    api_client::{SOON, alone, asked_for, events, until_ended},
    fixture::Fixture,
};

/// The promise is two seconds; test machines may be slow. No notice comes after the deadline.
const AT_ONCE: Duration = Duration::from_secs(5);
const DEADLINE_MS: u64 = 6_000;

/// The reasons in the `waiting` events of a stream, each once.
fn reasons(follower: &Follower) -> Vec<String> {
    let mut reasons = Vec::new();
    for event in events(follower) {
        let StreamEvent::Other { name: Some(name), data } = event else { continue };
        if name == "waiting" {
            let data: Value = serde_json::from_str(&data).unwrap();
            assert!(data["message"].as_str().is_some_and(|text| text.len() > 20), "{data}");
            assert!(data["message_id"].is_string() && data["turn_id"].is_string(), "{data}");
            reasons.push(data["reason"].as_str().unwrap().to_owned());
        }
    }
    reasons.dedup();
    reasons
}

async fn make(mistake: &str, mut asked: DeliveredRequest) {
    match mistake {
        "no_token" => {
            let chunk = asked.chunk("hello", json!({"turn_token": "", "is_final": true}));
            asked.publish(chunk.to_string().into_bytes()).await.unwrap();
        }
        "no_answer" => asked.ack().await.unwrap(),
        "unfinished" => {
            asked.say("hello").await.unwrap();
            asked.ack().await.unwrap();
        }
        "handed_back" => asked.hand_back().await.unwrap(),
        "chunk_conflict" => {
            asked.say("hello ").await.unwrap();
            asked.say_with("world", json!({"chunk_id": 0})).await.unwrap();
        }
        "gap" => asked.say_with("hello", json!({"chunk_id": 1})).await.unwrap(),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_shown_to_viewers_and_end_their_turns() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    for mistake in ["no_token", "no_answer", "unfinished", "gap", "handed_back", "chunk_conflict"] {
        let settings = json!({"deadline_ms": DEADLINE_MS});
        fixture.api().put_agent(mistake, "default", settings).await.unwrap();
        let follower = fixture.following(mistake).await;
        let turn = fixture.api().say(mistake, "hello").await.unwrap();
        let asked = asked_for(&manual_workflow, &turn).await;
        make(mistake, asked).await;
        let began = Instant::now();
        let is_shown = |reasons: Vec<String>| reasons.last().is_some_and(|last| last == mistake);
        fixture.until("the stream says why", SOON, async || is_shown(reasons(&follower))).await;
        assert!(began.elapsed() < AT_ONCE, "{mistake}: {:?}", began.elapsed());
        println!("{mistake}: shown after {} ms", began.elapsed().as_millis());
        if mistake == "chunk_conflict" {
            continue;
        }
        let thread = http::get_json(fixture.api().0, &format!("/v1/threads/{mistake}")).await.unwrap();
        assert_eq!(thread["active_turn"]["waiting"]["reason"], mistake, "{thread}");
        assert!(thread["active_turn"]["fails_at"].is_string(), "{thread}");
        if mistake == "handed_back" {
            let request = &thread["active_turn"]["request"];
            assert_eq!((&request["deliveries"], &request["handed_back"]), (&json!(1), &json!(1)), "{thread}");
            assert!(request["again_at"].is_string(), "{thread}");
        }
        until_ended(&follower, &turn.answer).await;
        let code = if mistake == "gap" { "gap_timeout" } else { mistake };
        let failed = fixture.until_failed(mistake, 1).await;
        assert_eq!(failed, [(code.to_owned(), 0)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_whose_request_is_not_delivered_again_fails_then() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let follower = fixture.following("ann").await;
    let turn = fixture.api().say("ann", "hello").await.unwrap();
    for _ in 0..16 {
        asked_for(&manual_workflow, &turn).await.hand_back().await.unwrap();
    }
    // Long before the turn's deadline, which is two minutes.
    let began = Instant::now();
    until_ended(&follower, &turn.answer).await;
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    let rows = turns::failed_turns(&fixture.pool).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.code.as_str()).collect::<Vec<_>>(), ["handed_back"]);
    fixture.no_request_comes(&manual_workflow).await;
}

/// A service that reports progress is never treated as lost, and its turn waits only for its
/// deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_works_in_silence_has_taken_the_request() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    fixture.api().put_agent("ann", "default", json!({})).await.unwrap();
    let turn = fixture.api().say("ann", "hello").await.unwrap();
    let asked = asked_for(&manual_workflow, &turn).await;
    let active = async || fixture.api().agent("ann").await.unwrap()["active_turn"].clone();
    fixture.until("it is known", SOON, async || active().await["waiting"]["reason"] == "taken").await;
    assert_eq!(active().await["request"]["alive_at"], Value::Null);
    asked.work_goes_on().await.unwrap();
    fixture.until("it is heard", SOON, async || active().await["request"]["alive_at"].is_string()).await;
    assert_eq!(active().await["request"]["deliveries"], 1);
    asked.answer("hi").await.unwrap();
    fixture.until_messages("ann", 2).await;
}

/// The service that has taken the request is gone: it reports no progress within the required
/// thirty seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_gone_is_shown_as_lost() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow_of("default", Duration::from_secs(30)).await;
    let follower = fixture.following("ann").await;
    let turn = fixture.api().say("ann", "hello").await.unwrap();
    drop(asked_for(&manual_workflow, &turn).await);
    let is_lost = |reasons: Vec<String>| reasons.last().is_some_and(|last| last == "lost_service");
    fixture.until("it is lost", 4 * SOON, async || is_lost(reasons(&follower))).await;
    assert_eq!(reasons(&follower), ["taken", "lost_service"]);
    // Another service takes the request, and answers.
    asked_for(&manual_workflow, &turn).await.answer("hi").await.unwrap();
    fixture.until_messages("ann", 2).await;
}
