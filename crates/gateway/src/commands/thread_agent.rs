//! Which agent answers in a thread.
//!
//! A client names the agent, or the first message does. The end of the first turn stores the agent
//! that has answered it. Until then the list of threads has the agent of the first message. A
//! thread without any of these has the agent with its own id if there is one, else the default
//! agent.

use std::collections::HashSet;

use http_server::error::Problem;
use model::{AgentId, ThreadId};
use store::{Listing, ThreadRow};

use crate::backend::Backend;

/// The agent that answers in a thread. `row`: what is stored of the thread.
pub(crate) async fn of_thread(
    backend: &Backend,
    thread: &ThreadId,
    row: Option<&ThreadRow>,
) -> Result<AgentId, Problem> {
    let found = match row {
        Some(row) => stored(Some(row), row.listing.as_ref()),
        None => stored(None, backend.store().listing(thread).await?.as_ref()),
    };
    match found {
        Some(agent) => Ok(agent),
        None => Ok(undecided(thread, &known(backend, [thread].into_iter()).await?, backend)),
    }
}

/// The stored agent of a thread; `None`: it is not decided yet.
pub(crate) fn stored(row: Option<&ThreadRow>, listing: Option<&Listing>) -> Option<AgentId> {
    let named = row.and_then(|row| row.named.agent.clone());
    named.or_else(|| listing.and_then(|listing| listing.agent.clone()))
}

/// The agents with the ids of these threads that have settings, a queue or tasks.
pub(crate) async fn known<'a>(
    backend: &Backend,
    threads: impl Iterator<Item = &'a ThreadId>,
) -> Result<HashSet<AgentId>, Problem> {
    let own: Vec<AgentId> = threads.map(ThreadId::agent).collect();
    Ok(backend.store().known_agents(&own).await?)
}

/// The agent of a thread for which none is stored. `known`: see [`known`].
pub(crate) fn undecided(thread: &ThreadId, known: &HashSet<AgentId>, backend: &Backend) -> AgentId {
    let own = thread.agent();
    match known.contains(&own) {
        true => own,
        false => backend.default_agent_of(thread.tenant().as_ref()),
    }
}
