//! The response object and the items of its output.

use std::borrow::Cow;

use model::Metadata;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::usage::Usage;
use crate::{StreamError, schemas};

/// A response. The options of its request are repeated as they were sent.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResponseObject<'a> {
    #[schema(value_type = schemas::ResponseIdSchema)]
    pub(super) id: &'a str,
    #[schema(value_type = schemas::ResponseSchema)]
    pub(super) object: &'static str,
    /// Time of creation in seconds since 1970; 0 if unknown.
    pub(super) created_at: i64,
    #[schema(value_type = schemas::ResponseStatusSchema)]
    pub(super) status: &'static str,
    pub(super) background: bool,
    /// The thread of the response.
    pub(super) conversation: Named<'a>,
    #[schema(required)]
    pub(super) error: Option<Failure<'a>>,
    #[schema(required)]
    pub(super) incomplete_details: Option<Incomplete>,
    #[schema(value_type = Option<String>, required)]
    pub(super) instructions: Option<&'a Value>,
    #[schema(value_type = Option<u64>, required)]
    pub(super) max_output_tokens: Option<&'a Value>,
    #[schema(value_type = Object)]
    pub(super) metadata: &'a Metadata,
    /// Name of the agent that answered.
    #[schema(value_type = schemas::AgentIdSchema)]
    pub(super) model: &'a str,
    #[schema(value_type = Vec<Written>)]
    pub(super) output: &'a [OutputEntry],
    #[schema(value_type = bool)]
    pub(super) parallel_tool_calls: Cow<'a, Value>,
    #[schema(required)]
    pub(super) previous_response_id: Option<&'a str>,
    pub(super) store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schemas::AnyObject>, nullable = false)]
    pub(super) reasoning: Option<&'a Value>,
    #[schema(value_type = Option<f64>, required)]
    pub(super) temperature: Option<&'a Value>,
    #[schema(value_type = Object)]
    pub(super) text: Text<'a>,
    #[schema(value_type = String)]
    pub(super) tool_choice: Cow<'a, Value>,
    #[schema(value_type = Vec<Object>, max_items = 0)]
    pub(super) tools: [(); 0],
    #[schema(value_type = Option<f64>, required)]
    pub(super) top_p: Option<&'a Value>,
    /// A context that is too long is always shortened.
    pub(super) truncation: &'static str,
    #[schema(required)]
    pub(super) usage: Option<ResponseUsage>,
}

/// The id of a thread, as an object.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NamedThread)]
pub(super) struct Named<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    pub(super) id: &'a str,
}

/// Why there is no answer. The protocol has few error codes, so Antiphon's code precedes the text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseFailure)]
pub(super) struct Failure<'a> {
    code: &'static str,
    #[serde(serialize_with = "with_code")]
    #[schema(value_type = String)]
    message: &'a StreamError,
    // The AI SDK requires it.
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Why an answer is incomplete.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IncompleteDetails)]
pub(super) struct Incomplete {
    pub(super) reason: &'static str,
}

/// The format of the text, by default plain, and its verbosity.
#[derive(Debug, Serialize)]
pub(super) struct Text<'a> {
    format: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbosity: Option<&'a Value>,
}

impl<'a> Text<'a> {
    /// Built from `text` of the request.
    pub(super) fn of(asked: Option<&'a Value>) -> Self {
        let field = |name: &str| asked.and_then(|text| text.get(name)).filter(|value| !value.is_null());
        let format = field("format").map_or_else(|| Cow::Owned(json!({"type": "text"})), Cow::Borrowed);
        Self { format, verbosity: field("verbosity") }
    }
}

/// The token usage of a response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseTokens)]
pub(super) struct ResponseUsage {
    input_tokens: u64,
    #[schema(value_type = Object)]
    input_tokens_details: InputDetails,
    output_tokens: u64,
    #[schema(value_type = Object)]
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Serialize)]
struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Debug, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input,
            input_tokens_details: InputDetails {
                cached_tokens: usage.cached.unwrap_or(0),
                cache_write_tokens: 0,
            },
            output_tokens: usage.output,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning.unwrap_or(0) },
            total_tokens: usage.total,
        }
    }
}

fn with_code<S: Serializer>(failure: &&StreamError, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}: {}", failure.code, failure.text))
}

/// The progress of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseProgress {
    Queued,
    Running,
    Completed,
    Incomplete(&'static str),
    Cancelled,
    Failed(StreamError),
}

/// Code and type of each failure.
const SERVER_ERROR: &str = "server_error";

