//! Clients that leave while their answer is streamed.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_inline_client_leaves_nothing_behind() {
    let limits = gateway::GatewayLimits {
        subscribers_per_thread: 1,
        linger_ms: 0,
        ..gateway::GatewayLimits::default()
    };
    let fixture = Fixture::with(limits, 1).await;
    let _owner = fixture.owner(1, vec![]).await;
    let orders = quiet(&fixture).await;
    let body = r#"{"content":"x"}"#;
    let request = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 64];
    stream.read_exact(&mut head).await.unwrap();
    assert!(head.starts_with(b"HTTP/1.1 200 OK"));
    let refused = post_in_line(&fixture).await;
    assert_eq!(refused.problem(), (503, "too_many_subscribers".to_owned(), true));
    assert_eq!(orders.count().await, 1, "a refused request has stored nothing");
    drop(stream);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let viewer = http::open(fixture.gateways[0], "/v1/threads/t1/events", &[]).await.unwrap();
    assert_eq!(viewer.status, 200);
}

async fn post_in_line(fixture: &Fixture) -> crate::sending::Reply {
    let headers = [JSON, ("accept", "text/event-stream")];
    send_with(fixture.gateways[0], "POST", MESSAGES, &headers, br#"{"content":"x"}"#).await
}
