//! Tool calls of unknown outcome. Workflow services store them in the stream of tool calls, people
//! decide, and the services read the decision.

use std::time::Duration;

use bus::{BusError, StoredEntry};
use futures_util::{StreamExt, TryStreamExt};
use http_server::error::{ErrorCode, Problem};
use model::{Seq, ThreadId, TurnId};
use wire::subject::{self, ToolCallPlace};
use wire::tool_calls::{ToolDecision, ToolIncident};

use crate::backend::Backend;
use crate::commands::control;

/// Maximum time to store a decision.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to store a decision: a service may store a waiting incident again in between.
const STORE_TRIES: usize = 3;
/// Concurrent reads of incidents.
const CONCURRENT_READS: usize = 16;
/// Maximum number of incidents that a list reads.
const MOST_READ: usize = 10_000;

/// An incident and its place.
pub(crate) struct FoundIncident {
    pub(crate) place: ToolCallPlace,
    pub(crate) incident: ToolIncident,
    /// Sequence of its entry in the stream.
    seq: Seq,
}

/// The incidents of threads that satisfy `is_ours`, newest first; unless `all`, only undecided
/// ones.
pub(crate) async fn list(
    backend: &Backend,
    all: bool,
    is_ours: impl Fn(&ThreadId) -> bool,
) -> Result<Vec<FoundIncident>, Problem> {
    let subjects = subjects(backend, subject::ALL_TOOL_INCIDENTS).await?;
    let ours = |name: &String| subject::parse_tool_call(name).is_some_and(|place| is_ours(&place.thread));
    let mut ours: Vec<String> = subjects.into_iter().filter(ours).collect();
    if ours.len() > MOST_READ {
        tracing::warn!(incidents = ours.len(), "a list of tool calls of unknown outcome leaves some out");
        ours.truncate(MOST_READ);
    }
    let read = futures_util::stream::iter(ours)
        .map(|name| async move { found(backend, &name).await })
        .buffer_unordered(CONCURRENT_READS);
    let found: Vec<Option<FoundIncident>> = read.try_collect().await?;
    let mut found: Vec<FoundIncident> = found.into_iter().flatten().collect();
    found.retain(|found| all || found.incident.decision.is_none());
    found.sort_by(|a, b| b.incident.detected_at.cmp(&a.incident.detected_at).then(b.seq.cmp(&a.seq)));
    Ok(found)
}

/// Stores a person's decision. A turn that waits for it continues within seconds.
pub(crate) async fn decide(
    backend: &Backend,
    actor: &str,
    thread: &ThreadId,
    turn: &TurnId,
    call: &str,
    decision: ToolDecision,
) -> Result<FoundIncident, Problem> {
    let unknown = || Problem::from(ErrorCode::UnknownToolIncident);
    // Anything else could be a NATS wildcard.
    if call.is_empty() || !call.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        return Err(unknown());
    }
    let name =
        subjects(backend, &format!("tool_incidents.*.{thread}.{turn}.{call}")).await?.into_iter().next();
    let found = match name {
        Some(name) => found(backend, &name).await?,
        None => None,
    };
    let mut found = found.ok_or_else(unknown)?;
    let (detail, command) = (format!("{}: {}", found.incident.tool, decision.name()), control::new_id()?);
    let decided = || Problem::from(ErrorCode::ToolIncidentDecided);
    if found.incident.decision.is_some() {
        return Err(decided());
    }
    let audit = async |command, detail: &str| {
        let store = backend.store();
        store.log_act(thread.as_str(), command, actor, "decide_tool_call", turn.as_str(), detail).await
    };
    // The audit entry is written before the decision, so that no decision lacks one.
    audit(&command, &detail).await?;
    for _ in 0..STORE_TRIES {
        let incident = ToolIncident {
            decision: Some(decision.clone()),
            decided_by: Some(actor.to_owned()),
            ..found.incident.clone()
        };
        let payload = serde_json::to_vec(&incident)
            .map_err(|error| Problem::new(ErrorCode::InvalidDecision, error.to_string()))?;
        let FoundIncident { place, seq, .. } = &found;
        let subject = subject::tool_incident(&place.workflow, &place.thread, &place.turn, &place.call);
        let stored = backend.bus.replace_entry(&subject, payload.into(), *seq, STORE_TIMEOUT).await;
        if let Some(seq) = stored.map_err(|error| unavailable(&error))? {
            tracing::info!(%thread, %turn, call, actor, detail, "a tool call of unknown outcome was decided");
            return Ok(FoundIncident { place: found.place, incident, seq });
        }
        // The service stored the incident again, another person decided, or the acknowledgement of
        // this decision was lost.
        found = self::found(backend, &subject).await?.ok_or_else(unknown)?;
        match &found.incident.decision {
            None => {}
            Some(theirs) if *theirs == decision && found.incident.decided_by.as_deref() == Some(actor) => {
                return Ok(found);
            }
            Some(_) => break,
        }
    }
    audit(&control::new_id()?, &format!("{detail}, not stored: it was decided meanwhile")).await?;
    Err(decided())
}

async fn subjects(backend: &Backend, filter: &str) -> Result<Vec<String>, Problem> {
    let subjects = backend.bus.subjects(subject::TOOL_CALLS_STREAM, filter).await;
    Ok(subjects.map_err(|error| unavailable(&error))?.into_keys().collect())
}

/// `None`: it is gone, or cannot be decoded.
async fn found(backend: &Backend, name: &str) -> Result<Option<FoundIncident>, Problem> {
    let entry = backend.bus.last_entry(subject::TOOL_CALLS_STREAM, name).await;
    Ok(entry.map_err(|error| unavailable(&error))?.and_then(|entry| read(&entry)))
}

fn read(entry: &StoredEntry) -> Option<FoundIncident> {
    let (place, incident) =
        (subject::parse_tool_call(&entry.subject)?, serde_json::from_slice(&entry.payload).ok()?);
    Some(FoundIncident { place, incident, seq: entry.seq })
}

fn unavailable(error: &BusError) -> Problem {
    tracing::warn!(%error, "the stream of tool calls cannot be used");
    Problem::new(ErrorCode::NatsUnavailable, "tool calls cannot be read or decided at the moment")
}
