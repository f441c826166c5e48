//! Imports the history that a client sends with a chat completion into the new thread, if the
//! agent's settings enable that.

use batches::Item;
use batches::foreign::{self, ForeignError, ForeignFormat, Strictness};
use http_server::error::Problem;
use model::{AgentId, AgentSetting, Metadata, Role, ThreadId};
use protocols::request::BadRequest;
use serde_json::Value;
use store::{ImportAct, ImportOutcome, NewThread, ThreadImport};

use crate::backend::Backend;
use crate::commands::control;

/// The messages precede the input that came with them; their real times are unknown.
const BEFORE_MS: i64 = 60_000;
/// Roles of instructions, which are not part of the history: the agent's setting
/// `client_instructions` decides about them.
const INSTRUCTIONS: [&str; 2] = ["system", "developer"];

/// Whether the agent imports histories.
pub(crate) async fn is_wanted(backend: &Backend, agent: &AgentId) -> Result<bool, Problem> {
    let settings = backend.store().agent_admission(agent).await?.settings;
    Ok(AgentSetting::CLIENT_HISTORY.string(&settings) == Some("import"))
}

fn refused(param: String, why: String) -> BadRequest {
    BadRequest::Unsupported { param, why: why.into() }
}

/// All messages of the body but the last one, as whole batches.
pub(crate) fn read(backend: &Backend, thread: &ThreadId, body: &[u8]) -> Result<Vec<Item>, Problem> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let all = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let earlier = all.split_last().map_or(&[][..], |(_, earlier)| earlier);
    let is_said = |(_, message): &(usize, &Value)| {
        !message["role"].as_str().is_some_and(|role| INSTRUCTIONS.contains(&role))
    };
    let (places, said): (Vec<usize>, Vec<Value>) =
        earlier.iter().enumerate().filter(is_said).map(|(at, message)| (at, message.clone())).unzip();
    let path = |index: usize| match places.get(index) {
        Some(at) => format!("messages[{at}]"),
        None => "messages".to_owned(),
    };
    let read = foreign::read(&Value::Array(said), ForeignFormat::OpenAi, Strictness::Strict);
    let read = read.map_err(|error| match error.without_hint() {
        ForeignError::Message { index, wrong } => {
            refused(path(index), format!("it cannot be kept in the history: {wrong}"))
        }
        error => refused("messages".to_owned(), format!("they cannot be kept in the history: {error}")),
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

/// Writes the messages, if there are any. If the thread has messages already, the request was
/// repeated, and nothing is written.
pub(crate) async fn write(
    backend: &Backend,
    thread: &ThreadId,
    agent: &AgentId,
    items: Vec<Item>,
    actor: String,
) -> Result<(), Problem> {
    if items.is_empty() {
        return Ok(());
    }
    let named = NewThread {
        thread: thread.clone(),
        agent: Some(agent.clone()),
        policy: None,
        metadata: Metadata::EMPTY,
    };
    if backend.store().thread(thread).await?.is_some_and(|row| row.messages > 0) {
        return Ok(());
    }
    let import = ThreadImport::new(thread.clone(), Some(named), items);
    let act = ImportAct { command: control::new_id()?, actor };
    match backend.store().import_thread(&import, Some(&act)).await? {
        ImportOutcome::Stored(_) => Ok(()),
        // A concurrent copy of the same request has written the messages.
        _ if backend.store().thread(thread).await?.is_some_and(|row| row.messages > 0) => Ok(()),
        _ => Err(refused("messages".to_owned(), "the earlier messages cannot be kept".to_owned()).into()),
    }
}
