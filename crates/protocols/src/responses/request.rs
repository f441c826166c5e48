//! The request to `/v1/responses`.

use model::{Metadata, Tenant, ThreadId, TurnId};
use serde_json::{Map, Value, json};

use crate::request::{
    BadRequest, ContentRules, FieldShape, Fields, Instructions, Known, NOT_HERE, PARALLEL_TOOL_CALLS,
    PROBABILITY, PROMPT_CACHE_KEY, PROMPT_CACHE_RETENTION, ReadShape, SAFETY_IDENTIFIER, SETTINGS, STORE,
    SentHistory, TEMPERATURE, TOOL_CHOICE, TOOLS, USER, Unanswered, VERBOSITY, Wanted, handed, handed_as,
    input_of, instructions, is_temporary, last_message, object, only, read, refused, required, unanswered,
    user,
};

use super::options::{message_of, response_of_item, turn_of_item};

/// The body of a `POST`. Source: <https://platform.openai.com/docs/api-reference/responses/create>.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseRequest {
    /// The id or an alias of the agent whose workflow answers; `None`: the agent that answered
    /// before.
    pub model: Option<String>,
    /// The place of the input.
    pub follows: Follows,
    /// Text of the new input.
    pub text: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether to return at once, with a queued response.
    pub background: bool,
    pub metadata: Metadata,
    /// Request fields that the response repeats.
    pub shown: Metadata,
    /// The end user.
    pub user: Option<String>,
    /// Whether the thread is deleted some time after its answer.
    pub is_temporary: bool,
    /// Further settings of the request.
    pub wanted: Wanted,
}

/// The predecessor of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Follows {
    /// None: the input begins a thread.
    Nothing,
    /// The end of a thread: `conversation`.
    Thread(ThreadId),
    /// A response, which must be the last of its thread: `previous_response_id`, as the client
    /// wrote it. [`super::message_of`] finds its answer.
    Response(String),
}

const RULES: ContentRules = ContentRules { text_types: &["input_text"], ignored: |_| false };

/// Every field that the protocol has here.
pub(crate) const FIELDS: &Known = &[
    read("background", ReadShape::Flag, "Whether to answer at once, with a response that is queued."),
    read(
        "conversation",
        ReadShape::Conversation,
        "The thread. Without it and without `previous_response_id` it is a new one.",
    ),
    only("include", &["[\"reasoning.encrypted_content\"]"], "reasoning is sent as text"),
    required(
        "input",
        ReadShape::Input,
        "The new input: a text, or messages of which the last one is the input.",
    ),
    read(
        "instructions",
        ReadShape::Text,
        "Instructions for the model, if the settings of the agent allow them.",
    ),
    handed_as(
        "max_output_tokens",
        "max_completion_tokens",
        FieldShape::Count,
        "Maximum number of tokens of the answer, reasoning included.",
    ),
    refused("max_tool_calls", SETTINGS),
    read("metadata", ReadShape::Metadata, "Kept with the message, and returned with the response."),
    read(
        "model",
        ReadShape::Model,
        "Id or alias of the agent that answers. Default: the one that answered before.",
    ),
    PARALLEL_TOOL_CALLS,
    read(
        "previous_response_id",
        ReadShape::Text,
        "The last response of its thread; not together with `conversation`.",
    ),
    refused("prompt", "prompts belong to the agent's settings"),
    PROMPT_CACHE_KEY,
    PROMPT_CACHE_RETENTION,
    read("reasoning", ReadShape::Fields(REASONING), "Options of reasoning."),
    SAFETY_IDENTIFIER,
    only("service_tier", &["\"auto\"", "\"default\""], SETTINGS),
    STORE,
    read("stream", ReadShape::Flag, "Whether the answer is a stream of events."),
    read("stream_options", ReadShape::Fields(STREAM_OPTIONS), "Options of the stream."),
    handed("temperature", TEMPERATURE, "Sampling temperature."),
    read("text", ReadShape::Fields(TEXT), "Options of the text of the answer."),
    handed("tool_choice", TOOL_CHOICE, "Whether the model may call tools of the agent."),
    refused("tools", TOOLS),
    refused("top_logprobs", NOT_HERE),
    handed("top_p", PROBABILITY, "Probability mass of the tokens to sample from."),
    only("truncation", &["\"auto\""], "a context that is too long is always cut"),
    USER,
];

