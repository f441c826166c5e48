//! UI messages of the history for a page: the same messages that the SDK builds from an answer's
//! stream.

use model::{MessageId, Metadata, Role};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::answer_parts::{PartChange, arguments};
use crate::encoder_driver::{AnswerEnd, AnswerReport, EncoderDriver, ProtocolEncoder};
use crate::{StoredAnswer, StreamAction};

use super::NO_RESULT;

/// A UI message of the history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryMessage {
    id: MessageId,
    role: &'static str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    metadata: Map<String, Value>,
    parts: Vec<HistoryPart>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum HistoryPart {
    StepStart,
    Text {
        text: String,
        state: &'static str,
    },
    Reasoning {
        text: String,
        state: &'static str,
    },
    DynamicTool {
        tool_name: String,
        tool_call_id: String,
        state: &'static str,
        input: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error_text: Option<String>,
        provider_executed: bool,
    },
}

const DONE: &str = "done";

/// Key in an input's metadata: the id that the client has given its message.
pub const CLIENT_MESSAGE_ID: &str = "client_message_id";

impl HistoryMessage {
    /// An input, under the client's own id if the client has given one.
    pub fn input(id: &MessageId, role: Role, text: &str, metadata: &Metadata) -> Self {
        let mut metadata = metadata.as_map().cloned().unwrap_or_default();
        let own = metadata.remove(CLIENT_MESSAGE_ID);
        let own = own.and_then(|own| MessageId::parse(own.as_str()?).ok());
        let parts = vec![HistoryPart::Text { text: text.to_owned(), state: DONE }];
        Self { id: own.unwrap_or_else(|| id.clone()), role: role.name(), metadata, parts }
    }

    /// An answer, with its steps.
    pub fn answer(id: &MessageId, answer: &StoredAnswer) -> Self {
        let mut fold = EncoderDriver::new(id.clone(), HistoryParts::default());
        for happening in answer.events() {
            let _ = fold.apply(happening);
        }
        let HistoryParts { parts, metadata, .. } = fold.words;
        let parts = parts.into_iter().map(|(_, part)| part).collect();
        Self { id: id.clone(), role: Role::Assistant.name(), metadata, parts }
    }
}

/// The parts so far, with the numbers of their spans and calls.
#[derive(Debug, Default)]
struct HistoryParts {
    parts: Vec<(Option<u32>, HistoryPart)>,
    metadata: Map<String, Value>,
}

impl HistoryParts {
    fn find(&mut self, number: u32) -> Option<&mut HistoryPart> {
        self.parts.iter_mut().rev().find(|(of, _)| *of == Some(number)).map(|(_, part)| part)
    }

    fn close(&mut self, number: u32, said: Result<String, String>) {
        if let Some(HistoryPart::DynamicTool { state, output, error_text, .. }) = self.find(number) {
            (*state, *output, *error_text) = match said {
                Ok(said) => ("output-available", Some(said), None),
                Err(said) => ("output-error", None, Some(said)),
            };
        }
    }
}

impl ProtocolEncoder for HistoryParts {
    fn open(&mut self, _out: &mut Vec<u8>) {}

    fn change(&mut self, change: PartChange<'_>, _out: &mut Vec<u8>) {
        match change {
            PartChange::StepBegan => self.parts.push((None, HistoryPart::StepStart)),
            PartChange::SpanBegan(span) => {
                let (text, state) = (String::new(), DONE);
                let part = match span.is_reasoning {
                    true => HistoryPart::Reasoning { text, state },
                    false => HistoryPart::Text { text, state },
                };
                self.parts.push((Some(span.part), part));
            }
            PartChange::SpanGrew(span, delta) => {
                if let Some(HistoryPart::Text { text, .. } | HistoryPart::Reasoning { text, .. }) =
                    self.find(span.part)
                {
                    text.push_str(delta);
                }
            }
            PartChange::CallBegan(call) => {
                let part = HistoryPart::DynamicTool {
                    tool_name: call.tool.clone(),
                    tool_call_id: call.id.clone(),
                    state: "input-available",
                    input: Value::Null,
                    output: None,
                    error_text: None,
                    provider_executed: true,
                };
                self.parts.push((Some(call.part), part));
            }
            PartChange::CallEnded(call, text) => {
                let parsed = arguments::parse(&text);
                let refused =
                    parsed.as_ref().err().map(|error| format!("the arguments are no JSON: {error}"));
                if let Some(HistoryPart::DynamicTool { input, .. }) = self.find(call.part) {
                    *input = parsed.unwrap_or(Value::String(text));
                }
                if let Some(refused) = refused {
                    self.close(call.part, Err(refused));
                }
            }
            PartChange::ResultEnded(call, whole) => {
                self.close(call.part, if whole.is_error { Err(whole.text) } else { Ok(whole.text) });
            }
            PartChange::Unanswered(call) => {
                let is_refused = matches!(
                    self.find(call.part),
                    Some(HistoryPart::DynamicTool { error_text: Some(_), .. })
                );
                if !is_refused {
                    self.close(call.part, Err(NO_RESULT.to_owned()));
                }
            }
            PartChange::Noted(metadata) => {
                self.metadata.extend(metadata.as_map().cloned().unwrap_or_default())
            }
            PartChange::StepEnded
            | PartChange::SpanEnded(_)
            | PartChange::CallGrew(..)
            | PartChange::ResultBegan(..) => {}
        }
    }

