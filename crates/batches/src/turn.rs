//! Folds the ordered chunks of a turn's answer into the messages of its steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Chunk, ChunkKind, InvalidMetadata, Metadata, Role, is_withheld_tool};
use serde_json::{Map, Value, json};

use crate::calls::{CallProgress, Calls};
use crate::fold::{with_origin, with_reasoning};

/// One message of a turn, before it gets a position.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnMessage {
    /// The role: assistant or tool.
    pub role: Role,
    /// The text; for a tool message, the result.
    pub content: String,
    /// For an assistant message with calls: `[{"id", "name", "arguments"}]` in the model's order.
    pub tool_calls: Option<Value>,
    /// For a tool message: the id of the answered call.
    pub tool_call_id: Option<String>,
    /// Step of the turn, from 0.
    pub step: u32,
    /// The metadata. The last message has the final chunk's metadata with its `timestamp` and
    /// `correlation_id`. Further keys are `reasoning`, `is_error` on a failed result, and
    /// `tool_name` on a result that lacks its call or comes from a reasoning tool. A message that
    /// was missing when the turn ended has `stopped` or `missing`: see [`fold_turn`].
    pub metadata: Metadata,
    /// `tokens_used` of the final chunk, on the last message.
    pub token_count: Option<i64>,
    /// Indices of the first and last chunk of the message; `None` if it has no chunks.
    pub chunks: Option<ChunkRange>,
}

/// The index of the first chunk of a range and the index of the last one.
pub type ChunkRange = (usize, usize);

/// Metadata key. It is `true` on the last message of an answer that ended with a call or a result,
/// without further text of the model.
pub(crate) const MISSING: &str = "missing";
/// Metadata key. It is `true` on messages that close a stopped turn.
pub(crate) const STOPPED: &str = "stopped";

/// The way in which the answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The answer ended with its final chunk.
    Final,
    /// The turn was stopped: its messages are kept and marked.
    Stopped,
    /// The answer is in progress: nothing is closed or marked, and an empty last message is left
    /// out.
    Open,
}

/// Folds an answer into the messages of its steps. A step is an assistant message with calls,
/// followed by the results in the order of the calls. The first text, reasoning or call after a
/// result begins a new step. The last message is from the assistant and has no calls.
///
/// Only chunks that arrived are stored: calls without results and results without calls stay as
/// they are. If the answer ended with these, an empty last message is added. It has the answer's id
/// and the final chunk's metadata, is marked `missing`, and leaves the batch incomplete. Only in a
/// stopped turn do open calls get results, marked `stopped`, because the turn ends there.
pub fn fold_turn(chunks: &[Arc<Chunk>], ending: Ending) -> Result<Vec<TurnMessage>, InvalidMetadata> {
    let mut steps = vec![OpenStep::default()];
    for (index, chunk) in chunks.iter().enumerate() {
        let begins = !matches!(chunk.kind, ChunkKind::ToolResult | ChunkKind::Metadata | ChunkKind::Error);
        if begins && steps.last().is_some_and(|step| step.calls.have_results()) {
            steps.push(OpenStep::default());
        }
        if let Some(step) = steps.last_mut() {
            step.add(index, chunk);
        }
    }
    // The last message must have no calls, even if the producer ended with calls.
    let is_missing = steps.last().is_some_and(|step| !step.calls.0.is_empty());
    if is_missing {
        steps.push(OpenStep::default());
    }
    let last = steps.pop().unwrap_or_default();
    let number = steps.len() as u32;
    let mut messages = Vec::with_capacity(steps.len() * 2 + 1);
    for (number, step) in (0..).zip(steps) {
        step.into_messages(number, ending, &mut messages)?;
    }
    let mut answer = last.into_answer(number, chunks, ending)?;
    if is_missing && ending == Ending::Final {
        let mut map = answer.metadata.as_map().cloned().unwrap_or_default();
        map.insert(MISSING.to_owned(), Value::Bool(true));
        answer.metadata = Metadata::new(map)?;
    }
    let is_blank = answer.content.is_empty() && answer.metadata.is_empty();
    if !(ending == Ending::Open && is_blank) {
        messages.push(answer);
    }
    Ok(messages)
}

#[derive(Debug, Default)]
struct OpenStep {
    content: String,
    reasoning: String,
    calls: Calls,
    /// Range of the chunks of its text, reasoning and calls.
    said: Option<ChunkRange>,
    /// Range of the chunks of each call's result.
    results: BTreeMap<usize, ChunkRange>,
}

