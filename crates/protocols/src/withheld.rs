//! Hides parts of an answer from people: arguments and results of an agent's reasoning tools and of
//! its memory searches. The calls themselves are shown, so that every protocol has complete pairs.
//! Offsets of clients count hidden parts as if they were shown.
//!
//! Entry types: [`WithheldCalls`], for the chunks of a message as they arrive; [`withhold_calls`]
//! and [`RESULT`], for stored calls.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use model::{Chunk, ChunkKind, is_memory_search, is_withheld_tool};
use serde_json::{Map, Value};

/// Replaces a result.
pub const RESULT: &str = "(not shown: the agent's reasoning thread)";
/// Replaces the result of a memory search.
pub const FOUND: &str = "(not shown: what the agent remembers)";
/// Replaces arguments, which clients parse.
pub const ARGUMENTS: &str = "{}";

/// The text that replaces a withheld result of this tool.
pub fn result_of(tool: &str) -> &'static str {
    if is_memory_search(tool) { FOUND } else { RESULT }
}

/// The withheld calls of one message.
#[derive(Debug, Clone, Default)]
pub struct WithheldCalls {
    /// Keyed by the producer's id.
    calls: HashMap<String, CallPieces>,
}

/// The pieces of a call that have arrived.
#[derive(Debug, Clone, Copy, Default)]
struct CallPieces {
    has_arguments: bool,
    has_result: bool,
    is_search: bool,
}

impl WithheldCalls {
    /// The next chunk of the message, as people see it.
    pub fn shown<'a>(&mut self, chunk: &'a Arc<Chunk>) -> Cow<'a, Arc<Chunk>> {
        let is_result = match chunk.kind {
            ChunkKind::ToolCall => false,
            ChunkKind::ToolResult => true,
            ChunkKind::Content | ChunkKind::Metadata | ChunkKind::Error | ChunkKind::Reasoning => {
                return Cow::Borrowed(chunk);
            }
        };
        let text_at = |key: &str| chunk.metadata.get(key).and_then(Value::as_str).unwrap_or_default();
        let (id, tool) = (text_at("tool_call_id"), text_at("tool_name"));
        if is_withheld_tool(tool) {
            self.calls.entry(id.to_owned()).or_default().is_search = is_memory_search(tool);
        } else if !tool.is_empty() {
            // The id now belongs to another call.
            self.calls.remove(id);
        }
        let Some(pieces) = self.calls.get_mut(id) else { return Cow::Borrowed(chunk) };
        if !is_result && std::mem::take(&mut pieces.has_result) {
            // The call was answered, so the id belongs to the next call.
            pieces.has_arguments = false;
        }
        let had_one = match is_result {
            true => std::mem::replace(&mut pieces.has_result, true),
            false => std::mem::replace(&mut pieces.has_arguments, true),
        };
        let text = match (had_one, is_result) {
            (true, _) => "",
            (false, true) if pieces.is_search => FOUND,
            (false, true) => RESULT,
            (false, false) => ARGUMENTS,
        };
        Cow::Owned(Arc::new(Chunk { text: text.into(), halves: model::Halves::NONE, ..Chunk::clone(chunk) }))
    }
}

/// Withholds parts of the stored calls of a message: `[{"id", "name", "arguments", "result"}]`.
/// Returns the id of each call, with the replacement of its result if it is withheld.
pub fn withhold_calls(calls: &mut Value) -> Vec<(String, Option<&'static str>)> {
    let each = calls.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
    each.map(|call| {
        let text_at = |call: &Map<String, Value>, key: &str| {
            call.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let name = text_at(call, "name");
        let result = is_withheld_tool(&name).then(|| result_of(&name));
        if let Some(result) = result {
            for (key, text) in [("arguments", ARGUMENTS), ("result", result)] {
                if let Some(value) = call.get_mut(key).filter(|value| !value.is_null()) {
                    *value = text.into();
                }
            }
        }
        (text_at(call, "id"), result)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use model::Metadata;
    use serde_json::json;

    use super::*;

    fn chunk(kind: ChunkKind, text: &str, metadata: Value) -> Arc<Chunk> {
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        Arc::new(Chunk { kind, metadata, ..Chunk::content(0, text, false) })
    }

    /// The shown calls and results: `id/tool/text` and `id=text`.
    fn shown(words: &[&str]) -> Vec<String> {
        let mut withheld = WithheldCalls::default();
        let show = |word: &&str| {
            let given = match word.split_once('=') {
                Some((id, text)) => chunk(ChunkKind::ToolResult, text, json!({ "tool_call_id": id })),
                None => {
                    let parts: Vec<&str> = word.split('/').collect();
                    let named = json!({ "tool_call_id": parts[0], "tool_name": parts[1] });
                    let unnamed = json!({ "tool_call_id": parts[0] });
                    chunk(ChunkKind::ToolCall, parts[2], if parts[1].is_empty() { unnamed } else { named })
                }
            };
            withheld.shown(&given).text.to_string()
        };
        words.iter().map(show).collect()
    }

    #[test]
    fn arguments_and_results_of_reasoning_tools_are_withheld() {
        let words = [
            "a/frs_view_thread/{\"x\":",
            "a//1}",
            "b/search/{\"q\":1}",
            "a=[1] User: A",
            "b=found",
            "a=[2] User: B",
            "c/memory_search/{\"query\":\"x\"}",
            "c=- \"Offer 30 % to Ann.\"",
            "d/memory_remember/{\"text\":\"x\"}",
            "d=Remembered",
        ];
        let of_memory = ["{}", FOUND, "{\"text\":\"x\"}", "Remembered"];
        assert_eq!(shown(&words)[..6], ["{}", "", "{\"q\":1}", RESULT, "found", ""]);
        assert_eq!(shown(&words)[6..], of_memory);
    }

    #[test]
    fn an_id_that_is_used_again_is_another_call() {
        let words =
            ["a/frs_undo/{}", "a=undone", "a/frs_undo/{}", "a=undone", "a/search/{}", "a=found", "a=more"];
        assert_eq!(shown(&words), ["{}", RESULT, "{}", RESULT, "{}", "found", "more"]);
    }

    #[test]
    fn stored_calls_are_withheld_by_their_names() {
        let mut calls = json!([
            { "id": "a", "name": "x__frs_plan", "arguments": "{\"items\": []}", "result": "[1]" },
            { "id": "b", "name": "search", "arguments": "{\"q\": 1}" },
        ]);
        assert_eq!(withhold_calls(&mut calls), [("a".to_owned(), Some(RESULT)), ("b".to_owned(), None)]);
        assert_eq!(
            calls[0],
            json!({ "id": "a", "name": "x__frs_plan", "arguments": "{}", "result": RESULT })
        );
        assert_eq!(calls[1], json!({ "id": "b", "name": "search", "arguments": "{\"q\": 1}" }));
        assert!(withhold_calls(&mut Value::Null).is_empty());
    }
}
