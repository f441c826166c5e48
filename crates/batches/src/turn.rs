//! From the ordered chunks of a turn's answer to the messages of its steps.

use std::sync::Arc;

use model::{Chunk, ChunkKind, InvalidMetadata, Metadata, Role};
use serde_json::{Map, Value, json};

use crate::fold::with_reasoning;

/// One message of a turn, without its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnMessage {
    /// Assistant or tool.
    pub role: Role,
    /// Its text; of a tool message, the result.
    pub content: String,
    /// Of an assistant message that calls tools: `[{"id", "name", "arguments"}]` in the order of the model.
    pub tool_calls: Option<Value>,
    /// Of a tool message: the call that it answers.
    pub tool_call_id: Option<String>,
    /// The step, from 0.
    pub step: u32,
    /// Of the last message that of the final chunk; `reasoning` when there was any; `is_error` on a result that is one; `stopped` or
    /// `missing` where the turn ended without it.
    pub metadata: Metadata,
    /// `tokens_used` of the final chunk, on the last message.
    pub token_count: Option<i64>,
}

/// How the answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With its final chunk.
    Final,
    /// It was stopped: what there is is kept and marked.
    Stopped,
}

/// Folds an answer into the messages of its steps: assistant with calls, their results in the order of the calls, and so
/// on, and one assistant message without calls at the end. A step begins with the first text, reasoning or call after a
/// result. So calls and results always match: a result without a call gets one, a call without a result gets an
/// empty one that is marked.
///
/// # Errors
/// `tokens_used` of the final chunk is not a count.
pub fn fold_turn(chunks: &[Arc<Chunk>], ending: Ending) -> Result<Vec<TurnMessage>, InvalidMetadata> {
    let mut steps = vec![Step::default()];
    for chunk in chunks {
        let begins = !matches!(chunk.kind, ChunkKind::ToolResult | ChunkKind::Metadata | ChunkKind::Error);
        if begins && steps.last().is_some_and(Step::has_results) {
            steps.push(Step::default());
        }
        if let Some(step) = steps.last_mut() {
            step.add(chunk);
        }
    }
    // The last message has no calls, whatever the producer did.
    if steps.last().is_some_and(|step| !step.calls.is_empty()) {
        steps.push(Step::default());
    }
    let last = steps.pop().unwrap_or_default();
    let number = steps.len() as u32;
    let mut messages = Vec::with_capacity(steps.len() * 2 + 1);
    for (number, step) in (0..).zip(steps) {
        step.into_messages(number, ending, &mut messages)?;
    }
    messages.push(last.into_answer(number, chunks, ending)?);
    Ok(messages)
}

#[derive(Debug, Default)]
struct Step {
    content: String,
    reasoning: String,
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
    result: Option<String>,
    /// A part of the result says that it is an error.
    is_error: bool,
}

impl Step {
    fn has_results(&self) -> bool {
        self.calls.iter().any(|call| call.result.is_some())
    }

    fn add(&mut self, chunk: &Chunk) {
        match chunk.kind {
            ChunkKind::Content => self.content.push_str(&chunk.text),
            ChunkKind::Reasoning => self.reasoning.push_str(&chunk.text),
            ChunkKind::ToolCall => self.call(chunk).arguments.push_str(&chunk.text),
            ChunkKind::ToolResult => {
                let call = self.call(chunk);
                call.result.get_or_insert_default().push_str(&chunk.text);
                call.is_error |= chunk.metadata.get("is_error") == Some(&Value::Bool(true));
            }
            ChunkKind::Metadata | ChunkKind::Error => {}
        }
    }

    fn call(&mut self, chunk: &Chunk) -> &mut Call {
        let text_at = |key: &str| chunk.metadata.get(key).and_then(Value::as_str).unwrap_or_default();
        let id = text_at("tool_call_id");
        let index = self.calls.iter().position(|call| call.id == id).unwrap_or_else(|| {
            self.calls.push(Call { id: id.to_owned(), ..Call::default() });
            self.calls.len() - 1
        });
        let call = &mut self.calls[index];
        if call.name.is_empty() {
            text_at("tool_name").clone_into(&mut call.name);
        }
        call
    }

    fn into_messages(
        self,
        step: u32,
        ending: Ending,
        messages: &mut Vec<TurnMessage>,
    ) -> Result<(), InvalidMetadata> {
        let calls =
            self.calls.iter().map(|c| json!({ "id": c.id, "name": c.name, "arguments": c.arguments }));
        messages.push(TurnMessage {
            role: Role::Assistant,
            content: self.content,
            tool_calls: Some(Value::Array(calls.collect())),
            tool_call_id: None,
            step,
            metadata: with_reasoning(Metadata::EMPTY, self.reasoning)?,
            token_count: None,
        });
        for call in self.calls {
            messages.push(TurnMessage {
                role: Role::Tool,
                metadata: match call.result {
                    Some(_) if call.is_error => marked("is_error")?,
                    Some(_) => Metadata::EMPTY,
                    None => mark(ending)?,
                },
                content: call.result.unwrap_or_default(),
                tool_calls: None,
                tool_call_id: Some(call.id),
                step,
                token_count: None,
            });
        }
        Ok(())
    }

    fn into_answer(
        self,
        step: u32,
        chunks: &[Arc<Chunk>],
        ending: Ending,
    ) -> Result<TurnMessage, InvalidMetadata> {
        let (metadata, token_count) = match ending {
            Ending::Final => {
                let last = chunks.last().map(|chunk| chunk.metadata.clone()).unwrap_or_default();
                let count = last.tokens_used()?.map(|count| count as i64);
                (last, count)
            }
            Ending::Stopped => (mark(ending)?, None),
        };
        Ok(TurnMessage {
            role: Role::Assistant,
            content: self.content,
            tool_calls: None,
            tool_call_id: None,
            step,
            metadata: with_reasoning(metadata, self.reasoning)?,
            token_count,
        })
    }
}

