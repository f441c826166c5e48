//! OpenAI's Responses: the events of a stream, and the response object at any time.
//!
//! Entry types: [`Responses`] for the answer, [`ResponseRequest`] for what a client asks. Sources:
//! <https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.
//!
//! Every span of text or reasoning and every call is an item of the output, in the order in which they began.
//! Calls are `mcp_call` items, with their results: a client takes a `function_call` for one that it has to make.
//!
//! Resume: `starting_after` ([`Resume`]). Sequence numbers are those of the fold: the events of attempt `a` begin at `a` thousand
//! million, so that a client that has seen a part of an attempt that was given up gets the whole of the next one. Of an answer of which only the
//! history is left, the pieces are not known any more: a client that names a number gets the last event alone, whose object has the whole
//! output; one that names none gets whole texts (`response.output_text.done`), under numbers above all that were sent before, so that
//! OpenAI's own helper, which asks for everything and drops what is not above its number, passes them on too. The last event is always sent,
//! also to a client that names a number ahead of it.
//!
//! State: the output with all of its text, for the objects in the events; so it grows with the answer, whose size owners
//! bound.

mod event_sequence;
mod object;
mod options;
pub(crate) mod request;
mod writer;

use bytes::Bytes;

use crate::encoder_driver::{EncoderDriver, ProtocolEncoder};
use crate::{AnswerEvent, Protocol, ProtocolOutput, json};

use writer::ResponseEncoder;

pub use crate::openai::error_body;
pub use event_sequence::Resume;
pub use object::ResponseObject;
pub use options::{ResponseOptions, id_of, message_of};
pub use request::{Follows, ResponseRequest};
pub use writer::ResponseEvent;

/// The fold for one answer.
#[derive(Debug)]
pub struct Responses(EncoderDriver<ResponseEncoder>);

impl Responses {
    /// The response of an answer, with the events that a client wants.
    pub fn new(terms: ResponseOptions, resume: Resume) -> Self {
        Self(EncoderDriver::new(terms.message.clone(), ResponseEncoder::new(terms, resume)))
    }

    /// The response of an answer of which nothing is known but that it is under way: `queued` until a workflow works on it.
    pub fn under_way(terms: ResponseOptions, is_running: bool) -> Bytes {
        let mut response = Self::new(terms, Resume::Start);
        response.apply(AnswerEvent::Opened);
        if is_running {
            response.0.words.on_chunk(&mut Vec::new());
        }
        response.object()
    }

    /// The response as it stands now: what `GET /v1/responses/{id}` answers, and at the end a `POST` without `stream`.
    pub fn object(&self) -> Bytes {
        let mut out = Vec::new();
        json::append(&mut out, &self.0.words.object());
        out.into()
    }
}

impl Protocol for Responses {
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput {
        self.0.apply(happening)
    }

    fn recall(&mut self) {
        self.0.words.recall();
    }
}

#[cfg(test)]
mod tests;
