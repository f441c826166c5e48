//! OpenAI's Responses: the events of a stream, and the response object at any time.
//!
//! Entry types: [`Responses`] for the answer, [`ResponseRequest`] for a client's request. Sources:
//! <https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.
//!
//! Every span of text or reasoning and every call is an item of the output, in the order in which
//! they began. Calls are `mcp_call` items with their results, because a client would execute a
//! `function_call`.
//!
//! Resume: `starting_after` ([`Resume`]). The encoder assigns sequence numbers: attempt `a` begins
//! at `a` times 1,000,000,000, so a client that saw part of a failed attempt gets the whole next
//! one. For an answer from the history the pieces are unknown. A client that names a number gets
//! only the last event, whose object has the whole output. A client that names none gets whole
//! texts (`response.output_text.done`), numbered above all earlier events, so that OpenAI's own
//! helper, which requests everything and drops lower numbers, passes them on. The last event is
//! always sent, even to a client that names a higher number.
//!
//! State: the output with all of its text, for the objects in the events. It grows with the answer,
//! whose size owners limit.

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

/// The encoder of one answer.
#[derive(Debug)]
pub struct Responses(EncoderDriver<ResponseEncoder>);

impl Responses {
    /// The response of an answer, with the events that a client wants.
    pub fn new(terms: ResponseOptions, resume: Resume) -> Self {
        Self(EncoderDriver::new(terms.message.clone(), ResponseEncoder::new(terms, resume)))
    }

    /// The response of an answer in progress, without its content: `queued` until a workflow works
    /// on it.
    pub fn under_way(terms: ResponseOptions, is_running: bool) -> Bytes {
        let mut response = Self::new(terms, Resume::Start);
        response.apply(AnswerEvent::Opened);
        if is_running {
            response.0.words.on_chunk(&mut Vec::new());
        }
        response.object()
    }

    /// The current response: the body of `GET /v1/responses/{id}`, and at the end of a `POST`
    /// without `stream`.
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
