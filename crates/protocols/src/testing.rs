//! Events as words, for the tests of the protocols.

use model::{Chunk, ChunkKind, Metadata, Position};
use serde_json::{Value, json};

use crate::{AnswerEvent, Protocol, StreamAction, StreamError};

/// A chunk: `text`, `think:…`, `call:id:args`, `done:id:args`, `result:id:text`, `fault:id:text`,
/// `note:json`, `final:json`.
pub(crate) fn chunk(id: u32, word: &str) -> Chunk {
    let (kind, rest) = word.split_once(':').unwrap_or(("text", word));
    let with = |kind, text: &str, metadata: Value| {
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        Chunk { kind, metadata, ..Chunk::content(id, text, false) }
    };
    let read = |text| serde_json::from_str(text).unwrap();
    match kind {
        "think" => with(ChunkKind::Reasoning, rest, json!({})),
        "note" => with(ChunkKind::Metadata, "", read(rest)),
        "final" => Chunk { is_final: true, ..with(ChunkKind::Content, "", read(rest)) },
        "call" | "done" | "result" | "fault" => {
            let (call, text) = rest.split_once(':').unwrap();
            let (call, tool) = call.split_once('=').unwrap_or((call, "f"));
            let mut metadata = json!({"tool_call_id": call, "tool_name": tool});
            match kind {
                "done" => metadata["args_done"] = json!(true),
                "fault" => metadata["is_error"] = json!(true),
                _ => {}
            }
            let is_call = matches!(kind, "call" | "done");
            with(if is_call { ChunkKind::ToolCall } else { ChunkKind::ToolResult }, text, metadata)
        }
        _ => Chunk::content(id, word, false),
    }
}

/// Checks the output for each word, event by event. A word is a chunk, `open`, `reset:attempt`,
/// `complete`, `stopped` or `failed:code:text`. Chunks belong to the attempt of the last reset.
/// Only the last word ends the stream.
pub(crate) fn assert_events(protocol: &mut dyn Protocol, rows: &[(&str, &[&str])]) {
    let mut attempt = 0;
    for (id, (word, expected)) in (0..).zip(rows) {
        let chunk = chunk(id, word);
        let failure = match word.splitn(3, ':').collect::<Vec<_>>()[..] {
            ["failed", code, text] => Some(StreamError::new(code, text, true)),
            _ => None,
        };
        let happening = match (*word, word.split_once(':')) {
            ("open", _) => AnswerEvent::Opened,
            ("complete", _) => AnswerEvent::Complete { position: Position::from_stored(7) },
            ("stopped", _) => AnswerEvent::Stopped,
            (_, Some(("reset", number))) => {
                attempt = number.parse().unwrap();
                AnswerEvent::Reset { attempt }
            }
            _ => match &failure {
                Some(failure) => AnswerEvent::Failed(failure),
                None => AnswerEvent::Chunk { attempt, chunk: &chunk },
            },
        };
        let output = protocol.apply(happening);
        let text = String::from_utf8(output.bytes.to_vec()).unwrap();
        let events: Vec<&str> = text
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap_or(event))
            .collect();
        assert_eq!(events, *expected, "{word}");
        let is_end =
            matches!(happening, AnswerEvent::Complete { .. } | AnswerEvent::Stopped | AnswerEvent::Failed(_));
        assert_eq!(output.then == StreamAction::Close, is_end, "{word}");
    }
}
