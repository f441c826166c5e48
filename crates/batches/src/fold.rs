//! Folds the ordered chunks of one message into its stored form.

use std::sync::Arc;

use model::{Chunk, ChunkKind, InvalidMetadata, Metadata};
use serde_json::{Map, Value, json};

use crate::calls::{CallProgress, Calls};

/// The content of a message, folded from its chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    /// Concatenation of the `content` chunks.
    pub content: String,
    /// `[{"id", "name", "arguments", "result"?}]` in the order in which the calls began; `None`
    /// without calls.
    pub tool_calls: Option<Value>,
    /// The metadata of the final chunk, with the publisher's `timestamp` and `correlation_id`, and
    /// `reasoning` if any chunk has some.
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
    let mut calls = Calls::default();
    for chunk in chunks {
        calls.add(chunk);
    }
    Ok(Folded {
        content: text_of(chunks, ChunkKind::Content),
        tool_calls: stored(calls),
        metadata: with_reasoning(with_origin(last, chunks)?, text_of(chunks, ChunkKind::Reasoning))?,
        token_count,
    })
}

fn text_of(chunks: &[Arc<Chunk>], kind: ChunkKind) -> String {
    let pieces = || chunks.iter().filter(|chunk| chunk.kind == kind).map(|chunk| &*chunk.text);
    let mut text = String::with_capacity(pieces().map(str::len).sum());
    text.extend(pieces());
    text
}

/// Adds the publisher's time and correlation id from the last chunk that has them. If the
/// producer's own metadata has these names, its values take precedence.
pub(crate) fn with_origin(metadata: Metadata, chunks: &[Arc<Chunk>]) -> Result<Metadata, InvalidMetadata> {
    let timestamp = chunks.iter().rev().find_map(|chunk| chunk.timestamp.as_deref());
    let correlation_id = chunks.iter().rev().find_map(|chunk| chunk.correlation_id.as_deref());
    let said = [("timestamp", timestamp), ("correlation_id", correlation_id)];
    let mut new = said.into_iter().filter_map(|(name, text)| Some((name, text?))).peekable();
    if new.peek().is_none() {
        return Ok(metadata);
    }
    let mut map = metadata.as_map().cloned().unwrap_or_default();
    for (name, text) in new {
        map.entry(name).or_insert_with(|| text.into());
    }
    Metadata::new(map)
}

/// Stores reasoning in the metadata, because it has no column. The producer's own `reasoning` takes
/// precedence.
pub(crate) fn with_reasoning(metadata: Metadata, reasoning: String) -> Result<Metadata, InvalidMetadata> {
    if reasoning.is_empty() || metadata.get("reasoning").is_some() {
        return Ok(metadata);
    }
    let mut map = metadata.as_map().cloned().unwrap_or_default();
    map.insert("reasoning".to_owned(), Value::String(reasoning));
    Metadata::new(map)
}

/// The stored form of calls. A message without a turn has no separate result messages, so its
/// results are stored with the calls.
fn stored(calls: Calls) -> Option<Value> {
    let one = |call: CallProgress| {
        let name = Some(call.name).filter(|name| !name.is_empty());
        let fields = [("name", name), ("arguments", call.arguments), ("result", call.result)];
        let fields = fields.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
        let mut map = Map::from_iter([("id".to_owned(), json!(call.id))]);
        map.extend(fields);
        Value::Object(map)
    };
    let calls: Vec<Value> = calls.0.into_iter().map(one).collect();
    (!calls.is_empty()).then_some(Value::Array(calls))
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
    fn when_and_for_which_request_a_message_was_written_is_kept() {
        let mut chunks = [
            chunk(0, ChunkKind::Content, "a", json!({})),
            chunk(1, ChunkKind::Content, "b", json!({})),
            chunk(2, ChunkKind::Content, "c", json!({"n": 1})),
        ];
        let say = |chunk: &mut Arc<Chunk>, timestamp: &str, id: &str| {
            let chunk = Arc::make_mut(chunk);
            (chunk.timestamp, chunk.correlation_id) = (Some(timestamp.into()), Some(id.into()));
        };
        say(&mut chunks[0], "2026-01-01T00:00:00Z", "old");
        say(&mut chunks[1], "2026-01-02T03:04:05.678+02:00", "c-1");
        let wanted = json!({"n": 1, "timestamp": "2026-01-02T03:04:05.678+02:00", "correlation_id": "c-1"});
        assert_eq!(fold(&chunks).unwrap().metadata.to_value(), wanted, "of the last chunk that has them");
        let own = json!({"timestamp": "theirs", "correlation_id": null}).as_object().unwrap().clone();
        Arc::make_mut(&mut chunks[2]).metadata = Metadata::new(own.clone()).unwrap();
        assert_eq!(fold(&chunks).unwrap().metadata.as_map(), Some(&own), "a producer's own are its own");
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
