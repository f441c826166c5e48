//! Entries of a stream.

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use model::{Mark, Seq, Timestamp};
use runtime::traces::TraceContext;

use crate::trace::trace_of;

pub(super) const CONTENT_TYPE: &str = "Content-Type";

/// One entry of a stream, as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    pub seq: Seq,
    /// The subject under which it is stored.
    pub subject: Subject,
    /// Its `Content-Type` header, if present and readable.
    pub content_type: Option<String>,
    /// Its payload. It shares a buffer with its neighbours: copy what is kept for long.
    pub payload: Bytes,
    /// When it was stored, by the server clock: ns of Unix time.
    pub stored_at_ns: i64,
    /// All of its headers; `None` if it has none or was fetched by request.
    pub(crate) headers: Option<HeaderMap>,
    /// How many entries followed it in the stream when it was delivered.
    pub unread: u64,
}

impl RawEntry {
    /// When it was stored, to the millisecond.
    pub fn stored_at(&self) -> Timestamp {
        Timestamp(self.stored_at_ns / 1_000_000)
    }

    /// The trace named by its publisher's headers. Parsed on demand: not every entry has one.
    pub fn trace(&self) -> Option<TraceContext> {
        trace_of(self.headers.as_ref()?)
    }

    /// The sequence and time that identify it.
    pub fn mark(&self) -> Mark {
        Mark { seq: self.seq, stored_at_ns: self.stored_at_ns }
    }
}
