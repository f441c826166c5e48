//! OpenAI's Responses: the events of a stream, and the response object at any time.
//!
//! Entry types: [`Responses`] for the answer, [`Request`] for what a client asks. Sources:
//! <https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.
//!
//! Every span of text or reasoning and every call is an item of the output, in the order in which they began; see [`ToolCallDisplay`].
//!
//! Resume: `starting_after` ([`Resume`]). EventSequence are those of the fold: the events of attempt `a` begin at `a` thousand
//! million, so that a client that has seen a part of an attempt that was given up gets the whole of the next one. Of an answer of which only the
//! history is left, the pieces are not known any more: a client that names a number is told the last event alone, whose object has the whole
//! output; one that names none is told of whole texts (`response.output_text.done`), under numbers above all that were told before, so that
//! OpenAI's own helper, which asks for everything and drops what is not above its number, tells of them too. The last event is always told,
//! also to a client that names a number ahead of it.
//!
//! State: the output with all of its text, for the objects in the events; so it grows with the answer, whose size owners
//! bound.

mod event_sequence;
mod object;
pub(crate) mod request;
mod writer;

use bytes::Bytes;
use model::{MessageId, Metadata, ThreadId, Timestamp};

use crate::encoder_driver::{EncoderDriver, ProtocolEncoder};
use crate::{AnswerEvent, Output, Protocol, json};

use writer::Writer;

pub use crate::openai::error_body;
pub use event_sequence::Resume;
pub use request::{Follows, Request};

/// What a response says of itself.
#[derive(Debug, Clone)]
pub struct ResponseOptions {
    /// Where the turn takes place: the `conversation` of the response.
    pub thread: ThreadId,
    /// The answer.
    pub message: MessageId,
    /// What the client called the model.
    pub model: String,
    /// When the turn was opened.
    pub created_at: Timestamp,
    /// Whether it was asked for without a connection to wait on: it is `queued` until something comes.
    pub background: bool,
    /// What the client named as the response before.
    pub previous_response_id: Option<String>,
    /// The request's metadata.
    pub metadata: Metadata,
    /// How the calls of tools are shown.
    pub calls: ToolCallDisplay,
}

/// How a client is shown the tool calls of an answer, which were made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolCallDisplay {
    /// As `function_call` items, without their results. Some clients take these for calls that they have to make.
    #[default]
    Functions,
    /// As `mcp_call` items: calls that were made elsewhere, with their results.
    Hosted,
    /// Not at all.
    Hidden,
}

/// The id of the response that an answer is.
pub fn id_of(message: &MessageId) -> String {
    format!("resp_{message}")
}

/// The answer that a response is; `None` for an id that is not of ours.
pub fn message_of(response_id: &str) -> Option<MessageId> {
    MessageId::parse(response_id.strip_prefix("resp_")?).ok()
}

/// The fold for one answer.
#[derive(Debug)]
pub struct Responses(EncoderDriver<Writer>);

impl Responses {
    /// The response of an answer, with the events that a client wants.
    pub fn new(terms: ResponseOptions, resume: Resume) -> Self {
        Self(EncoderDriver::new(terms.message.clone(), Writer::new(terms, resume)))
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
    fn apply(&mut self, happening: AnswerEvent<'_>) -> Output {
        self.0.apply(happening)
    }

    fn recall(&mut self) {
        self.0.words.recall();
    }
}

#[cfg(test)]
mod tests;
