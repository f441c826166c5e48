//! Where a request of OpenAI's protocols has its input: in the thread that it names, in a new one,
//! or in a temporary one. Earlier messages of the request are imported if the thread has none.

use batches::Item;
use batches::foreign::{self, ForeignError, ForeignFormat, Strictness};
use http_server::error::Problem;
use model::{AgentId, AgentSetting, Metadata, Role, ThreadId};
use protocols::request::{BadRequest, SentHistory};
use serde_json::Value;
use sha2::{Digest, Sha256};
use store::{ImportAct, ImportOutcome, NewThread, ThreadImport};

use crate::api::client_headers::NamedByHeaders;
use crate::api::protocols::new_thread;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::{control, submit, thread_agent};

/// The messages precede the input that came with them; their real times are unknown.
const BEFORE_MS: i64 = 60_000;

/// What a request says about its place.
pub(crate) struct PlaceRequest<'a> {
    /// The thread that the request names.
    pub(crate) thread: Option<ThreadId>,
    pub(crate) headers: NamedByHeaders,
    /// The agent that the request names.
    pub(crate) agent: Option<&'a AgentId>,
    pub(crate) key: Option<&'a str>,
    /// The request asks for a thread that is not kept.
    pub(crate) is_temporary: bool,
    pub(crate) history: Option<SentHistory>,
}

/// The place of an input.
pub(crate) struct RequestPlace {
    pub(crate) thread: ThreadId,
    pub(crate) is_temporary: bool,
    /// Digest of the earlier messages of the request.
    pub(crate) history: Option<[u8; 32]>,
    /// Messages to write before the input.
    earlier: Vec<Item>,
}

/// Decides where the input goes. Nothing is written yet.
///
/// # Errors
/// The request names a thread and wants none that is kept, the agent's settings refuse the history,
/// or it cannot be stored.
pub(crate) async fn place(ctx: &RequestContext, wanted: PlaceRequest<'_>) -> Result<RequestPlace, Problem> {
    let PlaceRequest { thread: named, headers, agent, key, is_temporary, history } = wanted;
    let backend = ctx.backend()?;
    if headers.is_temporary && named.is_some() {
        let why = "the request names a thread, which is kept: leave one of the two out";
        return Err(refused("X-Antiphon-Temporary".to_owned(), why.to_owned()).into());
    }
    let mut is_temporary = is_temporary || headers.is_temporary;
    let named = named.or_else(|| headers.thread.filter(|_| !is_temporary));
    let thread = named.clone().map_or_else(|| new_thread(ctx, key), Ok)?;
    let digest = history.as_ref().map(digest);
    let mut place = RequestPlace { thread, is_temporary, history: digest, earlier: Vec::new() };
    let Some(history) = history else { return Ok(place) };
    if named.is_some() && !submit::is_unused(backend, &place.thread, agent).await? {
        return Ok(place);
    }
    let agent = match agent {
        Some(agent) => agent.clone(),
        None => {
            let row = backend.store().thread(&place.thread).await?;
            thread_agent::of_thread(backend, &place.thread, row.as_ref()).await?
        }
    };
    let settings = backend.store().agent_admission(&agent).await?.settings;
    match AgentSetting::CLIENT_HISTORY.string(&settings) {
        Some("refuse") if named.is_none() => return Err(history.refusal().into()),
        Some("refuse") => {
            let why = "the thread has no messages, and the agent's setting `client_history` refuses those of clients";
            return Err(refused(history.param.to_owned(), why.to_owned()).into());
        }
        Some("ignore") => {}
        rule => {
            is_temporary |= named.is_none() && rule != Some("import");
            let param = history.param;
            place.earlier = read(backend, &place.thread, history)?;
            if place.earlier.iter().zip(place.earlier.iter().skip(1).map(Some).chain([None])).any(is_cut) {
                let why = "each message of the person, each call of a tool and each result needs what follows it, up to an answer";
                return Err(refused(param.to_owned(), why.to_owned()).into());
            }
        }
    }
    Ok(RequestPlace { is_temporary, ..place })
}

fn digest(history: &SentHistory) -> [u8; 32] {
    let add = |hash: Sha256, (_, message): &(usize, Value)| hash.chain_update(message.to_string());
    history.messages.iter().fold(Sha256::new(), add).finalize().into()
}

