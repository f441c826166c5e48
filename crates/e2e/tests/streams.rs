//! The event streams that clients see.

use std::time::Duration;

use testkit::{
    WAIT_TIMEOUT,
    fleet::Fleet,
    http,
    load::PlannedMessage,
    services::{NatsServer, TestDatabase},
    sse::{FollowOptions, Follower, StreamEnd, StreamEvent},
};

use crate::fixture::{Fixture, LEASE, PARTITIONS, long, options, short};

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_released_in_order_and_the_end_follows_the_commit() {
    let fixture = Fixture::new().await;
    let follower = fixture.following("ordered").await;
    let pieces: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(String::from).to_vec();
    let message = testkit::load::PlannedMessage::of_pieces("ordered", "m", &pieces).unwrap();
    let mut expected = 0;
    for (id, released) in [(3, 0), (1, 0), (4, 0), (0, 2), (5, 0), (2, 5)] {
        fixture.send_part(&message, id..id + 1).await;
        expected += released;
        follower.wait(WAIT_TIMEOUT, |progress| progress.events >= expected).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(follower.progress().events, expected, "after chunk {id}");
    }
    let history =
        http::get_json(fixture.fleet.gateway_addrs()[0], "/v1/threads/ordered/history").await.unwrap();
    let rows = history["messages"].as_array().unwrap();
    assert_eq!((rows.len(), rows[0]["content"].as_str()), (1, Some("abcdef")), "{history}");
    assert!(rows[0]["position"].is_string() && rows[0]["batch_id"].is_string(), "{history}");
    assert!(rows[0]["parent_id"].is_null(), "{history}");
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_joiner_gets_the_whole_of_what_is_open() {
    let fixture = Fixture::new().await;
    let early = fixture.following("late").await;
    let message = long("late", "m");
    fixture.send_part(&message, 0..200).await;
    early.wait(WAIT_TIMEOUT, |progress| progress.events >= 200).await.unwrap();
    let late = fixture.following("late").await;
    late.wait(WAIT_TIMEOUT, |progress| progress.events >= 200).await.unwrap();
    fixture.send_part(&message, 200..message.chunks.len()).await;
    for follower in [&early, &late] {
        follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
        assert_eq!(follower.inspect(|transcripts| transcripts[0].text_of("m")), message.text());
    }
    fixture.audit(vec![early, late]).await;
}

/// The open text has more bytes than the server accepts in one message.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_open_text_where_messages_must_be_small() {
    let nats = NatsServer::start_with_max_payload(64 << 10).await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let mut fleet = Fleet::prepare(options(&nats, database.url())).unwrap();
    fleet.migrate().await.unwrap();
    fleet.spawn().unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let pool = database.pool().await.unwrap();
    let fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    let pieces: Vec<String> = (0..121).map(|n| format!("{n:04}{}", "x".repeat(6_000))).collect();
    let message = PlannedMessage::of_pieces("small", "m", &pieces).unwrap();
    let early = fixture.following("small").await;
    fixture.send_part(&message, 0..120).await;
    early.wait(WAIT_TIMEOUT, |progress| progress.events >= 120).await.unwrap();
    let late = fixture.following("small").await;
    late.wait(WAIT_TIMEOUT, |progress| progress.events >= 120).await.unwrap();
    fixture.send_part(&message, 120..121).await;
    for follower in [&early, &late] {
        follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
        assert_eq!(follower.inspect(|transcripts| transcripts[0].text_of("m")), message.text());
    }
    fixture.audit(vec![early, late]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_messages_are_too_small_is_refused() {
    let nats = NatsServer::start_with_max_payload(32 << 10).await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let refused =
        Fleet::prepare(options(&nats, database.url())).unwrap().migrate().await.unwrap_err().to_string();
    assert!(refused.contains("set its max_payload to 65536 or more"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_keeps_leaving_loses_and_repeats_nothing() {
    let mut fixture = Fixture::with(|mut options| {
        options.gateways = 2;
        options
    })
    .await;
    let options =
        FollowOptions { hang_up_after: Some(Duration::from_millis(300)), ..FollowOptions::default() };
    let follower = Follower::start(&fixture.fleet.gateway_addrs(), "train", options);
    follower.opened().await.unwrap();
    let total = 12;
    for number in 0..total {
        let message = short("train", &format!("m-{number}"), number);
        fixture.send_part(&message, 0..4).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        fixture.send(&message).await;
    }
    let message = long("train", "long");
    for from in (0..message.chunks.len()).step_by(50) {
        fixture.send_part(&message, from..(from + 50).min(message.chunks.len())).await;
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    fixture.until_ended(WAIT_TIMEOUT).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == total + 1).await.unwrap();
    assert!(follower.progress().opened > 3);
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_is_resumed_at_another_one() {
    let mut fixture = Fixture::with(|mut options| {
        options.gateways = 2;
        options
    })
    .await;
    let follower = fixture.following("gateways").await;
    let message = long("gateways", "m");
    fixture.send_part(&message, 0..100).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 100).await.unwrap();
    fixture.fleet.gateways[0].kill().await.unwrap();
    fixture.send_part(&message, 100..message.chunks.len()).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_chunk_ends_the_message_with_one_error_for_everybody() {
    let mut fixture = Fixture::new().await;
    let followers = [fixture.following("gap").await, fixture.following("gap").await];
    let message = short("gap", "m", 3);
    let publications = message.publications(crate::fixture::DISORDER, Some(2), &mut fixture.rng);
    fixture.publisher.publish(publications, &fixture.ack_log).await.unwrap();
    fixture.until_ended(fixture.gap_timeout + WAIT_TIMEOUT).await;
    for follower in &followers {
        follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
        let failed = follower.inspect(|transcripts| transcripts[0].events.last().unwrap().event.clone());
        let StreamEvent::Failed { code, metadata, .. } = failed else { panic!("{failed:?}") };
        assert_eq!(code, "gap_timeout");
        assert_eq!(metadata["missing"], serde_json::json!([{"first": 2, "last": 2}]));
    }
    fixture.audit(followers.into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_higher_attempt_resets_and_then_streams() {
    let fixture = Fixture::new().await;
    let follower = fixture.following("again").await;
    let first = short("again", "m", 1);
    fixture.send_part(&first, 0..4).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 4).await.unwrap();
    let second = short("again", "m", 2).with_attempt(1);
    fixture.send_part(&second, 0..second.chunks.len()).await;
    // A chunk of the fenced attempt changes nothing.
    fixture.send_part(&first, 4..5).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    let is_reset = |event: &StreamEvent| matches!(event, StreamEvent::Reset { attempt: 1, .. });
    let resets = follower.inspect(|transcripts| {
        transcripts[0].events.iter().filter(|received| is_reset(&received.event)).count()
    });
    assert_eq!(resets, 1);
    fixture.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_only_a_pause_when_the_owner_dies() {
    let mut fixture = Fixture::new().await;
    let follower = fixture.following("pause").await;
    let message = long("pause", "m");
    fixture.send_part(&message, 0..150).await;
    let owner = fixture.worker_of("pause").await;
    fixture.fleet.workers[owner].kill().await.unwrap();
    fixture.fleet.workers[owner].spawn().unwrap();
    fixture.send_part(&message, 150..message.chunks.len()).await;
    follower.wait(LEASE + WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    assert_eq!(follower.progress().opened, 1, "the connection stays");
    fixture.audit(vec![follower]).await;
}

/// A gateway that does not know the thread reads from Postgres what the stream has purged.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_comes_back_after_the_stream_was_purged() {
    let mut fixture = Fixture::with(|mut options| {
        options.gateways = 2;
        options.with_env("ANTIPHON_STREAM_RETAIN_SECONDS", "0.1")
    })
    .await;
    let gateways = fixture.fleet.gateway_addrs();
    let once = || FollowOptions { once: true, ..FollowOptions::default() };
    let early = Follower::start(&gateways[..1], "purged", once());
    early.opened().await.unwrap();
    let (first, second) = (short("purged", "m-1", 1), long("purged", "m-2"));
    fixture.send(&first).await;
    early.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    fixture.send_part(&second, 0..200).await;
    early.wait(WAIT_TIMEOUT, |progress| progress.events >= first.chunks.len() + 1 + 200).await.unwrap();
    let before = early.stop().remove(0);
    fixture.send_part(&second, 200..second.chunks.len()).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let stream = format!("PARTITION_{}", model::Bucket::of_key("purged").get() % PARTITIONS);
    let jetstream = fixture.publisher.context().clone();
    fixture
        .until("the stream is purged", WAIT_TIMEOUT, async || {
            // A purge follows a checkpoint, and a checkpoint follows messages in another thread of
            // the partition.
            fixture.send_part(&short("purged", &format!("n-{}", fixture.ack_log.len()), 2), 0..10).await;
            let mut stream = jetstream.get_stream(&stream).await.unwrap();
            stream.info().await.unwrap().state.first_sequence > 250
        })
        .await;
    // The client resumes from the middle of a message, and from the end of the one before.
    let id_of = |wanted: &dyn Fn(&StreamEvent) -> bool| {
        let found = before.events.iter().rev().find(|received| wanted(&received.event));
        found.and_then(|received| received.id.clone()).unwrap()
    };
    let middle = id_of(&|_| true);
    let end_of_first = id_of(&|event| event.terminal() == Some("m-1"));
    for (cursor, seen) in [(middle, before.text_of("m-2")), (end_of_first, String::new())] {
        let options = FollowOptions { last_event_id: Some(cursor.clone()), ..once() };
        let late = Follower::start(&gateways[1..], "purged", options);
        late.wait(WAIT_TIMEOUT, |progress| progress.terminals >= 1).await.unwrap();
        let rest = late.stop().remove(0);
        assert!(!matches!(rest.end, Some(StreamEnd::Refused(..))), "{cursor}: {:?}", rest.end);
        assert_eq!(seen + &rest.text_of("m-2"), second.text(), "{cursor}");
        assert_eq!(rest.text_of("m-1"), "", "{cursor}: it had that");
        let ends = rest.events.iter().filter(|received| received.event.terminal() == Some("m-2")).count();
        assert_eq!(ends, 1, "{cursor}");
    }
}
