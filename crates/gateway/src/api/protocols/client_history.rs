//! Where a request of OpenAI's protocols has its input: in the thread that it names, in a new one,
//! or in a temporary one. Earlier messages of the request are imported if the thread has none.

use batches::Item;
use batches::foreign::{self, ForeignError, ForeignFormat, Strictness};
use http_server::error::Problem;
use model::{AgentId, AgentSetting, Metadata, Role, ThreadId};
use protocols::request::{BadRequest, SentHistory};
use serde_json::Value;
use store::{ImportAct, ImportOutcome, NewThread, ThreadImport};

use crate::api::protocols::new_thread;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::{control, submit};

/// The messages precede the input that came with them; their real times are unknown.
const BEFORE_MS: i64 = 60_000;

/// What a request says about its place.
pub(crate) struct PlaceRequest<'a> {
    /// The thread that the request names.
    pub(crate) thread: Option<ThreadId>,
    pub(crate) agent: &'a AgentId,
    pub(crate) key: Option<&'a str>,
    /// The request asks for a thread that is not kept.
    pub(crate) is_temporary: bool,
    pub(crate) history: Option<SentHistory>,
}

/// The place of an input.
pub(crate) struct RequestPlace {
    pub(crate) thread: ThreadId,
    pub(crate) is_temporary: bool,
    /// Messages to write before the input.
    earlier: Vec<Item>,
}

/// Decides where the input goes. Nothing is written yet.
///
/// # Errors
/// The agent's settings refuse the history, or it cannot be stored.
pub(crate) async fn place(ctx: &RequestContext, wanted: PlaceRequest<'_>) -> Result<RequestPlace, Problem> {
    let PlaceRequest { thread: named, agent, key, mut is_temporary, history } = wanted;
    let backend = ctx.backend()?;
    let thread = named.clone().map_or_else(|| new_thread(ctx, key), Ok)?;
    let mut earlier = Vec::new();
    if let Some(history) = history
        && (named.is_none() || submit::is_unused(backend, &thread, agent).await?)
    {
        let settings = backend.store().agent_admission(agent).await?.settings;
        match AgentSetting::CLIENT_HISTORY.string(&settings) {
            Some("refuse") if named.is_none() => return Err(history.refusal().into()),
            Some("refuse" | "ignore") => {}
            rule => {
                is_temporary |= named.is_none() && rule != Some("import");
                earlier = read(backend, &thread, history)?;
            }
        }
    }
    Ok(RequestPlace { thread, is_temporary, earlier })
}

fn refused(param: String, why: String) -> BadRequest {
    BadRequest::Unsupported { param, why: why.into() }
}

/// The messages as whole batches.
fn read(backend: &Backend, thread: &ThreadId, history: SentHistory) -> Result<Vec<Item>, Problem> {
    let param = history.param;
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
    let mut messages: Vec<_> = read.into_iter().flat_map(|thread| thread.messages).collect();
    for message in &mut messages {
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
        message.created_at = Some(now.plus_ms(-BEFORE_MS));
    }
    Ok(foreign::assign_positions(thread, messages, now).items)
}

impl RequestPlace {
    /// Writes the earlier messages, if there are any. If the thread has messages already, the
    /// request was repeated, and nothing is written.
    pub(crate) async fn write(self, ctx: &RequestContext, agent: &AgentId) -> Result<(), Problem> {
        let Self { thread, earlier, is_temporary } = self;
        let backend = ctx.backend()?;
        if earlier.is_empty() {
            return Ok(());
        }
        let has_messages = async || -> Result<bool, Problem> {
            Ok(backend.store().thread(&thread).await?.is_some_and(|row| row.messages > 0))
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
