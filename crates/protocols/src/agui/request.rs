//! `RunAgentInput`: the request of an AG-UI client to start a run.

use model::{InputAuthor, Tenant, ThreadId};
use serde::Serialize;
use serde_json::Map;
use utoipa::ToSchema;

use crate::json;
use crate::request::{
    BadRequest, CONTENT, ContentRules, ErrorBody, FieldShape, Fields, Known, LAST_MESSAGE, NOT_HERE,
    ReadShape, RequestRejection, TOOLS, Wanted, author, handed_as, input_of, instructions, last_message,
    object, read, refused, required,
};

/// The body of a `POST`. Source: <https://docs.ag-ui.com/sdk/js/core/types#runagentinput>.
#[derive(Debug, Clone, PartialEq)]
pub struct AgUiRequest {
    pub thread: ThreadId,
    /// The client's id of the run. It is returned in the events; a repeated id means the same
    /// input.
    pub run: String,
    /// Text of the new input.
    pub text: String,
    /// The client's id of the input.
    pub input_id: Option<String>,
    /// Who writes, in a thread with several people: `name` of the message.
    pub author: Option<InputAuthor>,
    /// Further settings of the request.
    pub wanted: Wanted,
}

const RULES: ContentRules = ContentRules { text_types: &["text"], ignored: |_| false };

/// Every field that the protocol has.
pub(crate) const FIELDS: &Known = &[
    refused("context", "put such text into the agent's settings, or into a system message"),
    handed_as("forwardedProps", "forwarded_props", FieldShape::Object, "Goes to the workflow as it is."),
    required("messages", ReadShape::Messages(CONTENT), LAST_MESSAGE),
    refused("parentRunId", "a thread has no branches"),
    read("protocolVersion", ReadShape::Version, "Version of the protocol."),
    refused("resume", "runs are not interrupted here, so there is nothing to answer"),
    required("runId", ReadShape::Text, "Returned with the events. The same id again is the same input."),
    refused("state", NOT_HERE),
    required("threadId", ReadShape::Thread, "The thread."),
    refused("tools", TOOLS),
];

/// The fields that are read to follow a run; others are ignored.
pub(crate) const CONNECT_FIELDS: &Known = &[
    required("runId", ReadShape::Text, "Returned with the events."),
    required("threadId", ReadShape::Thread, "The thread."),
];

impl AgUiRequest {
    /// Parses the body of a request to follow an existing run: thread and run, without an input.
    /// `tenant` owns them.
    ///
    /// # Errors
    /// The body is invalid.
    pub fn parse_connect(body: &[u8], tenant: Option<&Tenant>) -> Result<(ThreadId, String), BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let thread =
            fields.required("threadId", fields.id("threadId", |name| ThreadId::of_tenant(tenant, name))?)?;
        let run = fields.required("runId", fields.text("runId")?)?.to_owned();
        Ok((thread, run))
    }

    /// Parses a body. `tenant` owns the threads and agents that the body names.
    ///
    /// # Errors
    /// The body is invalid or asks for something unsupported: tools of the client, a state, parts
    /// other than text, an answer to an interrupt.
    pub fn parse(body: &[u8], tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let mut parameters = Map::new();
        fields.take(FIELDS, &mut parameters)?;
        parameters.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
        let thread =
            fields.required("threadId", fields.id("threadId", |name| ThreadId::of_tenant(tenant, name))?)?;
        let run = fields.required("runId", fields.text("runId")?)?.to_owned();
        if fields.text("protocolVersion")?.is_some_and(|version| version.split('.').next() != Some("1")) {
            return Err(fields.unsupported("protocolVersion", "version 1 is spoken here"));
        }
        let (message, earlier) = last_message(&fields, "messages")?;
        let text = input_of(&message, "content", &RULES)?;
        let mut wanted = Wanted { parameters: fields.parameters(parameters)?, ..Wanted::default() };
        instructions("messages", earlier, "content", &RULES, &mut wanted.instructions)?;
        let input_id = message.text("id")?.map(str::to_owned);
        Ok(Self { thread, run, text, input_id, author: author(&message)?, wanted })
    }
}

/// A refusal, with the fields of AG-UI's `RUN_ERROR`.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunRefusal<'a> {
    /// Explanation for people.
    message: &'a str,
    /// Machine-readable error code.
    code: &'a str,
}

/// Encodes a refusal with the fields of `RUN_ERROR`, because the protocol defines no refusal.
pub fn error_body(rejection: &RequestRejection) -> ErrorBody {
    let mut bytes = Vec::new();
    json::append(&mut bytes, &RunRefusal { message: &rejection.message, code: &rejection.code });
    ErrorBody { content_type: "application/json", bytes: bytes.into() }
}
