//! What `useChat` posts.

use bytes::Bytes;
use model::{Metadata, Tenant, ThreadId};

use crate::request::{
    BadRequest, ContentRules, ErrorBody, Fields, Rejection, input_of, last_message, object,
};

/// The body of a `POST`, as `DefaultChatTransport` sends it:
/// `{"id", "messages": [{"id", "role", "parts"}], "trigger", "messageId"}`.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The thread; the client calls it the id of the chat.
    pub thread: ThreadId,
    /// The new input.
    pub text: String,
    /// The client's id of the input: the same one again is the same input.
    pub input_id: Option<String>,
    /// The metadata of the client's message.
    pub metadata: Metadata,
}

/// Text parts; those of data are for the page and are not shown to models by the SDK either.
const RULES: ContentRules =
    ContentRules { text_types: &["text"], ignored: |kind| kind.starts_with("data-") || kind == "step-start" };

impl Request {
    /// Reads a body of `tenant`, whose threads and agents it names.
    ///
    /// # Errors
    /// It is no such body, or asks for what cannot be done: `regenerate-message`, files.
    pub fn parse(body: &[u8], tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let thread = fields.required("id", fields.id("id", |name| ThreadId::of_tenant(tenant, name))?)?;
        match fields.text("trigger")? {
            None | Some("submit-message") => {}
            Some("regenerate-message") => {
                return Err(fields.unsupported(
                    "trigger",
                    "an answer that is in the history stays there: send a new message",
                ));
            }
            Some(_) => return Err(fields.invalid("trigger", "submit-message")),
        }
        let (message, _) = last_message(&fields, "messages")?;
        // A message that was edited would take back what is in the history.
        fields.refuse("messageId", "a message that is in the history cannot be replaced: send a new one")?;
        Ok(Self {
            thread,
            text: input_of(&message, "parts", &RULES)?,
            input_id: message.text("id")?.map(str::to_owned),
            metadata: message.metadata("metadata")?,
        })
    }
}

/// A refusal: plain text, which the SDK shows as the message of its error.
pub fn error_body(rejection: &Rejection) -> ErrorBody {
    let bytes = Bytes::from(rejection.message.clone());
    ErrorBody { content_type: "text/plain; charset=utf-8", bytes }
}
