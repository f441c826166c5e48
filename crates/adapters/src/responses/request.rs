//! What is posted to `/v1/responses`.

use model::{AgentId, Metadata, Tenant, ThreadId};
use serde_json::Value;

use crate::request::{BadRequest, ContentRules, Fields, input_of, instructions_of, last_message, object};

/// The body of a `POST`. Source: <https://platform.openai.com/docs/api-reference/responses/create>.
///
/// Not read: `store` (what is said is always kept), `user`, and how the model samples, which the agent's settings say.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Whose workflow answers; without it, whoever answered before.
    pub agent: Option<AgentId>,
    /// Where the input is said.
    pub follows: Follows,
    /// The new input.
    pub text: String,
    /// `instructions`, and system and developer messages, for a gateway that lets clients give them.
    pub instructions: Option<String>,
    /// Whether the answer comes as a stream.
    pub stream: bool,
    /// Whether to answer at once, with a response that is queued.
    pub background: bool,
    /// The request's metadata.
    pub metadata: Metadata,
}

/// What an input is said after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Follows {
    /// Nothing: it begins a thread.
    Nothing,
    /// The end of a thread: `conversation`.
    Thread(ThreadId),
    /// A response, which must be the last of its thread: `previous_response_id`, as the client wrote it. [`super::message_of`]
    /// finds its answer.
    Response(String),
}

const RULES: ContentRules = ContentRules { text_types: &["input_text"], ignored: |_| false };

impl Request {
    /// Reads a body of `tenant`, whose threads and agents it names.
    ///
    /// # Errors
    /// It is no such body, or asks for what cannot be done: tools of the client, images, files, several inputs, formats.
    pub fn parse(body: &[u8], tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        refuse_unsupported(&fields)?;
        let follows = follows(&fields, tenant)?;
        let (text, said) = input(&fields, &follows)?;
        let given = fields.text("instructions")?.map(str::to_owned);
        let instructions: Vec<String> = given.into_iter().chain(said).collect();
        Ok(Self {
            agent: fields.id("model", |name| AgentId::of_tenant(tenant, name))?,
            follows,
            text,
            instructions: (!instructions.is_empty()).then(|| instructions.join("\n\n")),
            stream: fields.flag("stream")?,
            background: fields.flag("background")?,
            metadata: fields.metadata("metadata")?,
        })
    }
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

/// The new input, and instructions among the items.
fn input(fields: &Fields<'_>, follows: &Follows) -> Result<(String, Option<String>), BadRequest> {
    if !matches!(fields.get("input"), Some(Value::Array(_))) {
        return Ok((input_of(fields, "input", &RULES)?, None));
    }
    for (index, item) in fields.array("input")?.into_iter().flatten().enumerate() {
        let item = Fields::inside(format!("input[{index}]"), item)?;
        if item.text("type")?.is_some_and(|kind| kind != "message") {
            return Err(item.unsupported("type", "only messages can be sent"));
        }
    }
    let (message, earlier) = last_message(fields, "input")?;
    let instructions = instructions_of("input", earlier, &RULES)?;
    if earlier.len() > instructions.messages {
        return Err(match follows {
            // All of them are new.
            Follows::Thread(_) | Follows::Response(_) => {
                fields.unsupported("input", "one message at a time: a turn has one input")
            }
            Follows::Nothing => BadRequest::NoThread {
                param: "input".to_owned(),
                name: "name it in `conversation` or `previous_response_id`, and send the new message alone",
            },
        });
    }
    Ok((input_of(&message, "content", &RULES)?, instructions.text))
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), BadRequest> {
    fields.refuse("tools", "tools belong to the agent's workflow and are called there")?;
    fields.refuse("prompt", "prompts belong to the agent's settings")?;
    let Some(text) = fields.object("text")? else { return Ok(()) };
    let Some(format) = text.object("format")? else { return Ok(()) };
    match format.text("type")? {
        None | Some("text") => Ok(()),
        Some(_) => Err(text.unsupported("format", "answers are text")),
    }
}
