//! Entries of a stream.

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use model::{Mark, Seq, Timestamp};
use runtime::traces::TraceContext;

use crate::trace::trace_of;

pub(super) const CONTENT_TYPE: &str = "Content-Type";

/// One entry of a stream in the form in which it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    pub seq: Seq,
    /// The subject under which it is stored.
    pub subject: Subject,
    /// The `Content-Type` header, if present and readable.
    pub content_type: Option<String>,
    /// The payload. It shares a buffer with other entries, so copy it if it is kept for long.
    pub payload: Bytes,
    /// When the entry was stored, by the server clock: ns of Unix time.
    pub stored_at_ns: i64,
    /// All headers; `None` if the entry has none or was fetched by request.
    pub(crate) headers: Option<HeaderMap>,
    /// Number of entries that followed it in the stream when it was delivered.
    pub unread: u64,
}

impl RawEntry {
    /// When the entry was stored, to the millisecond.
    pub fn stored_at(&self) -> Timestamp {
        Timestamp(self.stored_at_ns / 1_000_000)
    }

    /// The trace in its publisher's headers. It is parsed on demand, because not every entry has
    /// one.
    pub fn trace(&self) -> Option<TraceContext> {
        trace_of(self.headers.as_ref()?)
    }

    /// The sequence and time that identify the entry.
    pub fn mark(&self) -> Mark {
        Mark { seq: self.seq, stored_at_ns: self.stored_at_ns }
    }
}
