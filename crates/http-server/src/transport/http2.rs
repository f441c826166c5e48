//! The streams of one HTTP/2 connection, each of which can be cut without the others.
//!
//! Each response is a task ([`ResponseExecutor`] spawns them for hyper). When it is dropped it
//! resets its stream, and h2 frees what was queued. A subscriber that is cut, or a peer that gives
//! one stream no window, does not affect the other streams.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use runtime::spawn_named;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::transport::wake_gated::WakeGated;

/// A body goes to h2 in pieces of this size, and the next one only when the peer has room for more.
/// The data that waits for a window is thus bounded by the send buffer and one piece.
const BODY_CHUNK: usize = 16 * 1024;

tokio::task_local! {
    static OWN: StreamHandle;
}

/// Handle of a response's task to its own stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamHandle {
    /// Cancelling it resets the stream.
    pub(crate) cut: CancellationToken,
    progress: BodyProgress,
}

impl StreamHandle {
    /// The handle of the current task's stream; `None` in any other task.
    pub(crate) fn get() -> Option<Self> {
        OWN.try_with(Clone::clone).ok()
    }
}

/// Runs the responses of one connection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ResponseExecutor {
    connection: CancellationToken,
    timeout: Duration,
    open: Arc<AtomicUsize>,
}

impl ResponseExecutor {
    /// Runs responses that end with `connection`. A response is cut when its peer has accepted
    /// nothing for `timeout`.
    pub(crate) fn new(connection: CancellationToken, timeout: Duration) -> Self {
        Self { connection, timeout, open: Arc::default() }
    }

    /// Number of open responses.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl<F> hyper::rt::Executor<F> for ResponseExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, response: F) {
        let (cut, progress) = (self.connection.child_token(), BodyProgress::default());
        let handle = StreamHandle { cut: cut.clone(), progress: progress.clone() };
        let counted = Counted::new(&self.open);
        let mut stall = WindowTimeout { progress, timeout: self.timeout, sleep: None };
        spawn_named("http stream", async move {
            let _counted = counted;
            let mut response = pin!(OWN.scope(handle, response));
            tokio::select! {
                // The response is polled before the stall check, which depends on what the response
                // did.
                biased;
                () = response.as_mut() => {}
                () = WakeGated::new(cut.cancelled()) => {}
                () = poll_fn(|context| stall.poll(context)) => metrics::write_timeout(),
            }
        });
    }
}

#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The time since which the last piece of a body has been waiting for the peer's window.
#[derive(Debug, Clone, Default)]
struct BodyProgress(Arc<Mutex<Option<Instant>>>);

impl BodyProgress {
    fn waiting_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ready when a piece has waited for too long. It is polled in the same task whenever the response
/// is, and so sees everything that the response does.
#[derive(Debug)]
struct WindowTimeout {
    progress: BodyProgress,
    timeout: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl WindowTimeout {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(since) = *self.progress.waiting_since() else { return Poll::Pending };
            let deadline = since + self.timeout;
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            ready!(sleep.as_mut().poll(context));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            // The timer was set for an earlier piece: moving it only now costs nothing while all
            // goes well.
            sleep.as_mut().reset(deadline);
        }
    }
}

/// A body that is sent in pieces and records when it waits for the peer. It holds `kept` until it
/// has ended.
#[derive(Debug)]
pub(crate) struct FlowControlledBody<K> {
    body: Body,
    rest: Bytes,
    progress: Option<BodyProgress>,
    _kept: K,
}

impl<K> FlowControlledBody<K> {
    pub(crate) fn new(body: Body, handle: Option<&StreamHandle>, kept: K) -> Self {
        let progress = handle.map(|handle| handle.progress.clone());
        Self { body, rest: Bytes::new(), progress, _kept: kept }
    }
}

impl<K: Unpin> http_body::Body for FlowControlledBody<K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Some(progress) = &this.progress {
            *progress.waiting_since() = None;
        }
        if this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => this.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let length = this.rest.len().min(BODY_CHUNK);
        let piece = this.rest.split_to(length);
        if let Some(progress) = &this.progress {
            *progress.waiting_since() = Some(Instant::now());
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut content = SizeHint::new();
        content.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            content.set_upper(upper + rest);
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    fn stream_handle() -> StreamHandle {
        StreamHandle { cut: CancellationToken::new(), progress: BodyProgress::default() }
    }

    #[tokio::test]
    async fn a_body_comes_in_pieces_and_ends_with_the_last() {
        let handle = stream_handle();
        let content = Bytes::from((0..40_000_u32).map(|byte| byte as u8).collect::<Vec<_>>());
        let mut body = FlowControlledBody::new(Body::from(content.clone()), Some(&handle), ());
        assert_eq!(body.size_hint().exact(), Some(40_000));
        let mut got = Vec::new();
        let mut sizes = Vec::new();
        while !body.is_end_stream() {
            let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
            let piece = frame.into_data().unwrap();
            sizes.push(piece.len());
            got.extend_from_slice(&piece);
            assert_eq!(body.size_hint().exact(), Some(40_000 - got.len() as u64));
        }
        assert_eq!((got, sizes), (content.to_vec(), vec![BODY_CHUNK, BODY_CHUNK, 40_000 - 2 * BODY_CHUNK]));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_piece_that_waits_is_a_stall() {
        let handle = stream_handle();
        let timeout = Duration::from_secs(30);
        let mut stall = WindowTimeout { progress: handle.progress.clone(), timeout, sleep: None };
        let mut is_stalled = async |within: u64| {
            let stalled = poll_fn(|context| stall.poll(context));
            tokio::time::timeout(Duration::from_secs(within), stalled).await.is_ok()
        };
        assert!(!is_stalled(100).await, "nothing waits");
        let mut body = FlowControlledBody::new(Body::from(vec![0; 3 * BODY_CHUNK]), Some(&handle), ());
        for _ in 0..2 {
            poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
            assert!(!is_stalled(20).await, "the peer takes its time, and takes it");
        }
        assert!(is_stalled(11).await);
    }
}