/// True for the last message of a batch that is not its answer: models do not read such batches.
fn is_cut((item, next): (&Item, Option<&Item>)) -> bool {
    let is_last = next.is_none_or(|next| next.batch_id != item.batch_id);
    is_last && (item.role != Role::Assistant || item.calls().iter().any(|call| call.result.is_none()))
}

fn refused(param: String, why: String) -> BadRequest {
    BadRequest::Unsupported { param, why: why.into() }
}

/// Refuses content other than text, of which nothing would be left.
fn only_text(path: &str, content: &Value) -> Result<(), BadRequest> {
    let is_text = |part: &Value| matches!(part["type"].as_str(), Some("text" | "refusal"));
    let is_wrong = match content {
        Value::Null | Value::String(_) => None,
        Value::Array(parts) => {
            parts.iter().position(|part| !is_text(part)).map(|at| format!("{path}[{at}].type"))
        }
        _ => Some(path.to_owned()),
    };
    is_wrong.map_or(Ok(()), |wrong| Err(refused(wrong, "only text can be sent".to_owned())))
}

/// The messages as whole batches.
fn read(backend: &Backend, thread: &ThreadId, history: SentHistory) -> Result<Vec<Item>, Problem> {
    let param = history.param;
    for (at, message) in &history.messages {
        only_text(&format!("{param}[{at}].content"), &message["content"])?;
    }
    let (places, said): (Vec<usize>, Vec<Value>) = history.messages.into_iter().unzip();
    let path = |index: usize| match places.get(index) {
        Some(at) => format!("{param}[{at}]"),
        None => param.to_owned(),
    };
    let read = foreign::read(&Value::Array(said), ForeignFormat::OpenAi, Strictness::Strict);
    let read = read.map_err(|error| match error.without_hint() {
        ForeignError::Message { index, wrong } => {
            refused(path(index), format!("it cannot be kept in the history: {wrong}"))
        }
        error => refused(param.to_owned(), format!("they cannot be kept in the history: {error}")),
    })?;
    let now = backend.now();
    let messages: Vec<_> = read.into_iter().flat_map(|thread| thread.messages).collect();
    for message in &messages {
        // The import accepts more role names than the protocol, which has already decided about
        // instructions.
        if message.role == Role::System {
            let why =
                "instructions are accepted in messages of the role `system` or `developer`, in lower case";
            return Err(refused(path(message.index), why.to_owned()).into());
        }
        if let Err(error) = message.metadata.check_from_client() {
            return Err(refused(path(message.index), error.to_string()).into());
        }
    }
    // The ids of the messages depend on what they say, and not on when they were sent: a copy of
    // the request writes the same ones.
    let mut items = foreign::assign_positions(thread, messages, now).items;
    for item in &mut items {
        item.created_at = now.plus_ms(-BEFORE_MS);
    }
    Ok(items)
}

impl RequestPlace {
    /// Writes the earlier messages, if there are any. If the thread has messages already, the
    /// request was repeated, and nothing is written.
    pub(crate) async fn write(self, ctx: &RequestContext, agent: &AgentId) -> Result<(), Problem> {
        let Self { thread, earlier, is_temporary, .. } = self;
        let backend = ctx.backend()?;
        if earlier.is_empty() {
            return Ok(());
        }
        // A temporary thread whose messages were deleted is empty; others keep their head.
        let has_messages = async || -> Result<bool, Problem> {
            let row = backend.store().thread(&thread).await?;
            Ok(row.is_some_and(|row| row.messages > 0 || (!is_temporary && row.head.is_some())))
        };
        if has_messages().await? {
            return Ok(());
        }
        // A temporary thread is there already.
        let named = (!is_temporary).then(|| NewThread {
            thread: thread.clone(),
            agent: Some(agent.clone()),
            policy: None,
            metadata: Metadata::EMPTY,
        });
        let import = ThreadImport::new(thread.clone(), named, earlier);
        let act = ImportAct { command: control::new_id()?, actor: ctx.principal().name().to_owned() };
        match backend.store().import_thread(&import, Some(&act)).await? {
            ImportOutcome::Stored(_) => Ok(()),
            // A concurrent copy of the same request has written the messages.
            _ if has_messages().await? => Ok(()),
            _ => Err(refused("messages".to_owned(), "the earlier messages cannot be kept".to_owned()).into()),
        }
    }
}
