//! A response body that keeps its viewer's seat taken, and counts among its tenant's streams, until it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame};

use crate::app::authorize::OpenStream;
use crate::streaming::registry::Seat;

#[derive(Debug)]
pub(crate) struct Seated<B> {
    body: B,
    _seat: Seat,
    _place: Option<OpenStream>,
}

impl<B> Seated<B> {
    pub(crate) fn new(body: B, seat: Seat, place: Option<OpenStream>) -> Self {
        Self { body, _seat: seat, _place: place }
    }
}

impl<B: Body + Unpin> Body for Seated<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}