    fn end(&mut self, _end: AnswerEnd<'_>, report: &AnswerReport<'_>, _out: &mut Vec<u8>) {
        self.metadata.extend(report.metadata.as_map().cloned().unwrap_or_default());
    }

    fn restart(&mut self, _attempt: u32, _was_shown: bool, _out: &mut Vec<u8>) -> StreamAction {
        StreamAction::Continue
    }
}

#[cfg(test)]
mod tests {
    use model::Position;
    use serde_json::json;

    use super::*;
    use crate::stored::StoredMessage;

    fn row<'a>(role: Role, content: &'a str, metadata: &'a Metadata) -> StoredMessage<'a> {
        StoredMessage { role, content, tool_calls: None, tool_call_id: None, metadata }
    }

    #[test]
    fn an_answer_has_its_steps_calls_and_results() {
        let id = MessageId::parse("u0001-x-a").unwrap();
        let calls = json!([{"id": "c1", "name": "clock", "arguments": "{\"in\":\"Oslo\"}"}, {"id": "c2", "name": "bad", "arguments": "["}]);
        let last = json!({"tokens_used": 7});
        let last = Metadata::new(last.as_object().unwrap().clone()).unwrap();
        let error = json!({"is_error": true});
        let error = Metadata::new(error.as_object().unwrap().clone()).unwrap();
        let rows = [
            StoredMessage {
                tool_calls: Some(&calls),
                ..row(Role::Assistant, "Let me look.", &Metadata::EMPTY)
            },
            StoredMessage { tool_call_id: Some("c1"), ..row(Role::Tool, "noon", &Metadata::EMPTY) },
            StoredMessage { tool_call_id: Some("c2"), ..row(Role::Tool, "no", &error) },
            row(Role::Assistant, "It is noon.", &last),
        ];
        let stored = StoredAnswer::new(rows, true, 0, Position::from_stored(7));
        let shown = serde_json::to_value(HistoryMessage::answer(&id, &stored)).unwrap();
        let tool = |name: &str, call: &str, input: Value| json!({"type": "dynamic-tool", "toolName": name, "toolCallId": call, "input": input, "providerExecuted": true});
        let with = |mut part: Value, state: &str, field: &str, text: &str| {
            part["state"] = json!(state);
            part[field] = json!(text);
            part
        };
        let expected = json!({
            "id": "u0001-x-a", "role": "assistant", "metadata": {"tokens_used": 7},
            "parts": [
                {"type": "step-start"},
                {"type": "text", "text": "Let me look.", "state": "done"},
                with(tool("clock", "c1", json!({"in": "Oslo"})), "output-available", "output", "noon"),
                with(tool("bad", "c2", json!("[")), "output-error", "errorText", "no"),
                {"type": "step-start"},
                {"type": "text", "text": "It is noon.", "state": "done"},
            ],
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_input_is_its_text() {
        let id = MessageId::parse("u0001-x-q").unwrap();
        let shown = HistoryMessage::input(&id, Role::User, "Hello", &Metadata::EMPTY);
        let expected = json!({"id": "u0001-x-q", "role": "user", "parts": [{"type": "text", "text": "Hello", "state": "done"}]});
        assert_eq!(serde_json::to_value(shown).unwrap(), expected);
    }
}
