//! A turn request as it was delivered, checked: what an engine is asked to answer.

use std::time::Duration;

use model::{InvalidId, InvalidTurnId, MessageId, ThreadId, TurnId, TurnToken};
use serde_json::{Map, Value};
use wire::work::{ContextMessage, TurnRequest};

/// Shorter deadlines would have the service send nothing but signs of life.
const SHORTEST_DEADLINE: Duration = Duration::from_millis(300);

/// One attempt at one run of a turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) id: TurnId,
    pub(crate) run: u32,
    /// What the chunks of this delivery bear: each delivery fences the ones before it.
    pub(crate) attempt: u32,
    pub(crate) agent: String,
    pub(crate) thread: ThreadId,
    pub(crate) message: MessageId,
    pub(crate) token: TurnToken,
    pub(crate) subject: String,
    pub(crate) deadline: Duration,
    /// `task`, `work_request` or `memory`; none for a person's message.
    pub(crate) task_kind: Option<String>,
    pub(crate) context: Vec<ContextMessage>,
    /// Stands for the turns before the context.
    pub(crate) summary: Option<String>,
    pub(crate) settings: Map<String, Value>,
    /// What the client asks of the model for this turn.
    pub(crate) parameters: Map<String, Value>,
    pub(crate) correlation_id: Option<Box<str>>,
}

/// A payload that is no turn request: it will never be one.
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

impl Turn {
    /// Reads the payload of the `delivered`th delivery, from 1.
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
            agent: request.agent_id,
            thread,
            message,
            token: TurnToken::received(&request.turn_token),
            subject: request.subject,
            deadline: Duration::from_millis(request.deadline_ms).max(SHORTEST_DEADLINE),
            task_kind: request.task.map(|task| task.kind),
            context: request.context,
            summary: request.summary,
            settings: request.settings,
            parameters: request.parameters,
            correlation_id: request.correlation_id.map(Into::into),
        })
    }

    /// The text that is to be answered: the last message of the context.
    pub(crate) fn input(&self) -> &str {
        self.context.last().map_or("", |message| &message.content)
    }

    /// A setting of the agent that is a text with something in it.
    pub(crate) fn text_setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// What the client tells the model besides the agent's `system`.
    pub(crate) fn instructions(&self) -> Option<&str> {
        self.parameters.get("instructions").and_then(Value::as_str).filter(|text| !text.is_empty())
    }
}

/// `chunks.<thread>` or `chunks.<p>.<thread>`: a request must not make this service write elsewhere.
fn is_subject_of(subject: &str, thread: &ThreadId) -> bool {
    let Some(rest) = subject.strip_prefix("chunks.") else { return false };
    let last = rest.split_once('.').map_or(rest, |(partition, last)| {
        if partition.bytes().all(|byte| byte.is_ascii_digit()) { last } else { "" }
    });
    last == thread.as_str()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn request() -> Value {
        json!({
            "turn_id": "u0001-x", "run": 2, "attempt": 0, "workflow": "default", "agent_id": "a", "thread_id": "t",
            "message_id": "u0001-x-a2", "turn_token": "secret", "subject": "chunks.0.t", "stop_subject": "stop.u0001-x.2",
            "deadline_ms": 60_000, "context": [{"role": "user", "content": "hello", "message_id": "u0001-x-q"}],
            "settings": {"model": "m"},
        })
    }

    pub(crate) fn turn() -> Turn {
        Turn::read(request().to_string().as_bytes(), 1).unwrap()
    }

    #[test]
    fn each_delivery_is_an_attempt_of_its_own() {
        let payload = request().to_string();
        let attempts = [0, 1, 2, 7].map(|d| Turn::read(payload.as_bytes(), d).unwrap().attempt);
        assert_eq!(attempts, [0, 0, 1, 6]);
        let mut later = request();
        later["attempt"] = json!(3);
        assert_eq!(Turn::read(later.to_string().as_bytes(), 2).unwrap().attempt, 4);
        assert_eq!(turn().input(), "hello");
        assert_eq!(turn().text_setting("model"), Some("m"));
        assert_eq!(turn().text_setting("system"), None);
    }

    #[test]
    fn what_is_no_request_says_why() {
        let with = |key: &str, value: Value| {
            let mut request = request();
            request[key] = value;
            Turn::read(request.to_string().as_bytes(), 1).unwrap_err().to_string()
        };
        assert!(Turn::read(b"{", 1).unwrap_err().to_string().starts_with("not a turn request: EOF"));
        assert!(
            Turn::read(b"[]", 1).is_err() && Turn::read(b"\xff", 1).is_err() && Turn::read(b"{}", 1).is_err()
        );
        assert!(with("turn_id", json!("x")).starts_with("turn_id: "));
        assert!(with("thread_id", json!("a b")).starts_with("thread_id: "));
        assert!(with("message_id", json!("")).starts_with("message_id: "));
        assert_eq!(with("context", json!([])), "the context is empty: there is nothing to answer");
        for subject in ["chunks.0.u", "chunks.t.t", "tasks.0.t", "chunks.0.0.t", "chunks.>", "_INBOX.t", ""] {
            assert!(with("subject", json!(subject)).contains("no subject"), "{subject}");
        }
    }

    #[test]
    fn the_plain_subject_is_as_good_as_the_exact_one() {
        let thread = ThreadId::parse("t").unwrap();
        assert!(is_subject_of("chunks.t", &thread) && is_subject_of("chunks.17.t", &thread));
    }
}
