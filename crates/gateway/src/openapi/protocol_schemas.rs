//! What the protocols of other clients say, as far as it is said or read here. The crate `protocols` writes and reads it; the tests hold what
//! they write against this.
#![allow(dead_code, reason = "the types lend their form to the description and have no values")]

pub(crate) mod requests;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::schemas;

pub(crate) use requests::ProtocolBody;

/// A refusal in the form of OpenAI.
#[derive(Serialize, ToSchema)]
pub(crate) struct WrappedError {
    error: ErrorObject,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
struct ErrorObject {
    /// For people.
    message: String,
    #[serde(rename = "type")]
    kind: String,
    /// The field that is at fault.
    #[schema(required)]
    param: Option<String>,
    /// For programs.
    #[schema(required)]
    code: Option<String>,
}

/// A refusal in the words of AG-UI's `RUN_ERROR`.
#[derive(Serialize, ToSchema)]
pub(crate) struct RunRefusal {
    /// For people.
    message: String,
    /// For programs.
    code: String,
}

/// A part of a UI message.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(crate) enum UiPart {
    #[serde(rename_all = "camelCase")]
    Start {
        message_id: String,
    },
    StartStep,
    FinishStep,
    #[serde(rename_all = "camelCase")]
    TextStart {
        id: String,
    },
    #[serde(rename_all = "camelCase")]
    TextDelta {
        id: String,
        delta: String,
    },
    #[serde(rename_all = "camelCase")]
    TextEnd {
        id: String,
    },
    #[serde(rename_all = "camelCase")]
    ReasoningStart {
        id: String,
    },
    #[serde(rename_all = "camelCase")]
    ReasoningDelta {
        id: String,
        delta: String,
    },
    #[serde(rename_all = "camelCase")]
    ReasoningEnd {
        id: String,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputStart {
        tool_call_id: String,
        tool_name: String,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputDelta {
        tool_call_id: String,
        input_text_delta: String,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputAvailable {
        tool_call_id: String,
        tool_name: String,
        input: Value,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputError {
        tool_call_id: String,
        tool_name: String,
        input: String,
        error_text: String,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolOutputAvailable {
        tool_call_id: String,
        output: String,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolOutputError {
        tool_call_id: String,
        error_text: String,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    MessageMetadata {
        #[schema(value_type = schemas::AnyObject)]
        message_metadata: Value,
    },
    #[serde(rename_all = "camelCase")]
    Finish {
        finish_reason: String,
        #[schema(value_type = schemas::AnyObject, required = false)]
        message_metadata: Value,
    },
    Abort {},
    #[serde(rename_all = "camelCase")]
    Error {
        error_text: String,
    },
}

/// An event of AG-UI.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum RunEvent {
    #[serde(rename_all = "camelCase")]
    RunStarted { thread_id: String, run_id: String, protocol_version: String },
    #[serde(rename_all = "camelCase")]
    TextMessageStart { message_id: String, role: String },
    #[serde(rename_all = "camelCase")]
    TextMessageContent { message_id: String, delta: String },
    #[serde(rename_all = "camelCase")]
    TextMessageEnd { message_id: String },
    #[serde(rename_all = "camelCase")]
    ReasoningStart { message_id: String },
    #[serde(rename_all = "camelCase")]
    ReasoningMessageStart { message_id: String, role: String },
    #[serde(rename_all = "camelCase")]
    ReasoningMessageContent { message_id: String, delta: String },
    #[serde(rename_all = "camelCase")]
    ReasoningMessageEnd { message_id: String },
    #[serde(rename_all = "camelCase")]
    ReasoningEnd { message_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallStart { tool_call_id: String, tool_call_name: String, parent_message_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallArgs { tool_call_id: String, delta: String },
    #[serde(rename_all = "camelCase")]
    ToolCallEnd { tool_call_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallResult { message_id: String, tool_call_id: String, content: String, role: String },
    #[serde(rename_all = "camelCase")]
    Custom {
        name: String,
        #[schema(value_type = schemas::AnyObject)]
        value: Value,
    },
    #[serde(rename_all = "camelCase")]
    RunFinished {
        thread_id: String,
        run_id: String,
        outcome: RunOutcome,
        #[schema(required = false)]
        usage: Vec<RunTokens>,
        #[schema(value_type = schemas::AnyObject, required = false)]
        metadata: Value,
    },
    #[serde(rename_all = "camelCase")]
    RunError { message: String, code: String },
}

/// How a run ended.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum RunOutcome {
    Success,
    Cancelled,
}

/// What a run took.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunTokens {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
}

/// A completion.
#[derive(Serialize, ToSchema)]
pub(crate) struct Completion {
    id: String,
    #[schema(value_type = schemas::CompletionSchema)]
    object: String,
    /// Seconds since 1970.
    created: i64,
    /// The agent.
    #[schema(value_type = schemas::AgentIdSchema)]
    model: String,
    #[schema(min_items = 1, max_items = 1)]
    choices: Vec<CompletionChoice>,
    #[schema(nullable = false)]
    usage: Option<CompletionTokens>,
}

/// The answer.
#[derive(Serialize, ToSchema)]
struct CompletionChoice {
    index: u32,
    message: CompletionMessage,
    #[schema(value_type = Option<Object>, required)]
    logprobs: Option<Value>,
    finish_reason: String,
}

/// The text of an answer. Tools were called by the agent's workflow: no calls are shown.
#[derive(Serialize, ToSchema)]
struct CompletionMessage {
    #[schema(value_type = schemas::RoleSchema)]
    role: String,
    content: String,
    #[schema(required)]
    refusal: Option<String>,
}

/// What an answer took.
#[derive(Serialize, ToSchema)]
struct CompletionTokens {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

/// A piece of a completion.
#[derive(Serialize, ToSchema)]
pub(crate) struct CompletionChunk {
    id: String,
    #[schema(value_type = schemas::CompletionChunkSchema)]
    object: String,
    created: i64,
    #[schema(value_type = schemas::AgentIdSchema)]
    model: String,
    /// One, or none in the chunk with the usage.
    #[schema(max_items = 1)]
    choices: Vec<ChunkChoice>,
    /// With `stream_options.include_usage`: null in all but the last.
    usage: Option<CompletionTokens>,
}

/// The piece.
#[derive(Serialize, ToSchema)]
struct ChunkChoice {
    index: u32,
    delta: ChunkDelta,
    #[schema(value_type = Option<Object>, required)]
    logprobs: Option<Value>,
    #[schema(required)]
    finish_reason: Option<String>,
}

/// The text of a piece.
#[derive(Serialize, ToSchema)]
struct ChunkDelta {
    #[schema(nullable = false)]
    role: Option<String>,
    #[schema(nullable = false)]
    content: Option<String>,
}

/// A response. Fields that say how the model samples are null: the agent's settings say it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResponseObject {
    #[schema(value_type = schemas::ResponseIdSchema)]
    id: String,
    #[schema(value_type = schemas::ResponseSchema)]
    object: String,
    /// Seconds since 1970; 0 where it is not known.
    created_at: i64,
    #[schema(value_type = schemas::ResponseStatusSchema)]
    status: String,
    background: bool,
    /// The thread.
    conversation: NamedThread,
    #[schema(required)]
    error: Option<ResponseFailure>,
    #[schema(required)]
    incomplete_details: Option<IncompleteDetails>,
    #[schema(required)]
    instructions: Option<String>,
    #[schema(required)]
    max_output_tokens: Option<u64>,
    #[schema(value_type = Object)]
    metadata: Value,
    /// The agent.
    #[schema(value_type = schemas::AgentIdSchema)]
    model: String,
    output: Vec<ResponseItem>,
    parallel_tool_calls: bool,
    #[schema(required)]
    previous_response_id: Option<String>,
    store: bool,
    #[schema(required)]
    temperature: Option<f64>,
    #[schema(value_type = Object)]
    text: Value,
    tool_choice: String,
    #[schema(value_type = Vec<Object>, max_items = 0)]
    tools: Vec<Value>,
    #[schema(required)]
    top_p: Option<f64>,
    truncation: String,
    #[schema(required)]
    usage: Option<ResponseTokens>,
}

/// A thread.
#[derive(Serialize, ToSchema)]
struct NamedThread {
    #[schema(value_type = schemas::ThreadIdSchema)]
    id: String,
}

/// Why there is no answer. The protocol's codes are few: ours stands before the text.
#[derive(Serialize, ToSchema)]
struct ResponseFailure {
    code: String,
    message: String,
}

/// Why an answer ends before its end.
#[derive(Serialize, ToSchema)]
struct IncompleteDetails {
    reason: String,
}

/// A part of what was answered. Calls were made by the agent's workflow, and are shown with their results.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseItem {
    Message {
        id: String,
        #[schema(value_type = schemas::ItemStatusSchema)]
        status: String,
        role: String,
        content: Vec<ResponseContent>,
    },
    Reasoning {
        id: String,
        #[schema(value_type = schemas::ItemStatusSchema)]
        status: String,
        #[schema(value_type = Vec<schemas::AnyObject>)]
        summary: Vec<Value>,
        content: Vec<ResponseContent>,
    },
    McpCall {
        id: String,
        #[schema(value_type = schemas::ItemStatusSchema)]
        status: String,
        server_label: String,
        name: String,
        arguments: String,
        #[schema(required)]
        output: Option<String>,
        #[schema(required)]
        error: Option<String>,
    },
}

/// Text of an item.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseContent {
    OutputText {
        text: String,
        #[schema(value_type = Vec<schemas::AnyObject>)]
        annotations: Vec<Value>,
        #[schema(value_type = Vec<schemas::AnyObject>)]
        logprobs: Vec<Value>,
    },
    ReasoningText {
        text: String,
    },
}

/// What a response took.
#[derive(Serialize, ToSchema)]
struct ResponseTokens {
    input_tokens: u64,
    #[schema(value_type = Object)]
    input_tokens_details: Value,
    output_tokens: u64,
    #[schema(value_type = Object)]
    output_tokens_details: Value,
    total_tokens: u64,
}

/// An event of a response: its kind, its number, and what changed.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResponseEvent {
    /// `response.created`, `response.output_text.delta`, … and last `response.completed`, `.incomplete` or `.failed`.
    #[serde(rename = "type")]
    #[schema(pattern = "^response\\.[a-z_.]+$")]
    kind: String,
    /// To be given back as `starting_after`.
    sequence_number: u64,
    /// The whole, when it begins and when it has ended.
    #[schema(nullable = false)]
    response: Option<ResponseObject>,
    #[schema(nullable = false)]
    output_index: Option<u64>,
    #[schema(nullable = false)]
    content_index: Option<u64>,
    #[schema(nullable = false)]
    item_id: Option<String>,
    #[schema(nullable = false)]
    item: Option<ResponseItem>,
    #[schema(nullable = false)]
    part: Option<ResponseContent>,
    #[schema(nullable = false)]
    delta: Option<String>,
    #[schema(nullable = false)]
    text: Option<String>,
    #[schema(nullable = false)]
    name: Option<String>,
    #[schema(nullable = false)]
    arguments: Option<String>,
}
