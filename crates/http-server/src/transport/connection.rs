//! One connection: its HTTP version, its requests (one after the other or concurrent), and its end.
//!
//! Invariant: a cut response never ends cleanly. Over HTTP/1.1 the connection is dropped before the
//! last chunk; over HTTP/2 the stream is reset.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::metrics;
use crate::transport::event_stream::EventStreamWriter;
use crate::transport::extensions::{BodyTimeout, ClientIp, ConnectionHandle};
use crate::transport::header_timer::HeaderTimer;
use crate::transport::http2::{FlowControlledBody, ResponseExecutor, StreamHandle};
use crate::transport::ip_limit::{IpLimiter, IpPermit};
use crate::transport::limits::HttpLimits;
use crate::transport::stream_handover::StreamHandover;
use crate::transport::timeout_stream::{TimeoutStream, Version};
use crate::transport::trusted_proxies::TrustedProxies;
use crate::transport::wake_gated::WakeGated;

const FORWARDED_FOR: &str = "x-forwarded-for";
/// Small, because buffers between the gateway and the client hide how far it lags.
const HTTP1_BUFFER: usize = 64 * 1024;
const HTTP2_SEND_BUFFER: usize = 64 * 1024;
/// The longest cursor, which may be a header, has 20 KiB.
const HTTP2_HEADER_BYTES: u32 = 32 * 1024;
const HTTP2_STREAMS: u32 = 256;
/// Bytes of bodies that a peer may send before they are read: per stream, and per connection.
const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 256 * 1024;
/// Interval between pings. A peer that does not answer a ping within the same time is gone.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// During a drain, time for a connection to send its first head.
const LATE_HEAD: Duration = Duration::from_secs(1);

/// Makes the response to a refused request from the request's URI and Origin.
pub(crate) type Refuse = Arc<dyn Fn(Refusal, &Uri, Option<&HeaderValue>) -> Response + Send + Sync>;

/// Why a connection refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Draining,
    /// The client's address has the maximum number of requests in progress.
    TooManyRequests,
    /// The gateway has the maximum number of requests in progress.
    TooManyStreams,
}

/// State shared by all connections.
pub(crate) struct ConnectionContext {
    pub(crate) router: Router,
    pub(crate) refuse: Refuse,
    pub(crate) limits: HttpLimits,
    pub(crate) ip_limiter: IpLimiter,
    pub(crate) trusted_proxies: TrustedProxies,
    /// Requests that may be in progress on HTTP/2 connections.
    pub(crate) streams: Arc<Semaphore>,
    /// When cancelled, connections begin nothing new.
    pub(crate) drain: CancellationToken,
    /// When cancelled, everything that is still open is dropped.
    pub(crate) abort: CancellationToken,
}

