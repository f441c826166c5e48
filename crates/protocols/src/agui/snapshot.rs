//! Messages of a thread as AG-UI has them, for `MESSAGES_SNAPSHOT`. Source:
//! <https://docs.ag-ui.com/sdk/js/core/types#message-types>.

use model::MessageId;
use serde::Serialize;
use serde_json::Value;

/// A message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum AgUiMessage {
    User {
        id: String,
        content: String,
    },
    System {
        id: String,
        content: String,
    },
    #[serde(rename_all = "camelCase")]
    Assistant {
        id: String,
        content: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<AgUiCall>,
    },
    #[serde(rename_all = "camelCase")]
    Tool {
        id: String,
        tool_call_id: String,
        content: String,
    },
}

/// A call in a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgUiCall {
    /// As in `TOOL_CALL_START`.
    id: String,
    /// `function`.
    r#type: &'static str,
    function: AgUiFunction,
}

/// The function of a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgUiFunction {
    name: String,
    /// The arguments as JSON text.
    arguments: String,
}

impl AgUiMessage {
    /// A message of an answer with its stored calls: a JSON array of objects with `id`, `name` and
    /// `arguments`.
    pub fn assistant(id: String, answer: &MessageId, content: String, calls: Option<&Value>) -> Self {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let call = |call: &Value| AgUiCall {
            id: call_id(answer, call["id"].as_str().unwrap_or_default()),
            r#type: "function",
            function: AgUiFunction { name: text(&call["name"]), arguments: text(&call["arguments"]) },
        };
        let calls = calls.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Self::Assistant { id, content, tool_calls: calls.iter().map(call).collect() }
    }

    /// The result of a call of an answer.
    pub fn result(id: String, answer: &MessageId, call: &str, content: String) -> Self {
        Self::Tool { id, tool_call_id: call_id(answer, call), content }
    }
}

/// Producers restart their call ids in each turn, and a client treats calls with equal ids as one
/// call.
pub(super) fn call_id(answer: &MessageId, id: &str) -> String {
    format!("{answer}-{id}")
}
