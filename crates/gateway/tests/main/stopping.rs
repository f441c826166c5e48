//! A gateway that is about to stop: requests that end in time complete, and clients do not repeat
//! the others by themselves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http_server::HttpLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::command_log::CommandLog;
use crate::fixture::Fixture;
use crate::sending::{Reply, send_with};

const COMPLETIONS: &str = "/v1/chat/completions";

fn limits(close_delay: Duration) -> HttpLimits {
    HttpLimits { close_delay, drain: Duration::from_secs(2), ..HttpLimits::default() }
}

/// A completion of the thread `t1`, read as a whole.
fn complete(fixture: &Fixture, key: Option<&'static str>) -> JoinHandle<Reply> {
    let gateway = fixture.gateways[0];
    runtime::spawn_named("completion", async move {
        let body = json!({
            "model": "t1", "metadata": {"thread_id": "t1"}, "messages": [{"role": "user", "content": "hello"}]
        });
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        send_with(gateway, "POST", COMPLETIONS, &headers, body.to_string().as_bytes()).await
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_ends_in_time_is_whole() {
    let fixture = Fixture::with_http(limits(Duration::ZERO), 1).await;
    let (_owner, orders) = (fixture.owner(1, vec![]).await, CommandLog::read(&fixture, |_| None).await);
    let waiting = complete(&fixture, None);
    let opened = orders.turn(0).await;
    fixture.drain.cancel();
    tokio::time::sleep(Duration::from_millis(800)).await;
    let answer = opened.turn.answer(0);
    fixture.send(answer.as_str(), 0, "whole.").await;
    fixture.commit(answer.as_str(), 10, "whole.").await;
    fixture.send_end(answer.as_str(), 1, 10).await;
    let reply = waiting.await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "whole.");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_waited_for_is_not_asked_for_twice() {
    for (key, again, code, pause) in
        [(None, Some("false"), "answer_goes_on", None), (Some("k"), None, "stream_aborted", Some("1"))]
    {
        let fixture = Fixture::with_http(limits(Duration::ZERO), 1).await;
        let (_owner, orders) = (fixture.owner(1, vec![]).await, CommandLog::read(&fixture, |_| None).await);
        let waiting = complete(&fixture, key);
        let turn = orders.turn(0).await.turn;
        let began = Instant::now();
        fixture.drain.cancel();
        let reply = waiting.await.unwrap();
        assert!(
            began.elapsed() > Duration::from_secs(1),
            "refused while there was time: {:?}",
            began.elapsed()
        );
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!(code)), "{reply:?}");
        assert_eq!((reply.header("x-should-retry"), reply.header("retry-after")), (again, pause));
        if key.is_none() {
            let said = reply.text.clone();
            assert!(said.contains(&format!("message {turn}-a of thread t1")), "{said}");
        }
    }
}

/// Sends a request on a connection that stays open, and reads the response.
async fn ask(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.ok()?;
    let mut answer = vec![0; 4096];
    match stream.read(&mut answer).await {
        Ok(0) | Err(_) => None,
        Ok(length) => Some(String::from_utf8_lossy(&answer[..length]).into_owned()),
    }
}

async fn is_open(gateway: SocketAddr) -> bool {
    TcpStream::connect(gateway).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_taken_until_load_balancers_have_forgotten_it() {
    let fixture = Fixture::with_http(limits(Duration::from_secs(2)), 1).await;
    let mut before = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    assert!(ask(&mut before).await.unwrap().starts_with("HTTP/1.1 200"));
    fixture.drain.cancel();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert!(is_open(fixture.gateways[0]).await);
    let answer = ask(&mut before).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{answer}");
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    assert!(!is_open(fixture.gateways[0]).await);
    assert_eq!(ask(&mut before).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_outlives_a_slow_head() {
    let mut limits = limits(Duration::ZERO);
    limits.head_timeout = Duration::from_millis(500);
    limits.idle_timeout = Duration::from_secs(3);
    let fixture = Fixture::with_http(limits, 1).await;
    let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    assert!(ask(&mut stream).await.is_some());
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    assert!(ask(&mut stream).await.is_some(), "an idle connection was closed like a slow head");
    let began = Instant::now();
    stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.ok();
    assert!(
        began.elapsed() < Duration::from_millis(1_500),
        "a slow head was waited for: {:?}",
        began.elapsed()
    );
    let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    assert!(ask(&mut stream).await.is_some());
    let began = Instant::now();
    stream.read_to_end(&mut Vec::new()).await.ok();
    assert!((2_500..4_500).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}