impl ResponseProgress {
    pub(super) fn status(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "failed",
        }
    }

    pub(super) fn error(&self) -> Option<Failure<'_>> {
        match self {
            Self::Failed(message) => Some(Failure { code: SERVER_ERROR, message, kind: SERVER_ERROR }),
            _ => None,
        }
    }

    pub(super) fn incomplete(&self) -> Option<Incomplete> {
        match self {
            Self::Incomplete(reason) => Some(Incomplete { reason }),
            _ => None,
        }
    }
}

/// An item of the output, and the number of its part in the outline.
#[derive(Debug)]
pub(super) struct OutputEntry {
    pub(super) part: u32,
    pub(super) id: String,
    pub(super) item: OutputItem,
}

#[derive(Debug)]
pub(super) enum OutputItem {
    Message { status: Status, content: Vec<Content> },
    Reasoning { status: Status, content: Vec<Content> },
    McpCall { status: Status, name: String, arguments: String, result: Option<Result<String, String>> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    /// A call whose result is an error.
    Failed,
}

/// The text of an item.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseContent)]
pub(super) enum Content {
    OutputText {
        text: String,
        #[schema(value_type = Vec<schemas::AnyObject>)]
        annotations: [(); 0],
        #[schema(value_type = Vec<schemas::AnyObject>)]
        logprobs: [(); 0],
    },
    ReasoningText {
        text: String,
    },
}

impl Content {
    pub(super) fn new(is_reasoning: bool) -> Self {
        match is_reasoning {
            true => Self::ReasoningText { text: String::new() },
            false => Self::OutputText { text: String::new(), annotations: [], logprobs: [] },
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::OutputText { text, .. } | Self::ReasoningText { text } => text,
        }
    }

    pub(super) fn push(&mut self, more: &str) {
        match self {
            Self::OutputText { text, .. } | Self::ReasoningText { text } => text.push_str(more),
        }
    }
}

impl OutputEntry {
    pub(super) fn content(&self) -> Option<&Content> {
        match &self.item {
            OutputItem::Message { content, .. } | OutputItem::Reasoning { content, .. } => content.first(),
            OutputItem::McpCall { .. } => None,
        }
    }

    pub(super) fn content_mut(&mut self) -> Option<&mut Vec<Content>> {
        match &mut self.item {
            OutputItem::Message { content, .. } | OutputItem::Reasoning { content, .. } => Some(content),
            OutputItem::McpCall { .. } => None,
        }
    }

    pub(super) fn arguments_mut(&mut self) -> Option<&mut String> {
        match &mut self.item {
            OutputItem::McpCall { arguments, .. } => Some(arguments),
            OutputItem::Message { .. } | OutputItem::Reasoning { .. } => None,
        }
    }

    pub(super) fn set_status(&mut self, new: Status) {
        match &mut self.item {
            OutputItem::Message { status, .. }
            | OutputItem::Reasoning { status, .. }
            | OutputItem::McpCall { status, .. } => *status = new,
        }
    }
}

/// An item of the output. The agent's workflow has executed the calls, and they are shown with
/// their results.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseItem)]
pub(super) enum Written<'a> {
    Message {
        id: &'a str,
        #[schema(value_type = schemas::ItemStatusSchema)]
        status: Status,
        role: &'static str,
        content: &'a [Content],
    },
    Reasoning {
        id: &'a str,
        #[schema(value_type = schemas::ItemStatusSchema)]
        status: Status,
        #[schema(value_type = Vec<schemas::AnyObject>)]
        summary: [(); 0],
        content: &'a [Content],
    },
    McpCall {
        id: &'a str,
        #[schema(value_type = schemas::ItemStatusSchema)]
        status: Status,
        server_label: &'static str,
        name: &'a str,
        arguments: &'a str,
        #[schema(required)]
        output: Option<&'a str>,
        #[schema(required)]
        error: Option<&'a str>,
    },
}

/// The server label of the calls.
const SERVER: &str = "antiphon";

impl Serialize for OutputEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let id = self.id.as_str();
        let written = match &self.item {
            OutputItem::Message { status, content } => {
                Written::Message { id, status: *status, role: "assistant", content }
            }
            OutputItem::Reasoning { status, content } => {
                Written::Reasoning { id, status: *status, summary: [], content }
            }
            OutputItem::McpCall { status, name, arguments, result } => {
                let (output, error) = match result {
                    Some(Ok(output)) => (Some(output.as_str()), None),
                    Some(Err(error)) => (None, Some(error.as_str())),
                    None => (None, None),
                };
                Written::McpCall { id, status: *status, server_label: SERVER, name, arguments, output, error }
            }
        };
        written.serialize(serializer)
    }
}
