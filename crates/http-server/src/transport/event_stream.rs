//! An event stream over HTTP/1.1: hyper reads the request and writes the head of the response; then
//! this module takes the connection over and writes the body.
//!
//! Most connections of a gateway are such streams, and they are idle most of the time. hyper holds
//! two buffers of 8 KiB for each connection, and passes each event through its own buffers.
//!
//! Invariant: a body that fails or is cut is not followed by the last chunk.

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::timeout_stream::TimeoutStream;

/// Bytes that a client may send after its request. They are dropped: the response announces that
/// the connection ends.
const MOST_DROPPED: usize = 64 * 1024;

/// Writes a body in chunks until it ends, fails, or the client is gone.
#[derive(Debug)]
pub(crate) struct EventStreamWriter {
    io: TimeoutStream,
    body: Body,
    chunk: Option<BodyChunk>,
    is_complete: bool,
    /// Bytes received after the request.
    dropped: usize,
}

impl EventStreamWriter {
    pub(crate) fn new(io: TimeoutStream, body: Body) -> Self {
        Self { io, body, chunk: None, is_complete: false, dropped: 0 }
    }

    /// Ready when the client has closed.
    ///
    /// # Errors
    /// The connection broke, or the client sends more than allowed.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; 256];
        loop {
            let mut buffer = ReadBuf::new(&mut buffer);
            ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer))?;
            match buffer.filled().len() {
                0 => return Poll::Ready(Ok(())),
                read => self.dropped += read,
            }
            if self.dropped > MOST_DROPPED {
                let detail = "the client sends more than its request";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, detail)));
            }
        }
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(chunk) = &mut self.chunk {
            match ready!(Pin::new(&mut self.io).poll_write_vectored(context, &chunk.rest()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => chunk.written += written,
            }
            if chunk.is_written() {
                self.chunk = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Future for EventStreamWriter {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Poll::Ready(closed) = this.poll_closed(context) {
            return Poll::Ready(closed);
        }
        loop {
            ready!(this.poll_written(context))?;
            if this.is_complete {
                return Pin::new(&mut this.io).poll_shutdown(context);
            }
            let chunk = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    frame.into_data().ok().filter(|bytes| !bytes.is_empty()).map(BodyChunk::of)
                }
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => {
                    this.is_complete = true;
                    Some(BodyChunk::last())
                }
            };
            this.chunk = chunk;
        }
    }
}

/// A chunk of a body (RFC 9112, 7.1), partly written.
#[derive(Debug)]
struct BodyChunk {
    /// The length of the chunk in hexadecimal digits, and the end of that line.
    head: [u8; Self::HEAD_BYTES],
    head_length: usize,
    bytes: Bytes,
    end: &'static [u8],
    written: usize,
}

impl BodyChunk {
    const HEAD_BYTES: usize = 2 * size_of::<usize>() + 2;

    fn of(bytes: Bytes) -> Self {
        let mut head = [0; Self::HEAD_BYTES];
        let mut rest = &mut head[..];
        // The buffer has room for the digits of any length.
        let _ = write!(rest, "{:X}\r\n", bytes.len());
        let head_length = Self::HEAD_BYTES - rest.len();
        Self { head, head_length, bytes, end: b"\r\n", written: 0 }
    }

    fn last() -> Self {
        Self {
            head: [0; Self::HEAD_BYTES],
            head_length: 0,
            bytes: Bytes::new(),
            end: b"0\r\n\r\n",
            written: 0,
        }
    }

    fn parts(&self) -> [&[u8]; 3] {
        [&self.head[..self.head_length], &self.bytes, self.end]
    }

    fn is_written(&self) -> bool {
        self.written >= self.parts().iter().map(|part| part.len()).sum()
    }

    fn rest(&self) -> [IoSlice<'_>; 3] {
        let mut written = self.written;
        self.parts().map(|part| {
            let skipped = written.min(part.len());
            written -= skipped;
            IoSlice::new(&part[skipped..])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_written_whole_wherever_a_write_stops() {
        let whole = b"1E\r\ndata: thirty bytes and no more\r\n";
        assert_eq!(whole.len(), 4 + 30 + 2);
        let mut chunk = BodyChunk::of(Bytes::from_static(&whole[4..34]));
        for written in 0..whole.len() {
            assert!(!chunk.is_written());
            chunk.written = written;
            let rest: Vec<u8> = chunk.rest().iter().flat_map(|part| part.iter().copied()).collect();
            assert_eq!(rest, whole[written..]);
        }
        chunk.written = whole.len();
        assert!(chunk.is_written());
        let last: Vec<u8> = BodyChunk::last().rest().iter().flat_map(|part| part.iter().copied()).collect();
        assert_eq!(last, b"0\r\n\r\n");
    }
}
