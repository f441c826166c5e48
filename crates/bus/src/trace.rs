//! The trace of a message, in its headers.

use async_nats::HeaderMap;
use runtime::traces::TraceContext;

/// The trace that the headers contain.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::from_headers(|name| headers.get(name).map(|value| value.as_str()))
}
