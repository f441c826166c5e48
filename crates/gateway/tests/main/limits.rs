//! Slow subscribers, too many subscribers, and what remains of them.

use std::time::{Duration, Instant};

use gateway::GatewayLimits;
use testkit::http;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::Client;
use crate::fixture::Fixture;

/// A subscriber with a small window that reads nothing.
async fn stalled(fixture: &Fixture) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(fixture.gateways[0]).await.unwrap();
    stream.write_all(b"GET /v1/threads/t1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_viewer_is_cut_alone_and_never_ended() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![]).await;
    let mut slow = stalled(&fixture).await;
    let mut quick = Client::open(fixture.gateways[0], None).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let word = "x".repeat(30_000);
    for n in 0..150 {
        fixture.send("a", n, &word).await;
        assert_eq!(quick.next().await.len(), 30_002);
    }
    let mut rest = Vec::new();
    let ended = slow.read_to_end(&mut rest).await;
    assert!(rest.len() < 3_000_000, "{} bytes were held for it", rest.len());
    assert!(ended.is_err() || !rest.ends_with(b"0\r\n\r\n"), "a clean end");
    fixture.send("a", 150, "last.").await;
    assert_eq!(quick.next().await, "a:last.");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_subscribers_get_retry_after() {
    let limits = GatewayLimits { subscribers_per_thread: 2, feeds: 1, ..GatewayLimits::default() };
    let fixture = Fixture::with(limits, 1).await;
    let first = Client::open(fixture.gateways[0], None).await;
    let _second = Client::open(fixture.gateways[0], None).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for path in ["/v1/threads/t1/events", "/v1/threads/t2/events"] {
        let refused = http::open(fixture.gateways[0], path, &[]).await.unwrap();
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{path}");
    }
    drop(first);
    tokio::time::sleep(Duration::from_millis(300)).await;
    Client::open(fixture.gateways[0], None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thread_of_which_nothing_came_is_not_followed_on() {
    let fixture = Fixture::with(GatewayLimits { feeds: 1, ..GatewayLimits::default() }, 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    let status = async |thread: &str| {
        let stream = http::open(fixture.gateways[0], &format!("/v1/threads/{thread}/events"), &[]).await;
        stream.unwrap().status
    };
    for thread in ["a", "b", "c"] {
        assert_eq!(status(thread).await, 200, "{thread}");
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    fixture.send("a", 0, "one ").await;
    assert_eq!(viewer.next().await, "a:one ");
    drop(viewer);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(status("d").await, 503, "a thread of which something came is followed on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_announced_and_never_ends_cleanly() {
    let fixture = Fixture::new().await;
    let _owner = fixture.owner(1, vec![("a", 0, "one ")]).await;
    let mut viewer = Client::open(fixture.gateways[0], None).await;
    assert_eq!(viewer.next().await, "a:one ");
    let began = Instant::now();
    fixture.drain.cancel();
    assert_eq!(viewer.next().await, "drain");
    assert!(!viewer.ends_cleanly().await);
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_never_ends_is_not_waited_for() {
    let fixture = Fixture::with(GatewayLimits::default(), 1).await;
    let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    let began = Instant::now();
    stream.read_to_end(&mut Vec::new()).await.ok();
    assert!((9..14).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

/// Everything that is received within this time.
async fn read_for(stream: &mut TcpStream, time: Duration) -> String {
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(time, stream.read_to_end(&mut bytes)).await;
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_behind_that_of_a_stream_is_not_answered() {
    let fixture = Fixture::with(GatewayLimits::default(), 1).await;
    let _owner = fixture.owner(1, vec![("a", 0, "one ")]).await;
    let second = "GET /v1/threads/t1 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for (head, is_closed) in [("", true), ("content-length: 50\r\n", false)] {
        let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
        let first = format!("GET /v1/threads/t1/events HTTP/1.1\r\nhost: localhost\r\n{head}\r\n{second}");
        stream.write_all(first.as_bytes()).await.unwrap();
        stream.write_all(second.as_bytes()).await.unwrap();
        let text = read_for(&mut stream, Duration::from_secs(2)).await;
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
        assert_eq!(text.contains("\r\nconnection: close\r\n"), is_closed, "{text}");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        let (length, body) = body.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        assert!(body[..length].starts_with(": open\n") && body[length..].starts_with("\r\n"), "{text}");
        assert!(body.contains("one ") && body.ends_with("\r\n") && !body.ends_with("0\r\n\r\n"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_on_behind_its_request_is_cut() {
    let fixture = Fixture::with(GatewayLimits::default(), 1).await;
    let mut stream = stalled(&fixture).await;
    let sent = async { while stream.write_all(&[b'x'; 4_096]).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(10), sent).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_frees_its_place_in_the_stream() {
    let limits = GatewayLimits { subscribers_per_thread: 1, ..GatewayLimits::default() };
    let fixture = Fixture::with(limits, 1).await;
    for _ in 0..3 {
        drop(Client::open(fixture.gateways[0], None).await);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