fn mark(ending: Ending) -> Result<Metadata, InvalidMetadata> {
    marked(match ending {
        Ending::Final => "missing",
        Ending::Stopped => "stopped",
    })
}

fn marked(key: &str) -> Result<Metadata, InvalidMetadata> {
    Metadata::new(Map::from_iter([(key.to_owned(), Value::Bool(true))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text`, `think:…`, `call:id:args`, `result:id:text`, `fault:id:text` (a result that is an error), the last one final.
    fn answer(script: &[&str]) -> Vec<Arc<Chunk>> {
        let chunk = |(id, word): (usize, &&str)| {
            let parts: Vec<&str> = word.splitn(3, ':').collect();
            let (kind, call, text) = match parts.as_slice() {
                ["call", call, text] => (ChunkKind::ToolCall, *call, *text),
                ["result" | "fault", call, text] => (ChunkKind::ToolResult, *call, *text),
                ["think", text] => (ChunkKind::Reasoning, "", *text),
                _ => (ChunkKind::Content, "", *word),
            };
            let metadata = match call {
                "" => json!({}),
                call if word.starts_with("fault") => json!({ "tool_call_id": call, "is_error": true }),
                call => json!({ "tool_call_id": call, "tool_name": format!("tool_{call}") }),
            };
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            let base = Chunk::content(id as u32, text, id + 1 == script.len());
            Arc::new(Chunk { kind, metadata, ..base })
        };
        script.iter().enumerate().map(chunk).collect()
    }

    fn render(messages: &[TurnMessage]) -> String {
        let line = |message: &TurnMessage| {
            let calls = message.tool_calls.as_ref().and_then(Value::as_array).map(|calls| {
                let call = |call: &Value| format!("{}({})", call["name"], call["arguments"]).replace('"', "");
                calls.iter().map(call).collect::<Vec<_>>().join(",")
            });
            let answers = message.tool_call_id.as_ref().map(|id| format!("{id}="));
            let marks = match message.metadata.is_empty() {
                true => String::new(),
                false => message.metadata.to_value().to_string(),
            };
            let (answers, calls) = (answers.unwrap_or_default(), calls.unwrap_or_default());
            format!("{}{} {answers}{:?}{calls}{marks}", message.step, message.role.name(), message.content)
        };
        messages.iter().map(line).collect::<Vec<_>>().join(" | ")
    }

    fn folded(script: &[&str]) -> String {
        render(&fold_turn(&answer(script), Ending::Final).unwrap())
    }

    #[test]
    fn a_plain_answer_is_one_message() {
        assert_eq!(folded(&["Hel", "lo"]), r#"0assistant "Hello""#);
        assert_eq!(folded(&[""]), r#"0assistant """#);
    }

    #[test]
    fn steps_end_with_their_results_and_results_come_in_call_order() {
        assert_eq!(
            folded(&["let me", "call:a:1", "call:b:2", "result:b:B", "result:a:A", "so", " it is"]),
            "0assistant \"let me\"tool_a(1),tool_b(2) | 0tool a=\"A\" | 0tool b=\"B\" | 1assistant \"so it is\""
        );
    }

    #[test]
    fn a_result_that_is_an_error_says_so() {
        assert_eq!(
            folded(&["call:a:1", "call:b:2", "result:a:n", "fault:a:o", "result:b:B", "so"]),
            "0assistant \"\"tool_a(1),tool_b(2) | 0tool a=\"no\"{\"is_error\":true} | 0tool b=\"B\" | 1assistant \"so\""
        );
    }

    #[test]
    fn reasoning_belongs_to_its_step() {
        assert_eq!(
            folded(&["think:hm", "call:a:1", "result:a:A", "think:aha", "done"]),
            r#"0assistant ""tool_a(1){"reasoning":"hm"} | 0tool a="A" | 1assistant "done"{"reasoning":"aha"}"#
        );
    }

    #[test]
    fn calls_and_results_always_match() {
        assert_eq!(
            folded(&["call:a:1", "call:b:2", "result:a:A"]),
            "0assistant \"\"tool_a(1),tool_b(2) | 0tool a=\"A\" | 0tool b=\"\"{\"missing\":true} | 1assistant \"\"\
             {\"tool_call_id\":\"a\",\"tool_name\":\"tool_a\"}"
        );
        assert_eq!(
            folded(&["result:x:X", "end"]),
            r#"0assistant ""tool_x() | 0tool x="X" | 1assistant "end""#
        );
    }

    #[test]
    fn a_stopped_turn_keeps_what_there_is_and_closes_its_calls() {
        let chunks = answer(&["I will", "call:a:1", "never"]);
        let stopped = |count: usize| render(&fold_turn(&chunks[..count], Ending::Stopped).unwrap());
        assert_eq!(stopped(0), r#"0assistant ""{"stopped":true}"#);
        assert_eq!(stopped(1), r#"0assistant "I will"{"stopped":true}"#);
        assert_eq!(
            stopped(2),
            r#"0assistant "I will"tool_a(1) | 0tool a=""{"stopped":true} | 1assistant ""{"stopped":true}"#
        );
    }

    #[test]
    fn a_wrong_count_of_tokens_is_an_error() {
        let mut chunks = answer(&["x"]);
        let metadata = Metadata::new(json!({"tokens_used": -1}).as_object().unwrap().clone()).unwrap();
        Arc::make_mut(&mut chunks[0]).metadata = metadata;
        assert!(fold_turn(&chunks, Ending::Final).is_err());
        assert!(fold_turn(&chunks, Ending::Stopped).is_ok(), "what was not final counts for nothing");
    }
}
