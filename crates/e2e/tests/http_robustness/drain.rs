//! A gateway that is stopped while clients follow a thread, send requests, or are about to.

use std::{collections::BTreeSet, time::Instant};

use futures_util::future::join_all;
use testkit::http::{HttpRequest, ResponseBody};

use super::{
    http2::{Link, until},
    *,
};

/// Reads a body to its end; returns the text, and whether it ended cleanly.
async fn to_the_end(body: &mut ResponseBody) -> (String, bool) {
    let mut all = Vec::new();
    loop {
        match timeout(LIMIT, body.read(&mut all)).await.expect("it never ends") {
            Ok(0) => return (String::from_utf8_lossy(&all).into_owned(), true),
            Ok(_) => {}
            Err(_) => return (String::from_utf8_lossy(&all).into_owned(), false),
        }
    }
}

fn retry_of(text: &str) -> u32 {
    text.lines()
        .find_map(|line| line.strip_prefix("retry: ").filter(|ms| *ms != "1000"))
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_every_client_in_its_own_form() {
    let mut fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let mut native = http::open(addr, "/v1/threads/chat/events", &[]).await.unwrap();
    let said = br#"{"id":"chat","messages":[{"role":"user","id":"m","parts":[{"type":"text","text":"slowly and for long, and longer still, and again"}]}]}"#;
    let headers = [("content-type", "application/json")];
    let request = HttpRequest { method: "POST", path: "/api/chat", headers: &headers, body: said };
    let mut adapted = http::begin(addr, request).await.unwrap();
    let mut link = Link::open(addr, 1 << 20).await;
    let mut viewer = link.get("/v1/threads/chat/events").await;
    let mut seen = String::new();
    until(viewer.body_mut(), &mut seen, "\"chunk_id\":2").await.unwrap();
    // One client has sent nothing yet, and one is in the middle of its head.
    let mut late = TcpStream::connect(addr).await.unwrap();
    let mut half = TcpStream::connect(addr).await.unwrap();
    half.write_all(b"GET /v1/threads/chat/events HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    fixture.fleet.gateways[0].terminate();
    tokio::time::sleep(Duration::from_millis(150)).await;
    half.write_all(b"\r\n").await.unwrap();
    late.write_all(b"GET /v1/threads/chat/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    for said in [rest(&mut half).await, rest(&mut late).await] {
        assert_eq!((said.status(), said.answers()), (Some(503), 1), "{said:?}");
        assert!(said.has("retry-after: 1") && said.has("connection: close"), "{said:?}");
        assert!(
            said.body().contains("\"draining\"") && said.body().contains("\"retryable\":true"),
            "{said:?}"
        );
    }
    let (text, is_clean) = to_the_end(&mut native.body).await;
    assert!(text.contains("event: drain") && (100..500).contains(&retry_of(&text)), "{text}");
    assert!(!is_clean, "an answer was under way");
    let (text, is_clean) = to_the_end(&mut adapted.body).await;
    assert!(
        is_clean && text.contains("text-delta") && text.contains("[DONE]") && !text.contains("drain"),
        "{text}"
    );
    until(viewer.body_mut(), &mut seen, "event: drain").await.unwrap();
    let end = timeout(LIMIT, viewer.body_mut().data()).await.unwrap().expect("a clean end").unwrap_err();
    assert!(end.is_reset(), "{end}");
    // The connection ended by GOAWAY, without an error.
    timeout(LIMIT, link.connection).await.unwrap().unwrap().unwrap();
    let status = fixture.fleet.gateways[0].ended(LIMIT).await.unwrap();
    println!("the gateway ended after {:?}", began.elapsed());
    assert!(status.success() && began.elapsed() < LIMIT, "{status} {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_not_sent_away_at_once() {
    let mut fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let mut viewers = Vec::new();
    for n in 0..600 {
        viewers.push(http::open(addr, &format!("/v1/threads/many-{}/events", n % 7), &[]).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    fixture.fleet.gateways[0].terminate();
    let leave = async |mut body: ResponseBody| {
        let (text, is_clean) = to_the_end(&mut body).await;
        assert!(text.contains("event: drain") && !is_clean, "{text}");
        (began.elapsed(), retry_of(&text))
    };
    let mut left = join_all(viewers.into_iter().map(|viewer| leave(viewer.body))).await;
    left.sort_unstable();
    let (first, half, last) = (left[0].0, left[300].0, left[599].0);
    println!("first after {first:?}, half after {half:?}, last after {last:?}");
    assert!(last - first > Duration::from_millis(400) && half - first > Duration::from_millis(150));
    assert!(last < Duration::from_secs(3), "{last:?}");
    let pauses: BTreeSet<u32> = left.into_iter().map(|(_, retry)| retry).collect();
    assert!(pauses.len() > 300 && pauses.iter().all(|ms| (100..500).contains(ms)), "{pauses:?}");
    let status = fixture.fleet.gateways[0].ended(LIMIT).await.unwrap();
    assert!(status.success(), "{status}");
}
