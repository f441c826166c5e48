//! The request to `/v1/chat/completions`.

use model::{AgentId, Metadata, Tenant, ThreadId};
use serde_json::{Map, Value};

use crate::request::{
    BadRequest, ContentRules, FieldShape, Fields, KEPT, Known, NOT_HERE, PENALTY, PROBABILITY, SETTINGS,
    TEMPERATURE, TOOL_CHOICE, TOOLS, Use, VERBOSITY, Wanted, input_of, instructions, last_message, object,
};

/// The body of a `POST`. Source: <https://platform.openai.com/docs/api-reference/chat/create>.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The thread; `None` for a new one.
    pub thread: Option<ThreadId>,
    /// The agent whose workflow answers.
    pub agent: AgentId,
    /// Text of the new input.
    pub text: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether the stream ends with the usage.
    pub include_usage: bool,
    pub metadata: Metadata,
    /// Further settings of the request.
    pub wanted: Wanted,
}

const RULES: ContentRules = ContentRules { text_types: &["text"], ignored: |_| false };

/// Every field that the protocol has here.
pub(crate) const FIELDS: &Known = &[
    ("audio", Use::Refused(NOT_HERE)),
    ("frequency_penalty", Use::Handed("frequency_penalty", PENALTY)),
    ("functions", Use::Refused(TOOLS)),
    ("logit_bias", Use::Handed("logit_bias", FieldShape::NumberMap)),
    ("logprobs", Use::Refused(NOT_HERE)),
    ("max_completion_tokens", Use::Handed("max_completion_tokens", FieldShape::Count)),
    ("max_tokens", Use::Handed("max_tokens", FieldShape::Count)),
    ("messages", Use::Read),
    ("metadata", Use::Read),
    ("modalities", Use::Only(&["[\"text\"]"], "answers are text")),
    ("model", Use::Read),
    ("n", Use::Only(&["1"], "a turn has one answer")),
    ("parallel_tool_calls", Use::Handed("parallel_tool_calls", FieldShape::Flag)),
    ("prediction", Use::Refused(NOT_HERE)),
    ("presence_penalty", Use::Handed("presence_penalty", PENALTY)),
    ("prompt_cache_key", Use::Handed("prompt_cache_key", FieldShape::Text)),
    ("prompt_cache_retention", Use::Handed("prompt_cache_retention", FieldShape::Text)),
    ("reasoning_effort", Use::Handed("reasoning_effort", FieldShape::Text)),
    ("response_format", Use::Read),
    ("safety_identifier", Use::Handed("safety_identifier", FieldShape::Text)),
    ("seed", Use::Handed("seed", FieldShape::Integer)),
    ("service_tier", Use::Only(&["\"auto\"", "\"default\""], SETTINGS)),
    ("stop", Use::Handed("stop", FieldShape::Texts)),
    ("store", Use::Only(&["true"], KEPT)),
    ("stream", Use::Read),
    ("stream_options", Use::Read),
    ("temperature", Use::Handed("temperature", TEMPERATURE)),
    ("tool_choice", Use::Handed("tool_choice", TOOL_CHOICE)),
    ("tools", Use::Refused(TOOLS)),
    ("top_logprobs", Use::Refused(NOT_HERE)),
    ("top_p", Use::Handed("top_p", PROBABILITY)),
    ("user", Use::Handed("user", FieldShape::Text)),
    ("verbosity", Use::Handed("verbosity", VERBOSITY)),
    ("web_search_options", Use::Refused(NOT_HERE)),
];

/// Of `stream_options`; noise against those who measure the lengths of events is never added.
const STREAM_OPTIONS: &Known =
    &[("include_obfuscation", Use::Only(&["false"], NOT_HERE)), ("include_usage", Use::Read)];

impl CompletionRequest {
    /// Parses a body. `tenant` owns the threads and agents that it names. `thread` is named outside
    /// of the body, by a header for example; `metadata.thread_id` may name one as well. Without
    /// either the thread is new, and earlier messages are refused.
    ///
    /// # Errors
    /// The body is invalid or asks for something unsupported: tools of the client, images, several
    /// choices.
    pub fn parse(body: &[u8], thread: Option<ThreadId>, tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let mut parameters = Map::new();
        fields.take(FIELDS, &mut parameters)?;
        if let Some(format) = response_format(&fields)? {
            parameters.insert("response_format".to_owned(), format.clone());
        }
        let agent = fields.required("model", fields.id("model", |name| AgentId::of_tenant(tenant, name))?)?;
        let (message, earlier) = last_message(&fields, "messages")?;
        let metadata = fields.metadata("metadata")?;
        let named = match fields.object("metadata")? {
            Some(metadata) => metadata.id("thread_id", |name| ThreadId::of_tenant(tenant, name))?,
            None => None,
        };
        let thread = thread.or(named);
        let mut said = None;
        let has_history = instructions("messages", earlier, "content", &RULES, &mut said)?;
        let options = fields.object("stream_options")?;
        options.as_ref().map_or(Ok(()), |options| options.take(STREAM_OPTIONS, &mut Map::new()))?;
        let unplaced = || BadRequest::NoThread {
            param: "messages".to_owned(),
            name: "name it in `metadata.thread_id`, or send the new message alone",
        };
        Ok(Self {
            agent,
            text: input_of(&message, "content", &RULES)?,
            stream: fields.flag("stream")?,
            include_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
            metadata,
            wanted: Wanted {
                parameters: fields.parameters(parameters)?,
                instructions: said,
                history: (thread.is_none() && has_history).then(unplaced),
            },
            thread,
        })
    }
}

/// The format is passed on; the model must follow it.
fn response_format<'a>(fields: &Fields<'a>) -> Result<Option<&'a Value>, BadRequest> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.required("type", format.text("type")?)? {
        "text" | "json_object" | "json_schema" => Ok(fields.get("response_format")),
        _ => Err(fields.unsupported("response_format", "text, json_object or json_schema")),
    }
}
