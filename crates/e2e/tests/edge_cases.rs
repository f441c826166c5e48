//! Rare cases: before the first answer, without an owner, with requests that cannot be made, and
//! after a failure.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    api::Api,
    db_snapshot::{self, turns},
    sse::StreamEvent,
    turn_events,
};
use tokio::time::sleep;

use crate::{
    api_client::{SOON, alone, asked_for, events, events_until, said, until_ended},
    fixture::{Fixture, PARTITIONS},
};

/// The events that a client of one message gets, up to its end.
async fn events_of_message(api: Api, thread: &str, message: &str) -> Vec<StreamEvent> {
    let path = format!("/v1/threads/{thread}/events?message={message}");
    events_until(api, &path, message).await
}

/// Code, text and metadata of the failure of a message.
fn failure(events: &[StreamEvent], wanted: &str) -> (String, String, Value) {
    let of_it = |event: &StreamEvent| match event {
        StreamEvent::Failed { message, code, text, metadata, .. } if message == wanted => {
            Some((code.clone(), text.clone(), metadata.clone()))
        }
        _ => None,
    };
    events.iter().find_map(of_it).unwrap_or_else(|| panic!("no failure of {wanted}: {events:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_without_a_worker_waits_for_one() {
    let mut fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.until_owned("talk").await;
    let turn = api.say("talk", "tell me").await.unwrap();
    // The thread is shown at once and while its turn is in progress, although nothing of it is
    // stored.
    for _ in 0..2 {
        let shown = api.thread("talk").await.unwrap();
        assert_eq!((&shown["thread_id"], &shown["message_count"]), (&json!("talk"), &json!(0)), "{shown}");
        assert_eq!(shown["active_turn"]["turn_id"], json!(turn.id), "{shown}");
        sleep(Duration::from_millis(300)).await;
    }
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let follower = fixture.following("talk").await;
    asked.say("Once upon").await.unwrap();
    follower.wait(SOON, |progress| progress.events >= 1).await.unwrap();
    fixture.fleet.workers[0].kill().await.unwrap();
    let id = turn.id.clone();
    let stop = tokio::spawn(async move { api.stop(&id).await.unwrap() });
    sleep(Duration::from_secs(1)).await;
    assert!(!stop.is_finished(), "there is no owner to do it");
    fixture.fleet.workers[0].spawn().unwrap();
    let stopped = stop.await.unwrap();
    assert!(stopped["command_id"].is_string() && stopped["error"].is_null(), "{stopped}");
    until_ended(&follower, &turn.answer).await;
    let messages = fixture.until_messages("talk", 2).await;
    assert_eq!(said(&messages), [("user", "tell me"), ("assistant", "Once upon")]);
    assert_eq!(messages[1].metadata["stopped"], json!(true));
    let acts = turns::acts(&fixture.pool, "talk").await.unwrap();
    assert_eq!(acts.iter().map(|act| act.action.as_str()).collect::<Vec<_>>(), ["stop_turn"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_made_fails_its_turn_for_good() {
    let fixture = Fixture::with(alone).await;
    let api = fixture.api();
    let follower = fixture.following("talk").await;
    // In JSON each of these characters takes six bytes, so the request exceeds the NATS message
    // limit.
    let content = "\u{1}".repeat(200 << 10);
    let turn = api.say("talk", &content).await.unwrap();
    until_ended(&follower, &turn.answer).await;
    let (code, text, metadata) = failure(&events(&follower), &turn.answer);
    assert_eq!((code.as_str(), &metadata["retryable"]), ("request_invalid", &json!(false)), "{text}");
    assert!(text.starts_with("the turn request could not be made: "), "{text}");
    assert_eq!(
        failure(&events_of_message(api, "talk", &turn.answer).await, &turn.answer),
        (code, text.clone(), metadata)
    );
    let shown = api.failed_turns("talk").await.unwrap();
    assert_eq!(
        (&shown[0]["code"], &shown[0]["retryable"], &shown[0]["message"]),
        (&json!("request_invalid"), &json!(false), &json!(text))
    );
    api.send_task("ann", "large", &content).await.unwrap();
    fixture.until_tasks("ann", &["failed"]).await;
    assert_eq!(fixture.tasks_of("ann").await[0].failure_code.as_deref(), Some("request_invalid"));
    fixture.until_settled().await;
    let ends = turn_events::all(fixture.publisher.context()).await.unwrap();
    let codes: Vec<_> = ends.iter().map(|end| end.said.code.as_deref()).collect();
    assert_eq!(codes, [Some("request_invalid"), Some("request_invalid")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_client_gets_the_same_failure() {
    let fixture = Fixture::with(alone).await;
    let follower = fixture.following("talk").await;
    let count = model::PartitionCount::new(PARTITIONS.into()).unwrap();
    let subject = wire::subject::partition_chunks(count, &model::ThreadId::parse("talk").unwrap());
    let classes = [("permanent", false), ("transient", true), ("auth", true)];
    for (class, _) in classes {
        let chunk = json!({"session_id": "talk", "message_id": class, "chunk_id": 0, "chunk": "no",
            "chunk_type": "error", "is_final": true, "metadata": {"class": class}});
        fixture.publisher.publish_raw(&subject, None, chunk.to_string().into_bytes().into()).await.unwrap();
    }
    for (class, retryable) in classes {
        until_ended(&follower, class).await;
        let live = failure(&events(&follower), class);
        assert_eq!(live.0, "producer_error");
        assert_eq!(live.2, json!({"code": "producer_error", "retryable": retryable}), "{class}");
        assert_eq!(failure(&events_of_message(fixture.api(), "talk", class).await, class), live);
    }
    assert_eq!(db_snapshot::dead_letters(&fixture.pool).await.unwrap().len(), 3);
}

/// A publisher in JavaScript splits a text between the two code units of a character.
#[tokio::test(flavor = "multi_thread")]
async fn cut_character_is_whole_for_clients_and_in_history() {
    let fixture = Fixture::with(alone).await;
    let follower = fixture.following("harbour-log").await;
    let thread = model::ThreadId::parse("harbour-log").unwrap();
    let count = model::PartitionCount::new(PARTITIONS.into()).unwrap();
    let subject = wire::subject::partition_chunks(count, &thread);
    for (message, chunks) in [
        (
            "m-2",
            [r#""chunk_id":0,"chunk":"Ahoy \ud83d""#, r#""chunk_id":1,"chunk":"\udea4!","is_final":true"#],
        ),
        (
            "m-3",
            [r#""chunk_id":1,"chunk":"\udea4!","is_final":true"#, r#""chunk_id":0,"chunk":"Ahoy \ud83d""#],
        ),
        ("m-4", [r#""chunk_id":0,"chunk":"Ahoy\ud83d""#, r#""chunk_id":1,"chunk":" there","is_final":true"#]),
    ] {
        for chunk in chunks {
            let json = format!(r#"{{"session_id":"{thread}","message_id":"{message}",{chunk}}}"#);
            fixture.publisher.publish_raw(&subject, None, json.into_bytes().into()).await.unwrap();
        }
        until_ended(&follower, message).await;
    }
    let wanted = [("m-2", "Ahoy 🚤!"), ("m-3", "Ahoy 🚤!"), ("m-4", "Ahoy\u{fffd} there")];
    let messages = fixture.until_messages(thread.as_str(), 3).await;
    assert_eq!(said(&messages), wanted.map(|(_, text)| ("assistant", text)));
    let live = follower.stop().remove(0);
    for (message, text) in wanted {
        assert_eq!(live.text_of(message), text, "{message}");
    }
    assert_eq!(db_snapshot::dead_letters(&fixture.pool).await.unwrap().len(), 0);
}