impl OpenStep {
    fn add(&mut self, index: usize, chunk: &Chunk) {
        let call = match chunk.kind {
            ChunkKind::Content => {
                self.content.push_str(&chunk.text);
                None
            }
            ChunkKind::Reasoning => {
                self.reasoning.push_str(&chunk.text);
                None
            }
            ChunkKind::ToolCall => {
                self.calls.add(chunk);
                None
            }
            ChunkKind::ToolResult => self.calls.add(chunk),
            ChunkKind::Metadata | ChunkKind::Error => return,
        };
        match call {
            Some(call) => {
                self.results.entry(call).or_insert((index, index)).1 = index;
            }
            None => self.said = Some((self.said.map_or(index, |(first, _)| first), index)),
        }
    }

    fn into_messages(
        self,
        step: u32,
        ending: Ending,
        messages: &mut Vec<TurnMessage>,
    ) -> Result<(), InvalidMetadata> {
        let call = |call: &CallProgress| {
            let arguments = call.arguments.as_deref().unwrap_or_default();
            json!({ "id": call.id, "name": call.name, "arguments": arguments })
        };
        let calls: Vec<Value> =
            self.calls.0.iter().filter(|call| call.arguments.is_some()).map(call).collect();
        if !(calls.is_empty() && self.content.is_empty() && self.reasoning.is_empty()) {
            messages.push(TurnMessage {
                role: Role::Assistant,
                content: self.content,
                tool_calls: (!calls.is_empty()).then_some(Value::Array(calls)),
                tool_call_id: None,
                step,
                metadata: with_reasoning(Metadata::EMPTY, self.reasoning)?,
                token_count: None,
                chunks: self.said,
            });
        }
        for (index, call) in self.calls.0.into_iter().enumerate() {
            let mut says = Map::new();
            if call.is_error {
                says.insert("is_error".to_owned(), Value::Bool(true));
            }
            // The tool's name is kept if no call contains it. For withheld tools it is always kept,
            // because a page of a history may have the result without its call.
            if !call.name.is_empty() && (call.arguments.is_none() || is_withheld_tool(&call.name)) {
                says.insert("tool_name".to_owned(), call.name.into());
            }
            let (content, metadata) = match (call.result, ending) {
                (Some(result), _) => (result, Metadata::new(says)?),
                (None, Ending::Stopped) => (String::new(), marked(STOPPED)?),
                (None, Ending::Final | Ending::Open) => continue,
            };
            messages.push(TurnMessage {
                role: Role::Tool,
                metadata,
                content,
                tool_calls: None,
                tool_call_id: Some(call.id),
                step,
                token_count: None,
                chunks: self.results.get(&index).copied(),
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
        // A final chunk may be empty, but it still ends the answer.
        let last = chunks.len().checked_sub(1);
        let range = match ending {
            Ending::Final => last.map(|last| (self.said.map_or(last, |(first, _)| first), last)),
            Ending::Stopped | Ending::Open => self.said,
        };
        let (metadata, token_count) = match ending {
            Ending::Final => {
                let last = chunks.last().map(|chunk| chunk.metadata.clone()).unwrap_or_default();
                let count = last.tokens_used()?.map(|count| count as i64);
                (with_origin(last, chunks)?, count)
            }
            Ending::Stopped => (marked(STOPPED)?, None),
            Ending::Open => (Metadata::EMPTY, None),
        };
        Ok(TurnMessage {
            role: Role::Assistant,
            content: self.content,
            tool_calls: None,
            tool_call_id: None,
            step,
            metadata: with_reasoning(metadata, self.reasoning)?,
            token_count,
            chunks: range,
        })
    }
}

fn marked(key: &str) -> Result<Metadata, InvalidMetadata> {
    Metadata::new(Map::from_iter([(key.to_owned(), Value::Bool(true))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each entry is `text`, `think:…`, `call:id:args`, `result:id:text`, or `fault:id:text` (a
    /// failed result). The last one is final.
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
    fn results_that_people_are_not_shown_name_their_tools() {
        for tool in ["mcp__antiphon__frs_undo", "memory_search"] {
            let mut chunks = answer(&["call:a:1", "result:a:A", "so"]);
            for chunk in &mut chunks[..2] {
                let metadata = json!({"tool_call_id": "a", "tool_name": tool});
                Arc::make_mut(chunk).metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            }
            let messages = fold_turn(&chunks, Ending::Final).unwrap();
            assert_eq!(messages[1].metadata.to_value(), json!({"tool_name": tool}));
        }
    }

    #[test]
    fn reasoning_belongs_to_its_step() {
        assert_eq!(
            folded(&["think:hm", "call:a:1", "result:a:A", "think:aha", "done"]),
            r#"0assistant ""tool_a(1){"reasoning":"hm"} | 0tool a="A" | 1assistant "done"{"reasoning":"aha"}"#
        );
    }

    #[test]
    fn what_came_is_stored_and_nothing_is_made_up() {
        assert_eq!(
            folded(&["call:a:1", "call:b:2", "result:a:A", "so"]),
            r#"0assistant ""tool_a(1),tool_b(2) | 0tool a="A" | 1assistant "so""#
        );
        assert_eq!(folded(&["result:x:X", "end"]), r#"0tool x="X"{"tool_name":"tool_x"} | 1assistant "end""#);
        assert_eq!(
            folded(&["look", "result:x:X", "end"]),
            r#"0assistant "look" | 0tool x="X"{"tool_name":"tool_x"} | 1assistant "end""#
        );
        let own = r#""tool_call_id":"a","tool_name":"tool_a""#;
        assert_eq!(
            folded(&["call:a:1", "result:a:A"]),
            format!(r#"0assistant ""tool_a(1) | 0tool a="A" | 1assistant ""{{"missing":true,{own}}}"#)
        );
        assert_eq!(
            folded(&["I will", "call:a:1"]),
            format!(r#"0assistant "I will"tool_a(1) | 1assistant ""{{"missing":true,{own}}}"#)
        );
    }

    #[test]
    fn two_calls_of_one_id_stay_two() {
        assert_eq!(
            folded(&["call:a:{}", r#"call:a:{"n":1}"#, "result:a:A", "result:a:B", "so"]),
            "0assistant \"\"tool_a({}),tool_a({\\n\\:1}) | 0tool a=\"A\" | 0tool a=\"B\" | 1assistant \"so\""
        );
    }

    #[test]
    fn messages_name_their_chunks() {
        let ranges = |script: &[&str], ending| {
            let messages = fold_turn(&answer(script), ending).unwrap();
            messages.iter().map(|message| message.chunks).collect::<Vec<_>>()
        };
        let script = ["hm", "call:a:1", "call:b:2", "result:b:B", "result:a:A", "result:b:C", "so", "it is"];
        let steps = [Some((0, 2)), Some((4, 4)), Some((3, 5))];
        assert_eq!(ranges(&script, Ending::Final), [&steps[..], &[Some((6, 7))]].concat());
        assert_eq!(ranges(&script[..6], Ending::Final), [&steps[..], &[Some((5, 5))]].concat());
        assert_eq!(ranges(&script[..6], Ending::Stopped), [&steps[..], &[None]].concat());
        assert_eq!(ranges(&["call:a:1"], Ending::Stopped), [Some((0, 0)), None, None]);
    }

    #[test]
    fn an_answer_that_goes_on_has_what_came_and_nothing_else() {
        let chunks = answer(&["look", "call:a:1", "result:a:A", "so", "it is"]);
        let open = |count: usize| render(&fold_turn(&chunks[..count], Ending::Open).unwrap());
        assert_eq!(open(0), "");
        assert_eq!(open(1), r#"0assistant "look""#);
        assert_eq!(open(2), r#"0assistant "look"tool_a(1)"#);
        assert_eq!(open(3), r#"0assistant "look"tool_a(1) | 0tool a="A""#);
        assert_eq!(open(4), r#"0assistant "look"tool_a(1) | 0tool a="A" | 1assistant "so""#);
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
    fn the_answer_keeps_when_and_for_which_request_it_was_written() {
        let mut chunks = answer(&["look", "call:a:1", "result:a:A", "so"]);
        for (number, chunk) in chunks.iter_mut().enumerate() {
            let chunk = Arc::make_mut(chunk);
            chunk.timestamp = Some(format!("2026-01-02T03:04:0{number}Z").into());
            chunk.correlation_id = Some("c-1".into());
        }
        let said = |ending| fold_turn(&chunks, ending).unwrap().into_iter().map(|it| it.metadata.to_value());
        let wanted =
            [json!({}), json!({}), json!({"timestamp": "2026-01-02T03:04:03Z", "correlation_id": "c-1"})];
        assert_eq!(said(Ending::Final).collect::<Vec<_>>(), wanted);
        let stopped = [json!({}), json!({}), json!({"stopped": true})];
        assert_eq!(said(Ending::Stopped).collect::<Vec<_>>(), stopped);
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
