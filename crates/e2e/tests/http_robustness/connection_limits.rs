//! Many connections at once: subscribers that connect, reconnect, and exceed the limit.

use std::time::Instant;

use futures_util::{StreamExt, stream};
use testkit::http::Response;

use super::*;
use crate::fixture::short;

const CROWD: usize = 2_000;

/// Opens `CROWD` streams of the thread, a hundred at a time.
async fn crowd(addr: SocketAddr, thread: &str, cursor: Option<&str>) -> Vec<Response> {
    let path = format!("/v1/threads/{thread}/events");
    let headers: Vec<_> = cursor.map(|cursor| ("last-event-id", cursor)).into_iter().collect();
    let open = async |_| {
        let response = timeout(LIMIT, http::open(addr, &path, &headers)).await.unwrap().unwrap();
        assert_eq!(response.status, 200);
        response
    };
    stream::iter(0..CROWD).map(open).buffer_unordered(100).collect().await
}

/// Reads until the received text contains this.
async fn until(response: &mut Response, wanted: &str) -> String {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if text.contains(wanted) {
            return text;
        }
        let read = timeout(LIMIT, response.body.read(&mut all)).await.expect("nothing came").expect("a cut");
        assert!(read > 0, "ended before {wanted}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_viewers_come_and_come_again() {
    // The heads of a hundred requests at once may take longer than usual on a busy machine.
    let with_time = |options| {
        let options = impatient(options).with_env("ANTIPHON_MAX_CONNECTIONS", 3_000);
        options.with_env("ANTIPHON_HEADER_TIMEOUT_SECONDS", 60)
    };
    let mut fixture = Fixture::with(with_time).await;
    let (addr, gateway) = (fixture.fleet.gateway_addrs()[0], 0);
    let before = Held::by(&fixture.fleet.gateways[gateway]);
    let began = Instant::now();
    let mut all = crowd(addr, "crowd", None).await;
    let held = Held::by(&fixture.fleet.gateways[gateway]);
    println!("{CROWD} streams in {:?}, {held:?}", began.elapsed());
    assert!(held.files >= before.files + CROWD);
    // 18 KiB per stream, 16 of which are hyper's buffers.
    assert!(held.rss_mb < before.rss_mb + 48, "before {before:?}, with {CROWD} streams {held:?}");
    fixture.send(&short("crowd", "m-1", 1)).await;
    let mut cursor = None;
    for response in &mut all {
        let text = until(response, "message_complete").await;
        cursor = text.lines().rev().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
    }
    drop(all);
    // All streams reconnect at once with their cursors; new messages have arrived since.
    fixture.send(&short("crowd", "m-2", 2)).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let began = Instant::now();
    let mut all = crowd(addr, "crowd", cursor.as_deref()).await;
    for response in &mut all {
        let text = until(response, "message_complete").await;
        assert!(text.contains("\"m-2\"") && !text.contains("\"m-1\""), "{text}");
    }
    println!("{CROWD} resumed in {:?}", began.elapsed());
    drop(all);
    unharmed(&fixture, before, 120).await;
    fixture.audit(vec![]).await;
}

/// Opens `count` streams, one after the other.
async fn few(fixture: &Fixture, count: usize) -> (SocketAddr, Vec<Response>) {
    let addr = fixture.fleet.gateway_addrs()[0];
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(http::open(addr, "/v1/threads/few/events", &[]).await.unwrap());
    }
    (addr, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_so_many_places_and_gets_them_back() {
    let fixture =
        Fixture::with(|options| impatient(options).with_env("ANTIPHON_MAX_CONNECTIONS_PER_IP", 5)).await;
    let (addr, mut all) = few(&fixture, 5).await;
    let refused = async || {
        fixture.fleet.gateways[0].metrics().await.unwrap().sum("antiphon_gateway_connections_rejected_total")
    };
    for count in 1..=3 {
        let said = shout(addr, &get("/livez", "")).await;
        assert!(said.text.is_empty(), "{said:?}");
        assert_eq!(refused().await, f64::from(count));
    }
    all.pop();
    fixture
        .until("its place is free again", LIMIT, async || {
            shout(addr, &get("/livez", "")).await.status() == Some(200)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_than_there_is_room_for_wait_for_a_place() {
    let fixture = Fixture::with(|options| impatient(options).with_env("ANTIPHON_MAX_CONNECTIONS", 4)).await;
    let (addr, mut all) = few(&fixture, 4).await;
    let request = get("/livez", "");
    let mut waiting = Box::pin(shout(addr, &request));
    assert!(timeout(Duration::from_millis(700), waiting.as_mut()).await.is_err(), "a fifth connection");
    all.pop();
    let said = timeout(LIMIT, waiting).await.unwrap();
    assert_eq!(said.status(), Some(200), "{said:?}");
}
