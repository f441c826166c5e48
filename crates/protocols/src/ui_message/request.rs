//! What `useChat` posts.

use bytes::Bytes;
use model::{AgentId, Metadata, Tenant, ThreadId};
use serde_json::Map;

use crate::request::{
    BadRequest, ContentRules, ErrorBody, Fields, Known, LAST_MESSAGE, PARTS, ReadShape, RequestRejection,
    Wanted, input_of, instructions, last_message, object, read, required,
};

/// The body of a `POST`, as `DefaultChatTransport` sends it:
/// `{"id", "messages": [{"id", "role", "parts"}], "trigger", "messageId"}`.
#[derive(Debug, Clone, PartialEq)]
pub struct UiMessageRequest {
    /// The thread; the client calls it the id of the chat.
    pub thread: ThreadId,
    /// Whose workflow answers, in `agent` (the SDK's `body`); without it, the agent that answered before.
    pub agent: Option<AgentId>,
    /// The new input.
    pub text: String,
    /// The client's id of the input: the same one again is the same input.
    pub input_id: Option<String>,
    /// The metadata of the client's message.
    pub metadata: Metadata,
    /// What else is asked for: system messages.
    pub wanted: Wanted,
    /// It wants another answer to an input that is there, which only one that failed can have.
    pub regenerates: Option<Regenerated>,
}

/// Which answer is to be another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regenerated {
    /// The client's name of it; the last one without it.
    pub message: Option<String>,
}

/// Text parts; those of data are for the page and are not shown to models by the SDK either.
const RULES: ContentRules =
    ContentRules { text_types: &["text"], ignored: |kind| kind.starts_with("data-") || kind == "step-start" };

/// Every field that there is.
pub(crate) const FIELDS: &Known = &[
    read("agent", ReadShape::Agent, "The agent that answers. Default: the one that answered before."),
    required("id", ReadShape::Thread, "The thread."),
    read("messageId", ReadShape::Text, "The answer to replace, with the trigger `regenerate-message` alone."),
    required("messages", ReadShape::Messages(PARTS), LAST_MESSAGE),
    read(
        "trigger",
        ReadShape::OneOf(&["submit-message", "regenerate-message"]),
        "Whether the message is new, or its failed turn is tried again.",
    ),
];

impl UiMessageRequest {
    /// Reads a body of `tenant`, whose threads and agents it names.
    ///
    /// # Errors
    /// It is no such body, or asks for what cannot be done: files, another message in the place of one that is there.
    pub fn parse(body: &[u8], tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        fields.take(FIELDS, &mut Map::new())?;
        let thread = fields.required("id", fields.id("id", |name| ThreadId::of_tenant(tenant, name))?)?;
        let named = fields.text("messageId")?;
        let regenerates = match (fields.text("trigger")?, named) {
            (None | Some("submit-message"), None) => None,
            (None | Some("submit-message"), Some(_)) => {
                let why = "a message that is in the history cannot be replaced: send a new one";
                return Err(fields.unsupported("messageId", why));
            }
            (Some("regenerate-message"), message) => {
                Some(Regenerated { message: message.map(str::to_owned) })
            }
            (Some(_), _) => return Err(fields.invalid("trigger", "submit-message or regenerate-message")),
        };
        let (message, earlier) = last_message(&fields, "messages")?;
        let mut wanted = Wanted::default();
        instructions("messages", earlier, "parts", &RULES, &mut wanted.instructions)?;
        Ok(Self {
            thread,
            agent: fields.id("agent", |name| AgentId::of_tenant(tenant, name))?,
            text: input_of(&message, "parts", &RULES)?,
            input_id: message.text("id")?.map(str::to_owned),
            metadata: message.metadata("metadata")?,
            wanted,
            regenerates,
        })
    }
}

/// A refusal: plain text, which the SDK shows as the message of its error.
pub fn error_body(rejection: &RequestRejection) -> ErrorBody {
    let bytes = Bytes::from(rejection.message.clone());
    ErrorBody { content_type: "text/plain; charset=utf-8", bytes }
}
