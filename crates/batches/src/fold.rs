//! From the ordered chunks of one message to what is stored of it.

use std::sync::Arc;

use model::{Chunk, ChunkKind, InvalidMetadata, Metadata};
use serde_json::{Map, Value, json};

/// What a message says, folded from its chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    /// Concatenation of the `content` chunks.
    pub content: String,
    /// `[{"id", "name", "arguments", "result"?}]` in the order in which the calls began; `None` without calls.
    pub tool_calls: Option<Value>,
    /// The final chunk's metadata, plus `reasoning` when chunks carried any.
    pub metadata: Metadata,
    /// `tokens_used` of that metadata.
    pub token_count: Option<i64>,
}

/// Folds the chunks of a complete message, in order.
///
/// # Errors
/// `tokens_used` of the final chunk is not a count.
pub fn fold(chunks: &[Arc<Chunk>]) -> Result<Folded, InvalidMetadata> {
    let last = chunks.last().map(|chunk| chunk.metadata.clone()).unwrap_or_default();
    let token_count = last.tokens_used()?.map(|count| count as i64);
    let mut calls = ToolCalls::default();
    for chunk in chunks {
        calls.add(chunk);
    }
    Ok(Folded {
        content: text_of(chunks, ChunkKind::Content),
        tool_calls: calls.into_value(),
        metadata: with_reasoning(last, text_of(chunks, ChunkKind::Reasoning))?,
        token_count,
    })
}

fn text_of(chunks: &[Arc<Chunk>], kind: ChunkKind) -> String {
    let pieces = || chunks.iter().filter(|chunk| chunk.kind == kind).map(|chunk| &*chunk.text);
    let mut text = String::with_capacity(pieces().map(str::len).sum());
    text.extend(pieces());
    text
}

/// Reasoning has no column: it rides in the metadata, where the producer has not put its own.
pub(crate) fn with_reasoning(metadata: Metadata, reasoning: String) -> Result<Metadata, InvalidMetadata> {
    if reasoning.is_empty() || metadata.get("reasoning").is_some() {
        return Ok(metadata);
    }
    let mut map = metadata.as_map().cloned().unwrap_or_default();
    map.insert("reasoning".to_owned(), Value::String(reasoning));
    Metadata::new(map)
}

/// Calls by `tool_call_id` of the chunk's metadata; their arguments and results arrive in pieces.
#[derive(Default)]
struct ToolCalls(Vec<(String, Map<String, Value>)>);

impl ToolCalls {
    fn add(&mut self, chunk: &Chunk) {
        let field = match chunk.kind {
            ChunkKind::ToolCall => "arguments",
            ChunkKind::ToolResult => "result",
            ChunkKind::Content | ChunkKind::Metadata | ChunkKind::Error | ChunkKind::Reasoning => return,
        };
        let text_at = |key: &str| chunk.metadata.get(key).and_then(Value::as_str).unwrap_or_default();
        let call = self.call(text_at("tool_call_id"));
        if let name @ [_, ..] = text_at("tool_name").as_bytes() {
            call.insert("name".to_owned(), String::from_utf8_lossy(name).into());
        }
        let so_far = call.get(field).and_then(Value::as_str).unwrap_or_default();
        let text = format!("{so_far}{}", chunk.text);
        call.insert(field.to_owned(), text.into());
    }

    fn call(&mut self, id: &str) -> &mut Map<String, Value> {
        let index = match self.0.iter().position(|(known, _)| known == id) {
            Some(index) => index,
            None => {
                self.0.push((id.to_owned(), Map::from_iter([("id".to_owned(), json!(id))])));
                self.0.len() - 1
            }
        };
        &mut self.0[index].1
    }

    fn into_value(self) -> Option<Value> {
        let calls: Vec<Value> = self.0.into_iter().map(|(_, call)| Value::Object(call)).collect();
        (!calls.is_empty()).then_some(Value::Array(calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: u32, kind: ChunkKind, text: &str, metadata: Value) -> Arc<Chunk> {
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        Arc::new(Chunk { kind, metadata, ..Chunk::content(id, text, false) })
    }

    #[test]
    fn text_is_the_content_chunks_and_metadata_the_finals() {
        let folded = fold(&[
            chunk(0, ChunkKind::Content, "Hel", json!({"x": 1})),
            chunk(1, ChunkKind::Metadata, "no text", json!({"y": 2})),
            chunk(2, ChunkKind::Content, "lo", json!({"tokens_used": "15", "z": 3})),
        ])
        .unwrap();
        assert_eq!(folded.content, "Hello");
        assert_eq!(folded.metadata.to_value(), json!({"tokens_used": "15", "z": 3}));
        assert_eq!(folded.token_count, Some(15));
        assert_eq!(folded.tool_calls, None);
    }

    #[test]
    fn a_wrong_count_is_an_error_never_zero() {
        for wrong in [json!(null), json!(-1), json!(9_007_199_254_740_993_u64)] {
            let chunks = [chunk(0, ChunkKind::Content, "", json!({"tokens_used": wrong}))];
            assert!(matches!(fold(&chunks), Err(InvalidMetadata::TokensUsed(_))));
        }
    }

    #[test]
    fn calls_reasoning_and_results_are_kept() {
        let folded = fold(&[
            chunk(0, ChunkKind::Reasoning, "think", json!({})),
            chunk(1, ChunkKind::ToolCall, "{\"a\":", json!({"tool_call_id": "c1", "tool_name": "f"})),
            chunk(2, ChunkKind::ToolCall, "1}", json!({"tool_call_id": "c1"})),
            chunk(3, ChunkKind::ToolResult, "ok", json!({"tool_call_id": "c1"})),
        ])
        .unwrap();
        assert_eq!(folded.content, "");
        let call = json!([{"id": "c1", "name": "f", "arguments": "{\"a\":1}", "result": "ok"}]);
        assert_eq!(folded.tool_calls, Some(call));
        assert_eq!(folded.metadata.get("reasoning"), Some(&json!("think")));
    }
}