/// Fields of `stream_options`. Events never get padding that hides their lengths.
const STREAM_OPTIONS: &Known = &[only("include_obfuscation", &["false"], NOT_HERE)];
/// Fields of `text`.
const TEXT: &Known = &[
    read("format", ReadShape::Format, "Format of the answer."),
    handed("verbosity", VERBOSITY, "Length of the answer."),
];
/// Fields of `reasoning`.
const REASONING: &Known = &[
    handed_as(
        "effort",
        "reasoning_effort",
        FieldShape::Text,
        "How much the model reasons, in the words of its provider.",
    ),
    refused("generate_summary", NOT_HERE),
    only("summary", &["\"auto\"", "\"concise\"", "\"detailed\""], "reasoning is sent in full"),
];
/// Request fields that a response repeats unchanged.
const SHOWN: [&str; 9] = [
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "top_p",
];
/// Items of our own output. Clients send them back, and their text is in the history already.
const OUTPUT_ITEMS: [&str; 2] = ["reasoning", "mcp_call"];

impl ResponseRequest {
    /// Parses a body. `tenant` owns the threads and agents that the body names.
    ///
    /// # Errors
    /// The body is invalid or asks for something unsupported: tools of the client, images, files.
    pub fn parse(body: &[u8], tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        let mut parameters = Map::new();
        fields.take(FIELDS, &mut parameters)?;
        for (key, known) in [("stream_options", STREAM_OPTIONS), ("reasoning", REASONING), ("text", TEXT)] {
            if let Some(inside) = fields.object(key)? {
                inside.take(known, &mut parameters)?;
            }
        }
        if let Some(format) = response_format(&fields)? {
            parameters.insert("response_format".to_owned(), format);
        }
        let named = follows(&fields, tenant)?;
        let referred = if named == Follows::Nothing { referred(&fields)? } else { None };
        let is_referred = referred.is_some();
        let follows = referred.map_or(named, Follows::Response);
        let mut wanted = Wanted { parameters: fields.parameters(parameters)?, ..Wanted::default() };
        if let Some(text) = fields.text("instructions")? {
            Instructions::add(&mut wanted.instructions, fields.path("instructions"), text);
        }
        let text = input(&fields, &follows, is_referred, &mut wanted)?;
        let names_thread = follows != Follows::Nothing;
        Ok(Self {
            model: fields.model("model")?,
            follows,
            text,
            stream: fields.flag("stream")?,
            background: fields.flag("background")?,
            metadata: fields.metadata("metadata")?,
            shown: fields.parameters(shown(&fields))?,
            user: user(&fields)?,
            is_temporary: is_temporary(&fields, names_thread)?,
            wanted,
        })
    }
}

fn shown(fields: &Fields<'_>) -> Map<String, Value> {
    let shown = SHOWN.iter().filter_map(|name| Some(((*name).to_owned(), fields.get(name)?.clone())));
    shown.filter(|(_, value)| !value.is_null()).collect()
}

fn follows(fields: &Fields<'_>, tenant: Option<&Tenant>) -> Result<Follows, BadRequest> {
    let response = fields.text("previous_response_id")?;
    let thread = match fields.get("conversation") {
        Some(Value::Object(_)) => match fields.object("conversation")? {
            Some(named) => {
                Some(named.required("id", named.id("id", |name| ThreadId::of_tenant(tenant, name))?)?)
            }
            None => None,
        },
        _ => fields.id("conversation", |name| ThreadId::of_tenant(tenant, name))?,
    };
    match (response, thread) {
        (Some(_), Some(_)) => {
            Err(fields.unsupported("previous_response_id", "not together with `conversation`"))
        }
        (Some(response), None) => Ok(Follows::Response(response.to_owned())),
        (None, Some(thread)) => Ok(Follows::Thread(thread)),
        (None, None) => Ok(Follows::Nothing),
    }
}

/// The response of the last item that the input refers to by its id: its thread has the items.
fn referred(fields: &Fields<'_>) -> Result<Option<String>, BadRequest> {
    let Some(Value::Array(_)) = fields.get("input") else { return Ok(None) };
    let items = fields.array("input")?.into_iter().flatten().rev();
    let mut references = items.filter(|item| item["type"] == "item_reference");
    Ok(references.find_map(|item| item["id"].as_str().and_then(response_of_item)))
}

