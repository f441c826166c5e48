//! Server-sent events as bytes, each with one line of data that every reader treats as one line.
//!
//! Source: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

use serde::Serialize;

use crate::json;

/// The end of streams of OpenAI's chat completions and of the AI SDK.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// Appends an event without a name.
pub(crate) fn data(out: &mut Vec<u8>, data: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    json::append(out, data);
    out.extend_from_slice(b"\n\n");
}

/// Appends an event with a name.
pub(crate) fn named(out: &mut Vec<u8>, name: &str, event: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    data(out, event);
}
