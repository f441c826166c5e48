//! Client protocols as folds over ordered chunks: the same input gives the same bytes on every
//! machine.
//!
//! [`native`] is Antiphon's own event stream of a whole thread. The other protocols show the answer
//! of one turn: each is a [`Protocol`], a fold over [`AnswerEvent`]s, and parses its clients'
//! requests ([`request`]):
//!
//! | module | protocol | resume |
//! |---|---|---|
//! | [`ui_message`] | UI message stream of Vercel's AI SDK | the whole message again |
//! | [`responses`] | OpenAI Responses | after a sequence number |
//! | [`chat_completions`] | OpenAI chat completions | none |
//! | [`agui`] | AG-UI 1.0 | the whole run again |
//!
//! [`stored`] replays an answer that is already in the history.
//!
//! Nothing here knows a socket, a subject, a table or a clock.

mod addresses;
pub mod agui;
mod answer_event;
mod answer_parts;
// tidy: allow(names): the protocol is called so.
pub mod chat_completions;
pub mod cursor;
mod encoder_driver;
mod event_reader;
mod json;
pub mod native;
mod openai;
pub mod request;
mod request_body;
pub mod responses;
pub mod schemas;
mod sse;
pub mod stored;
#[cfg(test)]
mod testing;
pub mod ui_message;
mod usage;
pub mod withheld;

pub use addresses::ErrorForm;
pub use agui::AgUi;
pub use answer_event::{AnswerEvent, Protocol, ProtocolOutput, StreamAction};
pub use chat_completions::ChatCompletions;
pub use cursor::{Cursor, InvalidCursor, MessageOffset, MessageProgress};
pub use event_reader::{EventReader, EventTooLarge, SseItem};
pub use native::{Encoded, MessageHeader, Native, StreamError};
pub use request_body::RequestBody;
pub use responses::Responses;
pub use stored::{AnswerRest, StoredAnswer, StoredMessage};
pub use ui_message::UiMessage;
pub use usage::AnswerUsage;
pub use withheld::WithheldCalls;