/// The new input: the last message. The messages before it are in the history of the thread.
fn input(
    fields: &Fields<'_>,
    follows: &Follows,
    is_referred: bool,
    wanted: &mut Wanted,
) -> Result<String, BadRequest> {
    if !matches!(fields.get("input"), Some(Value::Array(_))) {
        return input_of(fields, "input", &RULES);
    }
    for (index, item) in fields.array("input")?.into_iter().flatten().enumerate() {
        let item = Fields::inside(format!("input[{index}]"), item)?;
        match item.text("type")? {
            None | Some("message") => {}
            Some(kind) if OUTPUT_ITEMS.contains(&kind) => {}
            Some("item_reference") => check_reference(&item, follows)?,
            Some(_) => {
                return Err(item.unsupported("type", "only messages can be sent, and what came in `output`"));
            }
        }
    }
    let (message, earlier) = last_message(fields, "input")?;
    let said = unanswered("input", earlier, &message, &RULES)?;
    let mut earlier_at = instructions("input", earlier, "content", &RULES, &mut wanted.instructions)?;
    earlier_at.retain(|at| !said.before.contains(at));
    if is_referred {
        check_after_references(earlier, &said)?;
        return Ok(said.text);
    }
    let is_of_user = |item: &Value| item["role"] == "user";
    if *follows != Follows::Nothing && earlier.last().is_some_and(is_of_user) {
        // Nothing has answered the earlier input, so it would be lost.
        return Err(fields.unsupported("input", "one new message at a time: a turn has one input"));
    }
    // The thread of a response has the messages before it.
    if !earlier_at.is_empty() && !matches!(follows, Follows::Response(_)) {
        let messages = earlier_at
            .into_iter()
            .flat_map(|at| chat_messages(&earlier[at]).into_iter().map(move |message| (at, message)));
        wanted.history = Some(SentHistory {
            param: "input",
            messages: messages.collect(),
            hint: "name it in `conversation` or `previous_response_id`, or send the new message alone",
        });
    }
    Ok(said.text)
}

/// Refuses answers after the last item that the input refers to by its id: the thread of the items
/// does not have them. Messages of the person are a part of the input.
fn check_after_references(earlier: &[Value], said: &Unanswered) -> Result<(), BadRequest> {
    let begin = earlier.iter().rposition(|item| item["type"] == "item_reference").map_or(0, |at| at + 1);
    for (index, item) in earlier.iter().enumerate().skip(begin) {
        let is_instruction = matches!(item["role"].as_str(), Some("system" | "developer"));
        if !is_instruction && !said.before.contains(&index) {
            let item = Fields::inside(format!("input[{index}]"), item)?;
            return Err(item.unsupported("role", "the thread of the items before it has no such answer"));
        }
    }
    Ok(())
}

/// An item of an input in the form of chat completions. A call of the agent has its result in the
/// same item, and reasoning is shown to no model again.
fn chat_messages(item: &Value) -> Vec<Value> {
    match item["type"].as_str() {
        Some("reasoning" | "item_reference") => Vec::new(),
        Some("mcp_call") => {
            let (id, function) =
                (&item["id"], json!({ "name": item["name"], "arguments": item["arguments"] }));
            let call = json!({ "id": id, "type": "function", "function": function });
            let result = item["output"].as_str().or(item["error"].as_str()).unwrap_or_default();
            vec![
                json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
                json!({ "role": "tool", "tool_call_id": id, "content": result }),
            ]
        }
        _ => vec![json!({ "role": item["role"], "content": chat_content(&item["content"]) })],
    }
}

/// Texts of a person and of an answer are parts of the same type in chat completions.
fn chat_content(content: &Value) -> Value {
    let Some(parts) = content.as_array() else { return content.clone() };
    let part = |part: &Value| match part["type"].as_str() {
        Some("input_text" | "output_text") => json!({ "type": "text", "text": part["text"] }),
        _ => part.clone(),
    };
    parts.iter().map(part).collect()
}

/// A reference must name an item of an answer in the thread, which is in the history already.
fn check_reference(item: &Fields<'_>, follows: &Follows) -> Result<(), BadRequest> {
    let id = item.required("id", item.text("id")?)?;
    let turn = turn_of_item(id).ok_or_else(|| item.unsupported("id", "there is no such item here"))?;
    let bucket = match follows {
        Follows::Nothing => {
            let why = "name the thread of the item in `conversation` or `previous_response_id`";
            return Err(item.unsupported("type", why));
        }
        Follows::Thread(thread) => Some(thread.bucket()),
        Follows::Response(before) => {
            let answer = message_of(before).and_then(|message| TurnId::of_answer(&message));
            answer.map(|(turn, _)| turn.bucket())
        }
    };
    match bucket {
        Some(bucket) if bucket != turn.bucket() => {
            Err(item.unsupported("id", "the item is one of another conversation"))
        }
        Some(_) | None => Ok(()),
    }
}

/// `text.format`, converted to the form of chat completions.
fn response_format(fields: &Fields<'_>) -> Result<Option<Value>, BadRequest> {
    let Some(text) = fields.object("text")? else { return Ok(None) };
    let Some(format) = text.object("format")? else { return Ok(None) };
    let kind = format.required("type", format.text("type")?)?;
    match kind {
        "text" | "json_object" => Ok(Some(json!({ "type": kind }))),
        "json_schema" => {
            let mut schema = Map::new();
            for key in ["name", "description", "schema", "strict"] {
                schema.extend(format.get(key).map(|value| (key.to_owned(), value.clone())));
            }
            Ok(Some(json!({ "type": kind, "json_schema": schema })))
        }
        _ => Err(text.unsupported("format", "text, json_object or json_schema")),
    }
}
