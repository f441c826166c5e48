//! Facts that an agent remembers from an answer, as people see them: with the source and the undo
//! request.

use bytes::Bytes;
use model::{AgentId, MessageId, ThreadId, TimerId, TurnId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{schemas, sse};

/// Characters to escape in a path segment: all but the unreserved ones of RFC 3986. Imported ids
/// may have any characters.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A fact that an agent remembers from an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RememberedFact {
    /// Id of the fact.
    fact_id: String,
    /// Id of the agent that remembers it.
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    /// Text of the fact.
    text: String,
    /// Subject of the fact, such as `preference`.
    kind: String,
    /// The message whose words the fact comes from: the input of the turn; null if no person wrote
    /// it.
    #[schema(value_type = Option<schemas::MessageIdSchema>, required)]
    source_message_id: Option<String>,
    /// The request that takes it back.
    undo: UndoRequest,
}

/// The request that takes a fact back. Facts that it replaced apply again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UndoRequest {
    /// The method of the HTTP request, which needs the scope `agents:operate`.
    method: &'static str,
    /// The path of the request with its query.
    path: String,
}

impl RememberedFact {
    /// A fact that the agent remembers from this answer.
    pub fn new(agent: &AgentId, answer: &MessageId, id: &str, text: &str, kind: &str) -> Self {
        let path =
            format!("/v1/agents/{}/memory/{}?restore=true", agent.name(), utf8_percent_encode(id, SEGMENT));
        Self {
            fact_id: id.to_owned(),
            agent_id: agent.name().to_owned(),
            text: text.to_owned(),
            kind: kind.to_owned(),
            source_message_id: source(answer).map(|source| source.as_str().to_owned()),
            undo: UndoRequest { method: "DELETE", path },
        }
    }
}

/// The person's message that an answer replies to.
fn source(answer: &MessageId) -> Option<MessageId> {
    let (turn, _) = TurnId::of_answer(answer)?;
    let is_of_person = turn.is_foreground() && !turn.is_continuation() && TimerId::of_turn(&turn).is_none();
    is_of_person.then(|| turn.input())
}

/// Facts were remembered after an answer was stored. The event has no id: a client that was
/// disconnected finds them in the history, with the answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct RememberedEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Id of the answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// The remembered facts, at most 32.
    facts: &'a [RememberedFact],
}

/// Encodes the event of these facts.
pub fn remembered(thread: &ThreadId, answer: &MessageId, facts: &[RememberedFact]) -> Bytes {
    let mut out = Vec::with_capacity(256 + 512 * facts.len());
    out.extend_from_slice(b"event: remembered\n");
    let turn = TurnId::of_answer(answer).map(|(turn, _)| turn);
    let turn_id = turn.as_ref().map(TurnId::as_str);
    sse::data(
        &mut out,
        &RememberedEvent { thread_id: thread.name(), message_id: answer.as_str(), turn_id, facts },
    );
    out.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_fact_names_its_source_and_how_it_is_taken_back() {
        let thread = ThreadId::parse("acme~hello").unwrap();
        let agent = AgentId::parse("acme~ann").unwrap();
        let turn = TurnId::foreground(&thread, "x").unwrap();
        let goes_on = TurnId::continuation(&thread, model::Position::from_stored(7)).unwrap();
        for (answer, source) in [
            (turn.answer(0), json!(turn.input().as_str())),
            (turn.answer(2), json!(turn.input().as_str())),
            (goes_on.answer(0), Value::Null),
            (MessageId::parse("m1").unwrap(), Value::Null),
        ] {
            let fact = RememberedFact::new(&agent, &answer, "a b/ü", "Ann likes tea.", "preference");
            let event = String::from_utf8(remembered(&thread, &answer, &[fact]).to_vec()).unwrap();
            let data = event.strip_prefix("event: remembered\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!((&data["thread_id"], &data["message_id"]), (&json!("hello"), &json!(answer.as_str())));
            let undo =
                json!({"method": "DELETE", "path": "/v1/agents/ann/memory/a%20b%2F%C3%BC?restore=true"});
            let fact = json!({
                "fact_id": "a b/ü", "agent_id": "ann", "text": "Ann likes tea.", "kind": "preference",
                "source_message_id": source, "undo": undo,
            });
            assert_eq!(data["facts"], json!([fact]), "{answer}");
        }
    }
}
