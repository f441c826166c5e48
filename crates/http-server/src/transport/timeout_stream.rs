//! A socket with a timeout for stalled writes, which can also detect the HTTP version. The layers
//! above do not notice a client that keeps its connection open and reads nothing: the body is not
//! polled while the socket is full.
//!
//! `hyper_util::server::conn::auto` detects the version, too. But it has no timeout for a client
//! that sends nothing or half a preface, and does not report when it knows the version. It also has
//! one type of body for both versions, and passes the preface on in a separate read.
//! `tokio_io_timeout` holds a timer in each connection even where nothing stalls, and its error is
//! the same as that of a kernel timeout.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::metrics;
use crate::transport::stream_handover::StreamHandover;

/// The start of every HTTP/2 connection, and of no HTTP/1 request.
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Parts of at most this total length are copied into one, which costs less than the kernel needs
/// for several. An event has three parts, with the head and end of its chunk.
const JOINED: usize = 2048;

/// The HTTP version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

#[derive(Debug)]
pub(crate) struct TimeoutStream {
    stream: TcpStream,
    timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Bytes read to detect the version; those from `given` on have not been passed on yet.
    ahead: [u8; PREFACE.len()],
    read: usize,
    given: usize,
    ends: CloseMode,
    resets: bool,
    has_read: HasRead,
    handover: StreamHandover,
}

/// How the socket is closed. Clones share it.
///
/// An HTTP/1.0 body without a length and without chunks ends with its connection. A proxy can tell
/// a cut from such an end only when the connection is reset, which the kernel then does even for a
/// killed process.
#[derive(Debug, Clone, Default)]
pub(crate) struct CloseMode(Arc<AtomicBool>);

impl CloseMode {
    /// From the next write on, anything but an orderly shutdown resets the connection.
    pub(crate) fn by_reset(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether anything was read since the last `forget`. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HasRead(Arc<AtomicBool>);

impl HasRead {
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, has_read: bool) {
        if has_read && !self.get() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl TimeoutStream {
    pub(crate) fn new(stream: TcpStream, timeout: Duration) -> Self {
        let (ends, ahead) = (CloseMode::default(), [0; PREFACE.len()]);
        Self {
            stream,
            timeout,
            stalled: None,
            ahead,
            read: 0,
            given: 0,
            ends,
            resets: false,
            has_read: HasRead::default(),
            handover: StreamHandover::default(),
        }
    }

    pub(crate) fn ends(&self) -> CloseMode {
        self.ends.clone()
    }

    pub(crate) fn has_read(&self) -> HasRead {
        self.has_read.clone()
    }

    /// The handover of this connection, which is notified of each flush.
    pub(crate) fn handover(&self) -> StreamHandover {
        self.handover.clone()
    }

    fn set_resets(&mut self, resets: bool) {
        let linger = resets.then_some(Duration::ZERO);
        if let Err(error) = SockRef::from(&self.stream).set_linger(linger) {
            tracing::debug!(%error, "SO_LINGER was refused");
        }
        self.resets = resets;
    }

    /// Sets how the socket is closed. Must be called before the first bytes are written of a body
    /// that only the end of the connection terminates.
    fn apply_close_mode(&mut self) {
        if !self.resets && self.ends.0.load(Ordering::Relaxed) {
            self.set_resets(true);
        }
    }

    /// Detects the version without losing bytes. `None` when the client closes without sending
    /// anything.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) async fn sniff(&mut self) -> io::Result<Option<Version>> {
        while self.read < PREFACE.len() && self.ahead[..self.read] == PREFACE[..self.read] {
            match self.stream.read(&mut self.ahead[self.read..]).await? {
                0 if self.read == 0 => return Ok(None),
                // Half a preface is no HTTP/1 head either; the HTTP/1 parser reports that.
                0 => return Ok(Some(Version::Http1)),
                read => self.read += read,
            }
        }
        Ok(Some(if self.ahead == PREFACE { Version::Http2 } else { Version::Http1 }))
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let deadline = Instant::now() + self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(stalled.as_mut().poll(context));
        metrics::write_timeout();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl AsyncRead for TimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given < self.read {
            let length = buffer.remaining().min(self.read - self.given);
            buffer.put_slice(&self.ahead[self.given..self.given + length]);
            self.given += length;
            self.has_read.note(true);
            // The bytes read so far are passed on together with those that follow: after a short
            // read, hyper would double the buffer of every connection.
            return match Pin::new(&mut self.stream).poll_read(context, buffer) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
            };
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.has_read.note(buffer.filled().len() > before);
        read
    }
}

impl AsyncWrite for TimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.apply_close_mode();
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if parts.len() > 1 && length <= JOINED {
            let (mut joined, mut end) = ([0; JOINED], 0);
            for part in parts {
                joined[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
            return self.poll_write(context, &joined[..end]);
        }
        self.apply_close_mode();
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.handover.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.resets {
            self.set_resets(false);
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn sniffed(pieces: &[&[u8]]) -> (Option<Version>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let client = async {
            let mut client = TcpStream::connect(addr).await.unwrap();
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let server = async {
            let mut guarded = TimeoutStream::new(listener.accept().await.unwrap().0, Duration::from_secs(1));
            let version = guarded.sniff().await.unwrap();
            let mut all = Vec::new();
            guarded.read_to_end(&mut all).await.unwrap();
            (version, all)
        };
        tokio::join!(client, server).1
    }

    #[tokio::test]
    async fn http_version_is_detected_without_losing_bytes() {
        let preface = &PREFACE[..];
        for (pieces, version) in [
            (&[preface, b"more"][..], Some(Version::Http2)),
            (&[&preface[..1], &preface[1..20], &[&preface[20..], b"more"].concat()], Some(Version::Http2)),
            (&[b"GET / HTTP/1.1\r\n\r\n"], Some(Version::Http1)),
            (&[b"P", b"OST / HTTP/1.1\r\n\r\n"], Some(Version::Http1)),
            (&[b"PRI * HTTP/1.1\r\n\r\n"], Some(Version::Http1)),
            (&[&preface[..10]], Some(Version::Http1)),
            (&[b"\x16\x03\x01"], Some(Version::Http1)),
            (&[], None),
        ] {
            assert_eq!(sniffed(pieces).await, (version, pieces.concat()), "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_fails_the_write() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _idle = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut guarded = TimeoutStream::new(stream, Duration::from_millis(200));
        let error = guarded.write_all(&vec![0; 64 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
