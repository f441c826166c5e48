//! HTTP/2 with a correct client, over the same port.

use ::http::{Request, Response};
use bytes::Bytes;
use h2::{Reason, RecvStream, client::SendRequest};
use testkit::load::PlannedMessage;
use tokio::task::JoinHandle;

use super::*;
use crate::fixture::short;

pub(super) struct Link {
    pub(super) requests: SendRequest<Bytes>,
    pub(super) connection: JoinHandle<Result<(), h2::Error>>,
}

impl Link {
    /// A connection whose streams each have this initial flow-control window.
    pub(super) async fn open(addr: SocketAddr, window: u32) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(16 << 20);
        let (requests, connection) = builder.handshake(stream).await.unwrap();
        Self { requests, connection: tokio::spawn(connection) }
    }

    pub(super) async fn send(&mut self, request: Request<()>) -> Result<Response<RecvStream>, h2::Error> {
        self.requests = self.requests.clone().ready().await?;
        let (response, _) = self.requests.send_request(request, true)?;
        timeout(LIMIT, response).await.expect("no answer")
    }

    pub(super) async fn get(&mut self, path: &str) -> Response<RecvStream> {
        self.send(Request::get(format!("http://localhost{path}")).body(()).unwrap()).await.unwrap()
    }
}

/// Reads on, releasing the window, until `wanted` is in the text.
pub(super) async fn until(body: &mut RecvStream, all: &mut String, wanted: &str) -> Result<(), h2::Error> {
    while !all.contains(wanted) {
        let data = timeout(LIMIT, body.data()).await.expect("nothing came").expect("a clean end")?;
        body.flow_control().release_capacity(data.len()).unwrap();
        all.push_str(std::str::from_utf8(&data).unwrap());
    }
    Ok(())
}

/// How a stream ends when its window is no longer released.
async fn end_of(body: &mut RecvStream) -> Result<(), Option<Reason>> {
    loop {
        match timeout(LIMIT, body.data()).await.expect("it goes on for ever") {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.reason()),
            None => return Ok(()),
        }
    }
}