/// Serves a connection to its end.
pub(crate) async fn serve(shared: Arc<ConnectionContext>, stream: TcpStream, peer: IpAddr) {
    metrics::connections(1.0);
    let cut = shared.abort.child_token();
    // Responses over HTTP/2 are separate tasks, which this guard ends with the connection.
    let _ends = cut.clone().drop_guard();
    let mut io = TimeoutStream::new(stream, shared.limits.write_timeout);
    // Boxed so that it can be freed: most connections are idle, so each must stay small.
    let ended = match Box::pin(shared.sniff(&mut io)).await {
        Some(Version::Http1) => match Box::pin(http1(&shared, io, peer, cut)).await {
            Ok(Some(stream)) => stream.await,
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Some(Version::Http2) => Box::pin(http2(&shared, io, peer, cut)).await.map_err(axum::BoxError::from),
        None => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
    metrics::connections(-1.0);
}

impl ConnectionContext {
    /// `None` when the client sends nothing, or too little, for too long.
    async fn sniff(&self, io: &mut TimeoutStream) -> Option<Version> {
        let too_late = async {
            tokio::select! {
                () = tokio::time::sleep(self.limits.head_timeout) => {}
                () = async { self.drain.cancelled().await; tokio::time::sleep(LATE_HEAD).await } => {}
                () = self.abort.cancelled() => {}
            }
        };
        tokio::select! {
            version = io.sniff() => version.ok().flatten(),
            () = too_late => None,
        }
    }

    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        client: IpAddr,
        connection: ConnectionHandle,
    ) -> Result<Response, Infallible> {
        let mut request = request.map(Body::new);
        let extensions = request.extensions_mut();
        extensions.insert(connection);
        extensions.insert(ClientIp(client));
        extensions.insert(BodyTimeout(self.limits.body_timeout));
        let is_repeatable =
            request.method() == Method::GET || request.headers().contains_key("idempotency-key");
        let is_http1 = request.version() < hyper::Version::HTTP_2;
        let (uri, origin) = (request.uri().clone(), request.headers().get(header::ORIGIN).cloned());
        let mut response = self.router.clone().call(request).await?;
        if !self.drain.is_cancelled() {
            return Ok(response);
        }
        // A drain would cut the stream at once, so a repeatable request is refused instead. An
        // input without a key may be stored already: its sender must learn the turn.
        if is_repeatable && is_stream(&response) {
            response = (self.refuse)(Refusal::Draining, &uri, origin.as_ref());
        }
        if is_http1 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// The client that sent a request.
    fn client<B>(&self, request: &hyper::Request<B>, peer: IpAddr) -> IpAddr {
        let forwarded = request.headers().get_all(FORWARDED_FOR).into_iter().map(HeaderValue::as_bytes);
        self.trusted_proxies.client(peer, forwarded)
    }

    /// Answers a request on a connection that serves one request after the other. Connections of a
    /// trusted proxy are not counted, so each of their requests takes a place instead.
    async fn answer_http1(
        &self,
        request: hyper::Request<Incoming>,
        peer: IpAddr,
        connection: ConnectionHandle,
    ) -> Result<Response, Infallible> {
        if !self.trusted_proxies.trusts(peer) {
            return self.answer(request, peer, connection).await;
        }
        let client = self.client(&request, peer);
        let Some(place) = self.ip_limiter.admit(client) else {
            let origin = request.headers().get(header::ORIGIN);
            return Ok((self.refuse)(Refusal::TooManyRequests, request.uri(), origin));
        };
        let response = self.answer(request, client, connection).await?;
        Ok(response.map(|body| Body::new(FlowControlledBody::new(body, None, place))))
    }

    /// Takes a place for a concurrent request.
    fn acquire_request_permits(&self, client: IpAddr) -> Result<(OwnedSemaphorePermit, IpPermit), Refusal> {
        let place = self.ip_limiter.admit(client).ok_or(Refusal::TooManyRequests)?;
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Refusal::TooManyStreams)?;
        Ok((permit, place))
    }
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The future that writes an event stream to its end.
type StreamWriting = BoxFuture<'static, Result<(), axum::BoxError>>;

/// Writes an event stream to its end, or until it is cut.
fn write_stream(mut stream: EventStreamWriter, cut: CancellationToken) -> StreamWriting {
    Box::pin(async move {
        let cut = WakeGated::new(cut.cancelled_owned());
        tokio::select! {
            biased;
            ended = &mut stream => Ok(ended?),
            () = cut => Ok(()),
        }
    })
}

/// Serves requests until the connection ends or one is answered with an event stream. In that case
/// the result is the future that writes the stream.
async fn http1(
    shared: &ConnectionContext,
    io: TimeoutStream,
    peer: IpAddr,
    cut: CancellationToken,
) -> hyper::Result<Option<StreamWriting>> {
    let (handle, ends, handover) = (ConnectionHandle(cut.clone()), io.ends(), io.handover());
    let is_used = AtomicBool::new(false);
    let service = service_fn(|request| {
        is_used.store(true, Ordering::Relaxed);
        let has_no_chunks = request.version() < hyper::Version::HTTP_11;
        let may_be_taken = StreamHandover::is_possible(&request);
        let (answer, ends, handover) = (shared.answer_http1(request, peer, handle.clone()), &ends, &handover);
        // hyper keeps room for a request's future for as long as the connection lasts.
        Box::pin(answer.map(move |answer| {
            answer.map(|mut response| {
                if is_stream(&response) {
                    if has_no_chunks {
                        ends.by_reset();
                    } else if may_be_taken {
                        handover.offer(&mut response);
                    }
                }
                response
            })
        }))
    });
    let mut served = http1::Builder::new()
        .timer(HeaderTimer { has_read: io.has_read(), head_timeout: shared.limits.head_timeout })
        // This timeout counts from the end of the previous request.
        .header_read_timeout(shared.limits.idle_timeout)
        .max_buf_size(HTTP1_BUFFER)
        .serve_connection(TokioIo::new(io), service);
    let signal = async {
        let leaves = async {
            shared.drain.cancelled().await;
            // On shutdown hyper drops a connection of which it has read nothing, but a head may be
            // on its way.
            if !is_used.load(Ordering::Relaxed) {
                tokio::time::sleep(LATE_HEAD).await;
            }
        };
        tokio::select! {
            () = cut.cancelled() => Signal::Cut,
            () = leaves => Signal::Leave,
        }
    };
    let body = tokio::select! {
        biased;
        body = until_stream(&mut served, &handover) => body?,
        signal = WakeGated::new(signal) => {
            match signal {
                Signal::Cut => return Ok(None),
                Signal::Leave => Pin::new(&mut served).graceful_shutdown(),
            }
            tokio::select! {
                body = until_stream(&mut served, &handover) => body?,
                () = cut.cancelled() => return Ok(None),
            }
        }
    };
    Ok(body.map(|body| {
        write_stream(EventStreamWriter::new(served.into_parts().io.into_inner(), body), cut.clone())
    }))
}

/// The body of an event stream whose head is written; `None` when the connection has ended.
async fn until_stream<C>(served: &mut C, handover: &StreamHandover) -> hyper::Result<Option<Body>>
where
    C: Future<Output = hyper::Result<()>> + Unpin,
{
    poll_fn(|context| match served.poll_unpin(context) {
        Poll::Ready(ended) => Poll::Ready(ended.map(|()| None)),
        Poll::Pending => handover.take().map_or(Poll::Pending, |body| Poll::Ready(Ok(Some(body)))),
    })
    .await
}

/// What happens to a connection while it serves requests.
#[derive(Debug, Clone, Copy)]
enum Signal {
    Cut,
    Leave,
}

async fn http2(
    shared: &Arc<ConnectionContext>,
    io: TimeoutStream,
    peer: IpAddr,
    cut: CancellationToken,
) -> hyper::Result<()> {
    let streams = ResponseExecutor::new(cut.clone(), shared.limits.write_timeout);
    let service = service_fn(|request| {
        let shared = Arc::clone(shared);
        async move { Ok::<_, Infallible>(serve_http2_request(&shared, request, peer).await) }
    });
    // h2 bounds the resets, settings and parts of heads of a peer, and ends the connection.
    let served = http2::Builder::new(streams.clone())
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_send_buf_size(HTTP2_SEND_BUFFER)
        .max_header_list_size(HTTP2_HEADER_BYTES)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .keep_alive_interval(HTTP2_PING_EVERY)
        .serve_connection(TokioIo::new(io), service);
    let mut served = std::pin::pin!(served);
    let (mut is_closing, mut idle) = (false, Idle::new(shared.limits.idle_timeout));
    loop {
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = cut.cancelled() => return Ok(()),
            () = shared.drain.cancelled(), if !is_closing => {}
            // As over HTTP/1.1, a connection without requests ends after the idle time; a peer that
            // does not close it then is dropped after the same time again.
            () = idle.lasts(&streams) => if is_closing { return Ok(()) },
        }
        // Sends GOAWAY; open streams continue.
        is_closing = true;
        served.as_mut().graceful_shutdown();
    }
}

/// Tracks how long a connection has had no stream.
struct Idle {
    ticks: tokio::time::Interval,
    in_a_row: u32,
}

impl Idle {
    const TICKS: u32 = 2;

    fn new(timeout: Duration) -> Self {
        let every = timeout / Self::TICKS;
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self { ticks, in_a_row: 0 }
    }

    /// Returns after each timeout without a stream.
    async fn lasts(&mut self, streams: &ResponseExecutor) {
        while self.in_a_row < Self::TICKS {
            self.ticks.tick().await;
            self.in_a_row = if streams.open() == 0 { self.in_a_row + 1 } else { 0 };
        }
        self.in_a_row = 0;
    }
}

async fn serve_http2_request(
    shared: &ConnectionContext,
    request: hyper::Request<Incoming>,
    peer: IpAddr,
) -> hyper::Response<FlowControlledBody<Option<(OwnedSemaphorePermit, IpPermit)>>> {
    let handle = StreamHandle::get();
    let client = shared.client(&request, peer);
    let (response, permits) = match shared.acquire_request_permits(client) {
        Ok(permits) => {
            let cut = handle.as_ref().map(|handle| handle.cut.clone()).unwrap_or_default();
            let Ok(response) = shared.answer(request, client, ConnectionHandle(cut)).await;
            (response, Some(permits))
        }
        Err(why) => ((shared.refuse)(why, request.uri(), request.headers().get(header::ORIGIN)), None),
    };
    response.map(|body| FlowControlledBody::new(body, handle.as_ref(), permits))
}
