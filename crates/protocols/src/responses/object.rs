//! The response object and the items of its output.

use model::Metadata;
use serde::{Serialize, Serializer};

use crate::StreamError;
use crate::usage::Usage;

/// The response. Every field that the protocol requires is there; those that say how the model samples are null, because the
/// agent's settings say it.
#[derive(Serialize)]
pub(super) struct Object<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created_at: i64,
    pub(super) status: &'static str,
    pub(super) background: bool,
    pub(super) conversation: Named<'a>,
    pub(super) error: Option<Failure<'a>>,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) instructions: Option<()>,
    pub(super) max_output_tokens: Option<()>,
    pub(super) metadata: &'a Metadata,
    pub(super) model: &'a str,
    pub(super) output: &'a [OutputEntry],
    pub(super) parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<&'a str>,
    pub(super) store: bool,
    pub(super) temperature: Option<()>,
    pub(super) text: Text,
    pub(super) tool_choice: &'static str,
    pub(super) tools: [(); 0],
    pub(super) top_p: Option<()>,
    pub(super) truncation: &'static str,
    pub(super) usage: Option<ResponseUsage>,
}

#[derive(Serialize)]
pub(super) struct Named<'a> {
    pub(super) id: &'a str,
}

/// The protocol has a closed set of codes; ours stands before the text.
#[derive(Serialize)]
pub(super) struct Failure<'a> {
    code: &'static str,
    #[serde(serialize_with = "with_code")]
    message: &'a StreamError,
}

#[derive(Serialize)]
pub(super) struct Incomplete {
    pub(super) reason: &'static str,
}

#[derive(Serialize)]
pub(super) struct Text {
    format: TextFormat,
}

#[derive(Serialize)]
struct TextFormat {
    #[serde(rename = "type")]
    kind: &'static str,
}

impl Text {
    pub(super) const PLAIN: Self = Self { format: TextFormat { kind: "text" } };
}

#[derive(Serialize)]
pub(super) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input,
            input_tokens_details: InputDetails { cached_tokens: 0, cache_write_tokens: 0 },
            output_tokens: usage.output,
            output_tokens_details: OutputDetails { reasoning_tokens: 0 },
            total_tokens: usage.total,
        }
    }
}

fn with_code<S: Serializer>(failure: &&StreamError, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}: {}", failure.code, failure.text))
}

/// How far the response is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseProgress {
    Queued,
    Running,
    Completed,
    Incomplete(&'static str),
    Cancelled,
    Failed(StreamError),
}

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
            Self::Failed(message) => Some(Failure { code: "server_error", message }),
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

/// An item of the output, and the part of the outline that it shows.
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
    FunctionCall { status: Status, call_id: String, name: String, arguments: String },
    McpCall { status: Status, name: String, arguments: String, result: Option<Result<String, String>> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    /// Of a call whose result is an error.
    Failed,
}

/// A part of an item.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Content {
    OutputText { text: String, annotations: [(); 0], logprobs: [(); 0] },
    ReasoningText { text: String },
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
            OutputItem::FunctionCall { .. } | OutputItem::McpCall { .. } => None,
        }
    }

    pub(super) fn content_mut(&mut self) -> Option<&mut Vec<Content>> {
        match &mut self.item {
            OutputItem::Message { content, .. } | OutputItem::Reasoning { content, .. } => Some(content),
            OutputItem::FunctionCall { .. } | OutputItem::McpCall { .. } => None,
        }
    }

    /// Of a call.
    pub(super) fn arguments_mut(&mut self) -> Option<&mut String> {
        match &mut self.item {
            OutputItem::FunctionCall { arguments, .. } | OutputItem::McpCall { arguments, .. } => {
                Some(arguments)
            }
            OutputItem::Message { .. } | OutputItem::Reasoning { .. } => None,
        }
    }

    pub(super) fn set_status(&mut self, new: Status) {
        match &mut self.item {
            OutputItem::Message { status, .. }
            | OutputItem::Reasoning { status, .. }
            | OutputItem::FunctionCall { status, .. }
            | OutputItem::McpCall { status, .. } => *status = new,
        }
    }
}

/// An item as the protocol writes it.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written<'a> {
    Message {
        id: &'a str,
        status: Status,
        role: &'static str,
        content: &'a [Content],
    },
    Reasoning {
        id: &'a str,
        status: Status,
        summary: [(); 0],
        content: &'a [Content],
    },
    FunctionCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
    McpCall {
        id: &'a str,
        status: Status,
        server_label: &'static str,
        name: &'a str,
        arguments: &'a str,
        output: Option<&'a str>,
        error: Option<&'a str>,
    },
}

/// Who is said to have made the calls.
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
            OutputItem::FunctionCall { status, call_id, name, arguments } => {
                Written::FunctionCall { id, status: *status, call_id, name, arguments }
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