fn of_size(thread: &str, message: &str, bytes: usize) -> PlannedMessage {
    let piece = "x".repeat(bytes.min(16_000));
    PlannedMessage::of_pieces(thread, message, &vec![piece; bytes.div_ceil(16_000)]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_streams_share_a_connection() {
    let mut fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    // A thread that is not stored is looked up at its owner, which may still be starting.
    let has_owner = async || http::get(addr, "/v1/threads/none").await.is_ok_and(|it| it.status == 404);
    fixture.until("the owner answers", WAIT_TIMEOUT, has_owner).await;
    let mut link = Link::open(addr, 1 << 20).await;
    let mut viewer = link.get("/v1/threads/two/events").await;
    assert_eq!((viewer.status().as_u16(), viewer.version()), (200, ::http::Version::HTTP_2));
    assert_eq!(viewer.headers()["x-accel-buffering"], "no");
    assert!(viewer.headers().get("connection").is_none());
    let mut seen = String::new();
    until(viewer.body_mut(), &mut seen, ": open\n").await.unwrap();
    for (path, status) in
        [("/livez", 200), ("/v1/threads/none", 404), ("/v1/threads/%ff", 400), ("/nowhere", 404)]
    {
        let mut answer = link.get(path).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        let body = timeout(LIMIT, answer.body_mut().data()).await.unwrap().unwrap().unwrap();
        assert!(status == 200 || answer.headers()["content-type"] == "application/problem+json", "{body:?}");
        assert_eq!(end_of(answer.body_mut()).await, Ok(()));
    }
    fixture.send(&short("two", "m", 1)).await;
    until(viewer.body_mut(), &mut seen, "message_complete").await.unwrap();
    // The most streams that are allowed at once.
    let mut many = Vec::new();
    for _ in 0..255 {
        many.push(link.get("/v1/threads/many/events").await);
    }
    {
        let mut next = std::pin::pin!(link.get("/livez"));
        assert!(timeout(Duration::from_millis(300), next.as_mut()).await.is_err(), "a 257th stream");
        drop(many);
        assert_eq!(next.await.status().as_u16(), 200);
    }
    // Headers that are too long fail only their request.
    let long = Request::get("http://localhost/livez").header("x-long", "x".repeat(40_000)).body(()).unwrap();
    match link.send(long).await {
        Ok(answer) => assert_eq!(answer.status().as_u16(), 431),
        Err(error) => assert!(error.reason().is_some(), "{error}"),
    }
    let mut link = Link::open(addr, 1 << 20).await;
    let cursor = format!("1{}", "~a".repeat(9_000));
    let longest = Request::get("http://localhost/v1/threads/two/events").header("last-event-id", cursor);
    let answer = link.send(longest.body(()).unwrap()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 400, "it is read, and no cursor");
    assert_eq!(link.get("/livez").await.status().as_u16(), 200);
    // No request is in progress: the gateway closes the connection.
    timeout(LIMIT, link.connection).await.expect("an idle connection stays").unwrap().unwrap();
    fixture.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_takes_nothing_is_reset_alone() {
    let fixture = Fixture::with(impatient).await;
    let mut link = Link::open(fixture.fleet.gateway_addrs()[0], 2_000).await;
    let mut slow = link.get("/v1/threads/two/events").await;
    let mut quick = link.get("/v1/threads/two/events").await;
    let mut seen = String::new();
    until(quick.body_mut(), &mut seen, ": open\n").await.unwrap();
    // Far less than the allowed lag, and more than the window.
    fixture.send_part(&of_size("two", "m-1", 16_000), 0..1).await;
    until(quick.body_mut(), &mut seen, "message_complete").await.unwrap();
    let began = std::time::Instant::now();
    assert_eq!(end_of(slow.body_mut()).await, Err(Some(Reason::CANCEL)));
    println!("reset after {:?}", began.elapsed());
    assert!((WRITE_TIMEOUT / 2..WRITE_TIMEOUT * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    let stalled =
        fixture.fleet.gateways[0].metrics().await.unwrap().sum("antiphon_gateway_write_timeouts_total");
    assert_eq!(stalled, 1.0);
    fixture.send_part(&of_size("two", "m-2", 16_000), 0..1).await;
    let mut more = String::new();
    until(quick.body_mut(), &mut more, "message_complete").await.unwrap();
    assert_eq!(link.get("/livez").await.status().as_u16(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lags_is_reset_alone_and_at_once() {
    let fixture = Fixture::with(|options| {
        impatient(options)
            .with_env("ANTIPHON_SUBSCRIBER_BUFFER_BYTES", 65_536)
            .with_env("ANTIPHON_WRITE_TIMEOUT_SECONDS", 30)
    })
    .await;
    let mut link = Link::open(fixture.fleet.gateway_addrs()[0], 20_000).await;
    let mut slow = link.get("/v1/threads/two/events").await;
    let mut quick = link.get("/v1/threads/two/events").await;
    let mut seen = String::new();
    until(quick.body_mut(), &mut seen, ": open\n").await.unwrap();
    let message = of_size("two", "m", 320_000);
    for id in 0..message.chunks.len() {
        fixture.send_part(&message, id..id + 1).await;
        until(quick.body_mut(), &mut seen, &format!("\"chunk_id\":{id},")).await.unwrap();
    }
    until(quick.body_mut(), &mut seen, "message_complete").await.unwrap();
    assert_eq!(end_of(slow.body_mut()).await, Err(Some(Reason::CANCEL)));
    let metrics = fixture.fleet.gateways[0].metrics().await.unwrap();
    assert_eq!(metrics.sum_where("antiphon_gateway_subscribers_aborted_total", "reason", "lag"), 1.0);
    assert_eq!(metrics.sum("antiphon_gateway_subscribers"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_count_for_their_address() {
    let fixture =
        Fixture::with(|options| impatient(options).with_env("ANTIPHON_MAX_CONNECTIONS_PER_IP", 5)).await;
    let mut link = Link::open(fixture.fleet.gateway_addrs()[0], 65_535).await;
    let mut viewers = Vec::new();
    for _ in 0..4 {
        viewers.push(link.get("/v1/threads/two/events").await);
    }
    let refused = link.get("/livez").await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    viewers.pop();
    fixture
        .until("the place is free again", LIMIT, async || link.get("/livez").await.status().as_u16() == 200)
        .await;
}
