//! Invalid cursors: malformed, of another thread, or ahead of everything.

use model::Bucket;
use testkit::sse::StreamEvent;

use super::*;
use crate::fixture::short;

async fn refusal(addr: SocketAddr, thread: &str, cursor: &str) -> (u16, String) {
    let by_header = format!("last-event-id: {cursor}\r\n");
    let said = shout(addr, &get(&format!("/v1/threads/{thread}/events"), &by_header)).await;
    let problem: serde_json::Value = serde_json::from_str(said.body()).unwrap_or_default();
    (said.status().unwrap_or(0), problem["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_cursor_is_refused_with_its_reason() {
    let mut fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    // The cursor of a thread in another bucket, and that of a thread whose positions look like
    // those of `mine`.
    let twin = twin_of("mine");
    let yours = committed(&mut fixture, "yours").await;
    let twins = committed(&mut fixture, &twin).await;
    let mine = committed(&mut fixture, "mine").await;
    let head: i64 = mine.parse().unwrap();
    let later = (head + 1).to_string();
    let far = (head + (3_600_000 << 22)).to_string();
    let megabyte = "1".repeat(1 << 20);
    let long = format!("{head}{}", "~a".repeat(11_000));
    for (cursor, status, code) in [
        ("-1", 400, "invalid_cursor"),
        ("+1", 400, "invalid_cursor"),
        (" ~", 400, "invalid_cursor"),
        ("now", 400, "invalid_cursor"),
        ("1e3", 400, "invalid_cursor"),
        ("9223372036854775808", 400, "invalid_cursor"),
        ("1; DROP TABLE messages; --", 400, "invalid_cursor"),
        ("1' OR '1'='1", 400, "invalid_cursor"),
        ("1~a.1.2", 400, "invalid_cursor"),
        ("1~a.99999999999.1.1", 400, "invalid_cursor"),
        ("1~a~a", 400, "invalid_cursor"),
        ("\u{e9}", 400, "invalid_cursor"),
        (long.as_str(), 400, "invalid_cursor"),
        ("1\0", 400, ""),
        (megabyte.as_str(), 431, ""),
        (yours.as_str(), 404, "unknown_cursor"),
        (twins.as_str(), 404, "unknown_cursor"),
        (later.as_str(), 409, "cursor_ahead"),
        (far.as_str(), 409, "cursor_ahead"),
        ("9223372036854775807", 409, "cursor_ahead"),
    ] {
        let shown: String = cursor.chars().take(40).collect();
        let (got, why) = refusal(addr, "mine", cursor).await;
        // The response to a head of a megabyte may be lost with the rest of the head.
        assert!(got == status || (status == 431 && got == 0), "{shown:?}: {got} {why}");
        assert_eq!(why, code, "{shown:?}");
    }
    for query in ["after=", "after=%00", "after=-1", "after=1%27--", "after=9223372036854775808", "after=%ff"]
    {
        let said = shout(addr, &get(&format!("/v1/threads/mine/events?{query}"), "")).await;
        assert_eq!(said.status(), Some(400), "{query}: {said:?}");
    }
    // Nothing was ever written there, so no cursor can come from it.
    let none = twin_of(&twin);
    assert_eq!(refusal(addr, &none, &mine).await, (409, "cursor_ahead".to_owned()));
    assert_eq!(refusal(addr, "missing", &mine).await, (404, "unknown_cursor".to_owned()));
    for fit in [mine.as_str(), "", "0"] {
        assert_eq!(status_of(addr, "mine", fit).await, 200, "{fit:?}");
    }
    // Where retention deletes messages, a client may have read one that no longer exists.
    fixture.settle("mine", serde_json::json!({"retention": {"max_batches": 1_000}})).await;
    assert_eq!(status_of(addr, "mine", &twins).await, 200);
}

/// A position belongs to its thread and is not compared with a clock: one that an owner gave while
/// its clock was an hour ahead is valid.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_from_a_clock_that_is_ahead_is_a_position() {
    let mut fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let at = committed(&mut fixture, "early").await;
    let later = (at.parse::<i64>().unwrap() + (3_600_000 << 22)).to_string();
    assert_eq!(refusal(addr, "early", &later).await, (409, "cursor_ahead".to_owned()));
    for statement in [
        "UPDATE messages SET position = $1, batch_id = $1 WHERE thread_id = 'early'",
        "UPDATE threads SET head_position = $1 WHERE thread_id = 'early'",
    ] {
        sqlx::query(statement).bind(later.parse::<i64>().unwrap()).execute(&fixture.pool).await.unwrap();
    }
    assert_eq!(status_of(addr, "early", &later).await, 200);
    let beyond = (later.parse::<i64>().unwrap() + 1).to_string();
    assert_eq!(refusal(addr, "early", &beyond).await, (409, "cursor_ahead".to_owned()));
}

async fn status_of(addr: SocketAddr, thread: &str, cursor: &str) -> u16 {
    let path = format!("/v1/threads/{thread}/events");
    http::open(addr, &path, &[("last-event-id", cursor)]).await.unwrap().status
}

/// Commits a message in a thread, and returns the position that a client has of it.
async fn committed(fixture: &mut Fixture, thread: &str) -> String {
    let follower = fixture.following(thread).await;
    fixture.send(&short(thread, "m", 1)).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    let found = follower.inspect(|all| {
        all[0].events.iter().find_map(|received| match &received.event {
            StreamEvent::Complete { position, .. } => position.clone(),
            _ => None,
        })
    });
    found.unwrap()
}

/// Another thread of the same bucket.
fn twin_of(thread: &str) -> String {
    let names = (0..).map(|number| format!("{thread}-{number}"));
    names.into_iter().find(|name| Bucket::of_key(name) == Bucket::of_key(thread)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_a_moment_ago_is_not_the_future() {
    let mut fixture = Fixture::with(|mut options| {
        options.gateways = 2;
        impatient(options)
    })
    .await;
    let gateways = fixture.fleet.gateway_addrs();
    let follower =
        testkit::sse::Follower::start(&gateways[..1], "fresh", testkit::sse::FollowOptions::default());
    follower.opened().await.unwrap();
    for salt in 0..30 {
        fixture.send(&short("fresh", &format!("m-{salt}"), salt)).await;
        follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == salt + 1).await.unwrap();
        let id = follower.inspect(|all| all[0].events.last().and_then(|last| last.id.clone())).unwrap();
        // The client reconnects as fast as it can, at a gateway that knows nothing of the thread.
        let response =
            http::open(gateways[1], "/v1/threads/fresh/events", &[("last-event-id", &id)]).await.unwrap();
        assert_eq!(response.status, 200, "{id}");
    }
    fixture.audit(vec![follower]).await;
}
