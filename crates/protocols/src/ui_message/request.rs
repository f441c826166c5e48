//! The request of `useChat`.

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
    /// The agent whose workflow answers, from `agent` (the SDK's `body`); `None`: the one that
    /// answered before.
    pub agent: Option<AgentId>,
    /// Text of the new input.
    pub text: String,
    /// The client's id of the input: a repeated id means the same input.
    pub input_id: Option<String>,
    pub metadata: Metadata,
    /// The end user.
    pub user: Option<String>,
    /// Further settings of the request: system messages.
    pub wanted: Wanted,
    /// The client wants another answer to an earlier input, which is possible only if that one
    /// failed.
    pub regenerates: Option<Regenerated>,
}

/// The answer to regenerate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regenerated {
    /// The client's id of the answer; `None`: the last one.
    pub message: Option<String>,
}

/// Accepts text parts. Data parts are for the page; the SDK does not show them to models either.
const RULES: ContentRules =
    ContentRules { text_types: &["text"], ignored: |kind| kind.starts_with("data-") || kind == "step-start" };

/// Every field that the request can have.
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
    read("userId", ReadShape::Text, "Names the user of a thread that has none."),
];

impl UiMessageRequest {
    /// Parses a body. `tenant` owns the threads and agents that the body names.
    ///
    /// # Errors
    /// The body is invalid or asks for something unsupported: files, or replacing an earlier
    /// message.
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
            user: fields.user("userId")?,
            wanted,
            regenerates,
        })
    }
}

/// Encodes a refusal as plain text, which the SDK shows as the message of its error.
pub fn error_body(rejection: &RequestRejection) -> ErrorBody {
    let bytes = Bytes::from(rejection.message.clone());
    ErrorBody { content_type: "text/plain; charset=utf-8", bytes }
}
