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
    /// Its sequence in the stream.
    pub seq: Seq,
    /// The subject that it is stored under.
    pub subject: Subject,
    /// Its `Content-Type` header, if it has one that can be read.
    pub content_type: Option<String>,
    /// Its payload. It shares a buffer with its neighbours: copy what is kept for long.
    pub payload: Bytes,
    /// When it was stored, by the server's clock: ns of Unix time.
    pub stored_at_ns: i64,
    /// All of its headers; also `None` for an entry that was requested singly.
    pub(crate) headers: Option<HeaderMap>,
    /// How many entries stood behind it in the stream when it was delivered.
    pub unread: u64,
}

impl RawEntry {
    /// When it was stored, to the millisecond.
    pub fn stored_at(&self) -> Timestamp {
        Timestamp(self.stored_at_ns / 1_000_000)
    }

    /// The trace that its publisher's headers name. Parsed on demand: not every entry has one.
    pub fn trace(&self) -> Option<TraceContext> {
        trace_of(self.headers.as_ref()?)
    }

    /// What identifies it.
    pub fn mark(&self) -> Mark {
        Mark { seq: self.seq, stored_at_ns: self.stored_at_ns }
    }
}
