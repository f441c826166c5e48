//! What is posted to `/v1/chat/completions`.

use model::{AgentId, Metadata, Tenant, ThreadId};

use crate::request::{BadRequest, ContentRules, Fields, input_of, instructions_of, last_message, object};

/// The body of a `POST`. Source: <https://platform.openai.com/docs/api-reference/chat/create>.
///
/// Not read: `user`, and how the model samples (`temperature`, `max_tokens`, `seed`, …), which the agent's settings say.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The thread; `None` for a new one.
    pub thread: Option<ThreadId>,
    /// Whose workflow answers.
    pub agent: AgentId,
    /// The new input.
    pub text: String,
    /// System and developer messages, for a gateway that lets clients give instructions.
    pub instructions: Option<String>,
    /// Whether the answer comes as a stream.
    pub stream: bool,
    /// Whether the stream ends with the usage.
    pub include_usage: bool,
    /// The request's metadata.
    pub metadata: Metadata,
}

const RULES: ContentRules = ContentRules { text_types: &["text"], ignored: |_| false };

impl Request {
    /// Reads a body of `tenant`, whose threads and agents it names. `thread`: named outside of it, by a header for example; `metadata.thread_id` names one, too. Without
    /// either the thread is new, and then no earlier messages can have been said in it.
    ///
    /// # Errors
    /// It is no such body, or asks for what cannot be done: tools of the client, images, formats, several choices.
    pub fn parse(body: &[u8], thread: Option<ThreadId>, tenant: Option<&Tenant>) -> Result<Self, BadRequest> {
        let body = object(body)?;
        let fields = Fields::of(&body);
        refuse_unsupported(&fields)?;
        let agent = fields.required("model", fields.id("model", |name| AgentId::of_tenant(tenant, name))?)?;
        let (message, earlier) = last_message(&fields, "messages")?;
        let metadata = fields.metadata("metadata")?;
        let named = match fields.object("metadata")? {
            Some(metadata) => metadata.id("thread_id", |name| ThreadId::of_tenant(tenant, name))?,
            None => None,
        };
        let thread = thread.or(named);
        let instructions = instructions_of("messages", earlier, &RULES)?;
        if thread.is_none() && earlier.len() > instructions.messages {
            let name = "name it in `metadata.thread_id`, or send the new message alone";
            return Err(BadRequest::NoThread { param: "messages".to_owned(), name });
        }
        let options = fields.object("stream_options")?;
        Ok(Self {
            thread,
            agent,
            text: input_of(&message, "content", &RULES)?,
            instructions: instructions.text,
            stream: fields.flag("stream")?,
            include_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
            metadata,
        })
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), BadRequest> {
    for key in ["tools", "functions"] {
        fields.refuse(key, "tools belong to the agent's workflow and are called there")?;
    }
    for key in ["audio", "logprobs", "prediction", "web_search_options"] {
        fields.refuse(key, "not supported")?;
    }
    if fields.get("n").is_some_and(|n| n.as_u64() != Some(1)) {
        return Err(fields.unsupported("n", "a turn has one answer"));
    }
    let is_text = |format: &Fields<'_>| Ok(format.text("type")?.is_none_or(|kind| kind == "text"));
    match fields.object("response_format")? {
        Some(format) if !is_text(&format)? => Err(fields.unsupported("response_format", "answers are text")),
        _ => Ok(()),
    }
}
