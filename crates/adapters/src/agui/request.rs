//! `RunAgentInput`, what an AG-UI client posts to start a run.

use model::{Tenant, ThreadId};
use serde::Serialize;

use crate::json;
use crate::request::{
    BadRequest, ContentRules, ErrorBody, Fields, Rejection, input_of, last_message, object,
};

/// The body of a `POST`. Source: <https://docs.ag-ui.com/sdk/js/core/types#runagentinput>.
///
/// Not read: `state`, `tools` and `context`, which belong to the agent here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The thread.
    pub thread: ThreadId,
    /// The client's id of the run: it is said back, and the same one again is the same input.
    pub run: String,
    /// The new input.
    pub text: String,
    /// The client's id of the input.
    pub input_id: Option<String>,
}

const RULES: ContentRules = ContentRules { text_types: &["text"], ignored: |_| false };

impl Request {
    /// Reads the body of a request to follow what there is: thread and run, without an input. `tenant` is whose they are.
    ///
    /// # Errors
    /// It is no such body.
    pub fn parse_connect(body: &[u8], tenant: Option<&Tenant>) -> Result<(ThreadId, String), BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let thread =
            fields.required("threadId", fields.id("threadId", |name| ThreadId::of_tenant(tenant, name))?)?;
        let run = fields.required("runId", fields.text("runId")?)?.to_owned();
        Ok((thread, run))
    }

    /// Reads a body of `tenant`, whose threads and agents it names.
    ///
    /// # Errors
    /// It is no such body, or asks for what cannot be done: other parts than text, an answer to an interrupt.
    pub fn parse(body: &[u8], tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let thread =
            fields.required("threadId", fields.id("threadId", |name| ThreadId::of_tenant(tenant, name))?)?;
        let run = fields.required("runId", fields.text("runId")?)?.to_owned();
        fields.refuse("resume", "runs are not interrupted here, so there is nothing to answer")?;
        let (message, _) = last_message(&fields, "messages")?;
        let text = input_of(&message, "content", &RULES)?;
        Ok(Self { thread, run, text, input_id: message.text("id")?.map(str::to_owned) })
    }
}

/// A refusal: the fields of `RUN_ERROR` as JSON. The protocol has no form for one.
pub fn error_body(rejection: &Rejection) -> ErrorBody {
    #[derive(Serialize)]
    struct Body<'a> {
        message: &'a str,
        code: &'a str,
    }
    let mut bytes = Vec::new();
    json::append(&mut bytes, &Body { message: &rejection.message, code: &rejection.code });
    ErrorBody { content_type: "application/json", bytes: bytes.into() }
}
