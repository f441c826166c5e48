//! A response body that holds its subscriber's permit, and counts among its tenant's streams, until it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame};

use crate::auth::quota::TenantStreamPermit;
use crate::error::Problem;

use crate::streaming::resume;
use crate::streaming::subscriber::JoinReceiver;
use crate::streaming::subscriber::{SubscribeError, SubscriberPermit};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use feed::BadCursor;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct SubscriberBody<B> {
    body: B,
    _permit: SubscriberPermit,
    _place: Option<TenantStreamPermit>,
}

impl<B> SubscriberBody<B> {
    pub(crate) fn new(body: B, permit: SubscriberPermit, place: Option<TenantStreamPermit>) -> Self {
        Self { body, _permit: permit, _place: place }
    }
}

impl<B: Body + Unpin> Body for SubscriberBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

/// How long a request waits until its cursor is known to be one of the thread's.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until the stream has its place in the thread (from then on nothing that ends is missed) and its cursor is checked. After the
/// timeout the stream begins unchecked.
pub(crate) async fn until_verdict(verdict: JoinReceiver) -> Result<(), Problem> {
    match tokio::time::timeout(VERDICT_TIMEOUT, verdict).await {
        Ok(Ok(Err(BadCursor::Unknown))) => Err(resume::unknown()),
        Ok(Ok(Err(BadCursor::Ahead))) => Err(resume::ahead()),
        Ok(Ok(Ok(())) | Err(_)) | Err(_) => Ok(()),
    }
}

pub(crate) fn refused(refused: SubscribeError) -> Problem {
    Problem::unavailable(refused.code(), refused.to_string())
}

pub(crate) fn stream<B>(body: B) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let mut response = Response::new(axum::body::Body::new(body));
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, "text/event-stream; charset=utf-8");
    set(header::CACHE_CONTROL, "no-cache, no-store, no-transform");
    set(HeaderName::from_static("x-accel-buffering"), "no");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}
