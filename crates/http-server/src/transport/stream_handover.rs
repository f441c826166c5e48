//! Takes the body of a response over from hyper, see `event_stream`.

use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Version, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use hyper::body::{Body as _, Incoming};

/// The head is not written yet.
const OFFERED: u8 = 1;
/// The head is in hyper's buffer.
const HEAD_BUFFERED: u8 = 2;
/// The socket has the head.
const HEAD_WRITTEN: u8 = 3;

/// Passes the body of a response from hyper to the writer of its stream. Clones share it; a
/// connection has one.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamHandover(Arc<HandoverState>);

#[derive(Debug, Default)]
struct HandoverState {
    phase: AtomicU8,
    body: Mutex<Option<Body>>,
}

impl StreamHandover {
    /// Whether the stream that answers the request may be taken from hyper: nothing of the request
    /// is left to read, and the response body has chunks.
    pub(crate) fn is_possible(request: &Request<Incoming>) -> bool {
        request.method() == Method::GET
            && request.version() == Version::HTTP_11
            && request.body().is_end_stream()
    }

    /// Takes the body out of the response, which then ends with the connection. A complete body has
    /// a length instead of chunks, and stays.
    pub(crate) fn offer(&self, response: &mut Response) {
        if response.body().size_hint().exact().is_some() {
            return;
        }
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        let head_alone = Body::new(HeadAlone(self.clone()));
        let body = std::mem::replace(response.body_mut(), head_alone);
        *self.0.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        self.0.phase.store(OFFERED, Ordering::Relaxed);
    }

    /// Everything that hyper has given to the socket was written.
    pub(crate) fn flushed(&self) {
        self.advance(HEAD_BUFFERED, HEAD_WRITTEN);
    }

    /// Moves only forwards: hyper asks for the first frame, and flushes, more than once.
    fn advance(&self, from: u8, to: u8) {
        if self.0.phase.load(Ordering::Relaxed) == from {
            self.0.phase.store(to, Ordering::Relaxed);
        }
    }

    /// The body, once, as soon as its head is written.
    pub(crate) fn take(&self) -> Option<Body> {
        if self.0.phase.load(Ordering::Relaxed) != HEAD_WRITTEN {
            return None;
        }
        self.0.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Placeholder for a body of unknown length. hyper asks for its first frame when it has the head in
/// its buffer, and then flushes.
struct HeadAlone(StreamHandover);

impl http_body::Body for HeadAlone {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.advance(OFFERED, HEAD_BUFFERED);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::to_bytes;
    use futures_util::FutureExt;

    use super::*;

    fn has_frame(response: &mut Response) -> bool {
        let body = response.body_mut();
        std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_body_is_taken_once_when_its_head_is_written() {
        let handover = StreamHandover::default();
        let events = futures_util::stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"data: 1\n\n"))]);
        let mut response = Response::new(Body::from_stream(events));
        handover.offer(&mut response);
        assert_eq!(response.headers()[header::CONNECTION], "close");
        handover.flushed();
        assert!(handover.take().is_none(), "what was flushed came before its head");
        for _ in 0..2 {
            assert!(!has_frame(&mut response));
            assert!(handover.take().is_none());
        }
        handover.flushed();
        assert!(!has_frame(&mut response));
        let body = to_bytes(handover.take().unwrap(), usize::MAX).await.unwrap();
        assert_eq!(body, "data: 1\n\n");
        assert!(handover.take().is_none());
    }

    #[tokio::test]
    async fn a_body_that_is_there_as_a_whole_stays() {
        let handover = StreamHandover::default();
        let mut response = Response::new(Body::from("data: 1\n\n"));
        handover.offer(&mut response);
        assert!(response.headers().is_empty());
        assert_eq!(to_bytes(response.into_body(), usize::MAX).await.unwrap(), "data: 1\n\n");
        handover.flushed();
        assert!(handover.take().is_none());
    }
}
