//! What subscribers see.

use std::time::{Duration, Instant};

use gateway::GatewayLimits;
use model::{FrameNumber, LiveFrame, MessageOutcome, Positions, Timestamp};
use testkit::http;
use tokio::time::timeout;

use crate::client::Client;
use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn every_viewer_gets_every_chunk_then_the_end() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    let mut first = Client::open(fixture.gateways[0], None).await;
    let mut second = Client::open(fixture.gateways[1], None).await;
    let headers = &first.response;
    assert_eq!(headers.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(headers.header("cache-control"), Some("no-cache, no-store, no-transform"));
    assert_eq!(headers.header("x-accel-buffering"), Some("no"));
    assert_eq!(headers.header("x-content-type-options"), Some("nosniff"));
    settle().await;
    fixture.send("a", 0, "one two ").await;
    assert_eq!(first.until("a:two ").await, "a:one |a:two ");
    fixture.send("a", 1, "two three.").await;
    fixture.commit("a", 5, "one two three.").await;
    fixture.send_end("a", 3, 5).await;
    assert_eq!(first.until("a!").await, "a:three.|a!");
    assert_eq!(second.until("a!").await, "a:one |a:two |a:three.|a!");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_viewer_gets_the_open_text_and_nothing_that_is_history() {
    let fixture = Fixture::new().await;
    fixture.commit_unheard("old", 3, "history").await;
    let _owner = fixture.owner(1, vec![("a", 0, "one two ")]).await;
    let mut first = Client::open(fixture.gateways[0], None).await;
    assert_eq!(first.until("a:two ").await, "a:one |a:two ");
    let mut late = Client::open(fixture.gateways[0], None).await;
    assert_eq!(late.until("a:two ").await, "a:one |a:two ");
    assert_eq!(late.last_id, first.last_id);
    assert_eq!(late.last_id.as_deref(), Some("3~a.0.2.8"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_is_closed_by_the_owner_before_anything_else_is_shown() {
    let fixture = Fixture::new().await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    settle().await;
    let owner = fixture.owner(1, vec![]).await;
    fixture.send("a", 0, "one ").await;
    fixture.lose("a", 1, "two three ");
    fixture.send("a", 3, "four ").await;
    assert_eq!(viewer.until("a:four ").await, "a:one |a:two |a:three |a:four ");
    assert!(!owner.asked.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_end_and_lost_text_are_found_in_the_store() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    settle().await;
    fixture.send("a", 0, "one ").await;
    fixture.send("b", 0, "x ").await;
    fixture.commit_unheard("a", 5, "one two three.").await;
    fixture.give_up("b", 6).await;
    fixture.lose_end("b", 6);
    let seen = viewer.until("a!").await;
    assert!(seen.starts_with("a:one |b:x |") && seen.contains("a:two three."), "{seen}");
    if !seen.contains("b?stalled") {
        assert_eq!(viewer.next().await, "b?stalled");
    }
    // Frames of a former owner, and frames that are older than what the feed has read.
    for (epoch, number) in [(0, 99), (1, 1)] {
        for frame in
            [fixture.frame("a", 0, 0, "one two three."), fixture.end("a", 3, 5, MessageOutcome::Complete)]
        {
            let number = FrameNumber { epoch, number, after: number - 1 };
            fixture.publish(&LiveFrame { number, ..frame }).await;
        }
    }
    assert!(viewer.is_quiet(Duration::from_secs(1)).await, "nothing of it comes again");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_lost_owner_are_shown_after_takeover() {
    let fixture = Fixture::new().await;
    let first_owner = fixture.owner(1, vec![]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    drop(first_owner);
    // The message is committed, but neither its chunks nor its end were sent.
    fixture.commit_unheard("a", 5, "whole text").await;
    let _second = fixture.owner(2, vec![]).await;
    // A text from the store is followed by the final chunk, which carries the metadata.
    assert_eq!(viewer.until("a!").await, "a:whole text|a:|a!");
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_restart_when_the_store_has_lost_an_end() {
    let fixture = Fixture::new().await;
    let first_owner = fixture.owner(1, vec![]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    settle().await;
    // Positions older than the largest clock skew are unaffected.
    let now = Timestamp(runtime::system_time_ms());
    let at = |ms| Positions::above(Timestamp(0)).next(fixture.thread.bucket(), now.plus_ms(ms)).get();
    let (a, b, again) = (at(-61_000), at(-2), at(-1));
    for (message, position) in [("a", a), ("b", b)] {
        fixture.send(message, 0, "text").await;
        fixture.commit(message, position, "text").await;
        fixture.send_end(message, 1, position).await;
    }
    assert_eq!(viewer.until("b!").await, "a:text|a!|b:text|b!");
    drop(first_owner);
    // The store goes back behind the second message, which is read and committed again.
    let pool = fixture.database.pool().await.unwrap();
    sqlx::query("DELETE FROM messages WHERE position = $1").bind(b).execute(&pool).await.unwrap();
    fixture.commit_unheard("b", again, "text").await;
    let _second = fixture.owner(2, vec![]).await;
    assert_eq!(viewer.until("b!").await, format!("restart {a}|b:text|b:|b!"));
    // A client that resumes from there is refused.
    for gateway in &fixture.gateways {
        let back = http::open(*gateway, "/v1/threads/t1/events", &[("last-event-id", &b.to_string())]).await;
        assert_eq!(back.unwrap().status, 404);
    }
}

/// The epoch in the query informs an earlier owner, whose frames the feed rejects, that it has a
/// successor.
#[tokio::test(flavor = "multi_thread")]
async fn owners_are_asked_with_the_epoch_that_a_feed_has_taken() {
    let fixture = Fixture::new().await;
    fixture.state().replies_to_watch = false;
    // No announcement: only the feed's own query reveals the owner.
    let _owner = fixture.owner(7, vec![("a", 0, "one ")]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    assert_eq!(viewer.until("a:one ").await, "a:one ");
    let until = Instant::now() + Duration::from_secs(20);
    while fixture.state().watched_epochs.last() != Some(&7) {
        assert!(Instant::now() < until, "{:?}", fixture.state().watched_epochs);
        settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_higher_attempt_begins_again() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    settle().await;
    fixture.send("a", 0, "one ").await;
    fixture.send_frame(&fixture.frame("a", 1, 0, "uno ")).await;
    fixture.send("a", 1, "two ").await;
    fixture.send_frame(&fixture.frame("a", 1, 1, "due.")).await;
    assert_eq!(viewer.until("a:due.").await, "a:one |a^1|a:uno |a:due.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_resumes_at_another_gateway_without_loss_or_repeat() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![("open", 0, "eins zwei drei ")]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    assert_eq!(viewer.until("open:drei ").await, "open:eins |open:zwei |open:drei ");
    fixture.send("a", 0, "one two ").await;
    assert_eq!(viewer.until("a:two ").await, "a:one |a:two ");
    let last_id = viewer.last_id.clone();
    drop(viewer);
    fixture.commit_unheard("a", 5, "one two three.").await;
    for n in 0..70 {
        fixture.commit_unheard(&format!("m{n}"), 10 + n, &format!("text {n}")).await;
    }
    let mut resumed = Client::open(fixture.gateways[1], last_id.as_deref()).await;
    let seen = resumed.until("m69!").await;
    assert!(seen.starts_with("a:three.|a:|a!|m0:text 0|m0:|m0!|m1:text 1|"), "{seen}");
    assert_eq!(seen.matches('!').count(), 71);
    fixture.send("open", 3, "vier.").await;
    assert_eq!(resumed.next().await, "open:vier.");
    // Resumes by position alone, like a client that has read the history.
    let mut by_position = Client::open(fixture.gateways[0], Some("78")).await;
    let seen = by_position.until("open:vier.").await;
    assert_eq!(seen, "m69:text 69|m69:|m69!|open:eins |open:zwei |open:drei |open:vier.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cut_before_its_first_message_misses_nothing() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    fixture.commit_unheard("history", 3, "earlier").await;
    let mut cut = Client::open(fixture.gateways[0], None).await;
    cut.ready().await;
    let last_id = cut.last_id.clone();
    assert_eq!(last_id.as_deref(), Some("3"));
    drop(cut);
    fixture.commit_unheard("a", 5, "one two.").await;
    let mut resumed = Client::open(fixture.gateways[1], last_id.as_deref()).await;
    assert_eq!(resumed.until("a!").await, "a:one two.|a:|a!");
    // A stream that continues from a cursor does not start again.
    fixture.send("b", 0, "three.").await;
    assert_eq!(resumed.next().await, "b:three.");
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_may_go_and_come_back() {
    let fixture = Fixture::new().await;
    let owner = fixture.owner(1, vec![]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    settle().await;
    fixture.send("a", 0, "one ").await;
    assert_eq!(viewer.next().await, "a:one ");
    fixture.nats.kill().await.unwrap();
    fixture.commit_unheard("a", 5, "one two.").await;
    fixture.nats.restart().await.unwrap();
    assert_eq!(viewer.until("a!").await, "a:two.|a:|a!");
    drop(owner);
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_client_gets_a_failure_in_its_position() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    settle().await;
    fixture.send("b", 0, "x ").await;
    assert_eq!(viewer.next().await, "b:x ");
    let last_id = viewer.last_id.clone();
    drop(viewer);
    fixture.commit_unheard("a", 5, "text").await;
    fixture.give_up("b", 6).await;
    fixture.lose_end("b", 6);
    fixture.commit_unheard("c", 7, "more").await;
    for gateway in &fixture.gateways {
        let mut back = Client::open(*gateway, last_id.as_deref()).await;
        assert_eq!(back.until("c!").await, "a:text|a:|a!|b?stalled|c:more|c:|c!");
        // The client resumes after the failure: the event of a failure has its position as the id.
        let mut later = Client::open(*gateway, Some("6")).await;
        assert_eq!(later.until("c!").await, "c:more|c:|c!");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_far_behind_begins_at_once() {
    let fixture = Fixture::with(GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    // More messages than a feed sends to a subscriber that joins it.
    for position in 5..45 {
        fixture.commit_unheard(&format!("m{position}"), position, "text").await;
    }
    // The stream begins before the timeout after which it would begin unchecked.
    let opened = timeout(Duration::from_secs(1), Client::open(fixture.gateways[0], Some("5"))).await;
    let mut back = opened.expect("the stream has not begun");
    let all = back.until("m44!").await;
    assert!(all.starts_with("m6:text|m6:|m6!|m7:text|m7:|m7!|"), "{all}");
    assert_eq!(all.matches('!').count(), 39);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_cursor_is_refused_by_an_owner_that_is_current() {
    let fixture = Fixture::new().await;
    fixture.commit_unheard("a", 5, "text").await;
    let _owner = fixture.owner(1, vec![("open", 0, "one two ")]).await;
    let refused = async |last_id: &str| {
        let answer =
            http::open(fixture.gateways[0], "/v1/threads/t1/events", &[("last-event-id", last_id)]).await;
        answer.unwrap().status
    };
    assert_eq!(refused("5~ghost.0.3.9").await, 404);
    assert_eq!(refused("5~open.0.9.99").await, 409);
    assert_eq!(refused("5~open.4.0.0").await, 409);
    // The cursor claims more of a message than is stored.
    assert_eq!(refused("0~a.0.3.99").await, 409);
    let mut known = Client::open(fixture.gateways[0], Some("5~open.0.1.4")).await;
    assert_eq!(known.next().await, "open:two ");
}

#[tokio::test(flavor = "multi_thread")]
async fn unverified_cursor_starts_a_stream_that_may_restart() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    fixture.commit_unheard("a", 5, "text").await;
    fixture.state().is_current = false;
    let _owner = fixture.owner(1, vec![("open", 0, "one two ")]).await;
    let began = Instant::now();
    let mut wrong = Client::open(fixture.gateways[0], Some("5~ghost.0.3.9~open.0.1.4")).await;
    assert!(began.elapsed() >= Duration::from_millis(1_900), "it waits for the owner: {:?}", began.elapsed());
    let mut right = Client::open(fixture.gateways[0], Some("5~open.0.1.4")).await;
    assert_eq!(right.next().await, "open:two ", "who knows of nothing else need not wait");
    fixture.state().is_current = true;
    assert_eq!(wrong.until("open:two ").await, "restart 5|open:one |open:two ");
    fixture.send("open", 2, "three.").await;
    assert_eq!((wrong.next().await, right.next().await), ("open:three.".into(), "open:three.".into()));
    assert_eq!(wrong.last_id, right.last_id);
}

/// Waits until a new feed listens and has queried its owner.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(400)).await;
}
