//! The request to `/v1/chat/completions`.

use model::{Metadata, Tenant, ThreadId};
use serde_json::{Map, Value, json};

use crate::request::{
    BadRequest, CONTENT, ContentRules, FieldShape, Fields, Known, LAST_MESSAGE, NOT_HERE,
    PARALLEL_TOOL_CALLS, PENALTY, PROBABILITY, PROMPT_CACHE_KEY, PROMPT_CACHE_RETENTION, ReadShape,
    SAFETY_IDENTIFIER, SETTINGS, STORE, SentHistory, TEMPERATURE, TOOL_CHOICE, TOOLS, USER, VERBOSITY,
    Wanted, handed, instructions, is_temporary, last_message, object, only, read, refused, required,
    unanswered, user,
};

/// The body of a `POST`. Source: <https://platform.openai.com/docs/api-reference/chat/create>.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The thread; `None` for a new one.
    pub thread: Option<ThreadId>,
    /// The id or an alias of the agent whose workflow answers.
    pub model: String,
    /// Text of the new input.
    pub text: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether the stream ends with the usage.
    pub include_usage: bool,
    pub metadata: Metadata,
    /// The end user.
    pub user: Option<String>,
    /// Whether the thread is deleted some time after its answer.
    pub is_temporary: bool,
    /// Further settings of the request.
    pub wanted: Wanted,
}

const RULES: ContentRules = ContentRules { text_types: &["text"], ignored: |_| false };

/// Every field that the protocol has here.
pub(crate) const FIELDS: &Known = &[
    refused("audio", NOT_HERE),
    handed("frequency_penalty", PENALTY, "Penalty for tokens by how often they have occurred."),
    refused("functions", TOOLS),
    handed("logit_bias", FieldShape::NumberMap, "Bias of tokens, by their ids."),
    refused("logprobs", NOT_HERE),
    handed(
        "max_completion_tokens",
        FieldShape::Count,
        "Maximum number of tokens of the answer, reasoning included.",
    ),
    handed("max_tokens", FieldShape::Count, "The older name of `max_completion_tokens`."),
    required("messages", ReadShape::Messages(CONTENT), LAST_MESSAGE),
    read("metadata", ReadShape::ThreadMetadata, "Kept with the message. `thread_id` names the thread."),
    only("modalities", &["[\"text\"]"], "answers are text"),
    required("model", ReadShape::Model, "Id or alias of the agent that answers."),
    only("n", &["1"], "a turn has one answer"),
    PARALLEL_TOOL_CALLS,
    refused("prediction", NOT_HERE),
    handed("presence_penalty", PENALTY, "Penalty for tokens that have occurred."),
    PROMPT_CACHE_KEY,
    PROMPT_CACHE_RETENTION,
    handed("reasoning_effort", FieldShape::Text, "How much the model reasons, in the words of its provider."),
    read("response_format", ReadShape::Format, "Format of the answer."),
    SAFETY_IDENTIFIER,
    handed("seed", FieldShape::Integer, "Seed of the sampling."),
    only("service_tier", &["\"auto\"", "\"default\""], SETTINGS),
    handed("stop", FieldShape::Texts, "Texts at which the answer ends."),
    STORE,
    read("stream", ReadShape::Flag, "Whether the answer is a stream of events."),
    read("stream_options", ReadShape::Fields(STREAM_OPTIONS), "Options of the stream."),
    handed("temperature", TEMPERATURE, "Sampling temperature."),
    handed("tool_choice", TOOL_CHOICE, "Whether the model may call tools of the agent."),
    refused("tools", TOOLS),
    refused("top_logprobs", NOT_HERE),
    handed("top_p", PROBABILITY, "Probability mass of the tokens to sample from."),
    USER,
    handed("verbosity", VERBOSITY, "Length of the answer."),
    refused("web_search_options", NOT_HERE),
];

/// Fields of `stream_options`. Events never get padding that hides their lengths.
const STREAM_OPTIONS: &Known = &[
    only("include_obfuscation", &["false"], NOT_HERE),
    read("include_usage", ReadShape::Flag, "Whether the stream ends with the usage of tokens."),
];

impl CompletionRequest {
    /// Parses a body. `tenant` owns the threads and agents that the body names. `thread` is named
    /// outside of the body, by a header for example; `metadata.thread_id` may name one as well.
    /// Without either the thread is new.
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
        let model = fields.required("model", fields.model("model")?)?;
        let (message, earlier) = last_message(&fields, "messages")?;
        let said = unanswered("messages", earlier, &message, &RULES)?;
        let metadata = fields.metadata("metadata")?.with_author(said.author.as_ref());
        let named = match fields.object("metadata")? {
            Some(metadata) => metadata.id("thread_id", |name| ThreadId::of_tenant(tenant, name))?,
            None => None,
        };
        let thread = thread.or(named);
        let mut wanted = Wanted { parameters: fields.parameters(parameters)?, ..Wanted::default() };
        let mut earlier_at = instructions("messages", earlier, "content", &RULES, &mut wanted.instructions)?;
        earlier_at.retain(|at| !said.before.contains(at));
        let options = fields.object("stream_options")?;
        options.as_ref().map_or(Ok(()), |options| options.take(STREAM_OPTIONS, &mut Map::new()))?;
        wanted.history = (!earlier_at.is_empty()).then(|| SentHistory {
            param: "messages",
            messages: earlier_at.into_iter().map(|at| (at, with_author(&earlier[at]))).collect(),
            hint: "name it in `metadata.thread_id`, or send the new message alone",
        });
        Ok(Self {
            model,
            text: said.text,
            stream: fields.flag("stream")?,
            include_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
            metadata,
            wanted,
            user: user(&fields)?,
            is_temporary: is_temporary(&fields, thread.is_some())?,
            thread,
        })
    }
}

/// An earlier message whose `name` is that of its author, as the history has it.
fn with_author(message: &Value) -> Value {
    let mut message = message.clone();
    if message["role"] == "user"
        && let Some(map) = message.as_object_mut()
        && let Some(Value::String(name)) = map.remove("name")
    {
        let metadata = map.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.entry("author").or_insert_with(|| json!({ "name": name }));
        }
    }
    message
}

/// The format is passed on; the model must follow it.
fn response_format<'a>(fields: &Fields<'a>) -> Result<Option<&'a Value>, BadRequest> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.required("type", format.text("type")?)? {
        "text" | "json_object" | "json_schema" => Ok(fields.get("response_format")),
        _ => Err(fields.unsupported("response_format", "text, json_object or json_schema")),
    }
}
