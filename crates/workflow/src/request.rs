//! A delivered and validated turn request: the input of an engine.

use std::time::Duration;

use model::{InvalidId, InvalidTurnId, MessageId, ThreadId, Timestamp, TurnId, TurnToken, quoting};
use runtime::traces::TraceContext;
use serde_json::{Map, Value};
use wire::work::{ContextMessage, RememberedFact, TaskRef, TurnRequest};

/// Minimum deadline: shorter ones leave time only for keep-alive chunks.
const SHORTEST_DEADLINE: Duration = Duration::from_millis(300);

/// One attempt at one run of a turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnAttempt {
    pub(crate) id: TurnId,
    pub(crate) run: u32,
    /// Attempt number in the chunks of this delivery: each delivery fences earlier ones.
    pub(crate) attempt: u32,
    /// An earlier delivery of the request was not acknowledged.
    pub(crate) is_redelivered: bool,
    /// After this time a first delivery is not begun.
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) agent: String,
    pub(crate) thread: ThreadId,
    pub(crate) message: MessageId,
    pub(crate) token: TurnToken,
    pub(crate) subject: String,
    pub(crate) deadline: Duration,
    /// `task`, `work_request` or `memory`; `None` for a person's message.
    pub(crate) task_kind: Option<String>,
    pub(crate) context: Vec<ContextMessage>,
    /// Summary that replaces the turns before the context.
    pub(crate) summary: Option<String>,
    /// The agent's facts that fit the input, formatted for the model.
    pub(crate) memory: Option<String>,
    pub(crate) settings: Map<String, Value>,
    /// The client's model parameters for this turn.
    pub(crate) parameters: Map<String, Value>,
    pub(crate) correlation_id: Option<Box<str>>,
    /// Trace of the attempt's spans and of its first frame; set by the service.
    pub(crate) trace: Option<TraceContext>,
}

/// The payload is not a turn request, so redelivery does not help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidRequest {
    #[error("not a turn request: {0}")]
    Json(#[from] serde_json::Error),
    #[error("turn_id: {0}")]
    Turn(#[from] InvalidTurnId),
    #[error("{0}: {1}")]
    Id(&'static str, InvalidId),
    #[error("the context is empty: there is nothing to answer")]
    Empty,
    #[error("{0:?} is no subject for the chunks of this thread")]
    Subject(String),
}

impl TurnAttempt {
    /// Parses the payload; `delivered` is the delivery number, from 1.
    pub(crate) fn read(payload: &[u8], delivered: u64) -> Result<Self, InvalidRequest> {
        let request: TurnRequest = serde_json::from_slice(payload)?;
        let thread =
            ThreadId::parse(&request.thread_id).map_err(|error| InvalidRequest::Id("thread_id", error))?;
        let message =
            MessageId::parse(&request.message_id).map_err(|error| InvalidRequest::Id("message_id", error))?;
        if request.context.is_empty() {
            return Err(InvalidRequest::Empty);
        }
        if !is_subject_of(&request.subject, &thread) {
            return Err(InvalidRequest::Subject(request.subject.chars().take(200).collect()));
        }
        let again = u32::try_from(delivered.saturating_sub(1)).unwrap_or(u32::MAX);
        Ok(Self {
            id: TurnId::parse(&request.turn_id)?,
            run: request.run,
            attempt: request.attempt.saturating_add(again),
            is_redelivered: again > 0,
            // An unreadable time does not end the turn: the owner stops it.
            expires_at: request.expires_at.as_deref().and_then(wire::parse_rfc3339),
            agent: request.agent_id,
            thread,
            message,
            token: TurnToken::received(&request.turn_token),
            subject: request.subject,
            deadline: Duration::from_millis(request.deadline_ms).max(SHORTEST_DEADLINE),
            memory: remembered(request.task.as_ref(), &request.memory),
            task_kind: request.task.map(|task| task.kind),
            context: request.context,
            summary: request.summary,
            settings: request.settings,
            parameters: request.parameters,
            correlation_id: request.correlation_id.map(Into::into),
            trace: None,
        })
    }

    /// Whether the run has failed because no chunk came in time. An earlier delivery may have kept
    /// the run alive, so a later one is always begun. The owner answers its first chunk with a stop
    /// if the run is over.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        !self.is_redelivered && self.expires_at.is_some_and(|at| now > at)
    }

    /// The text to answer: the last message of the context.
    pub(crate) fn input(&self) -> &str {
        self.context.last().map_or("", |message| &message.content)
    }

    /// A non-empty text setting of the agent.
    pub(crate) fn text_setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// The client's instructions for the model, in addition to the agent's `system`.
    pub(crate) fn instructions(&self) -> Option<&str> {
        self.parameters.get("instructions").and_then(Value::as_str).filter(|text| !text.is_empty())
    }
}

/// The facts as text for the model, with their ids if it may name outdated ones.
fn remembered(task: Option<&TaskRef>, facts: &[RememberedFact]) -> Option<String> {
    let names_ids = task.is_some_and(|task| task.kind == "memory");
    let shown = |fact: &RememberedFact| (fact.text.clone(), names_ids.then(|| fact.fact_id.clone()));
    let facts: Vec<_> = facts.iter().map(shown).collect();
    quoting::facts_text(facts.iter().map(|(text, id)| (text.as_str(), id.as_deref())))
}

/// Accepts `chunks.<thread>` or `chunks.<p>.<thread>`: a request must not make this service publish
/// elsewhere.
fn is_subject_of(subject: &str, thread: &ThreadId) -> bool {
    let Some(rest) = subject.strip_prefix("chunks.") else { return false };
    let last = rest.split_once('.').map_or(rest, |(partition, last)| {
        if partition.bytes().all(|byte| byte.is_ascii_digit()) { last } else { "" }
    });
    last == thread.as_str()
}

#[cfg(test)]
pub(crate) mod tests;
