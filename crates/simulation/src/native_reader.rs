//! Parses the bytes that a native client receives into the events that the checker needs. Events
//! with unknown names are ignored, as clients must do.

use std::sync::Arc;

use model::{Chunk, ChunkKind, MessageId, Metadata, Position, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::checker::SeenEvent;

/// Parses one event; `None` for a comment, and for an event that concerns no message.
pub(crate) fn event(text: &str) -> Option<SeenEvent> {
    let (mut name, mut data) = ("", None);
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("event: ") {
            name = value;
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(value);
        }
    }
    match (name, data) {
        ("drain" | "ready", _) | (_, None) => None,
        ("restart", Some(data)) => {
            let event: RestartData = serde_json::from_str(data).ok()?;
            Some(SeenEvent::Restart { after: event.after.parse().ok()? })
        }
        (name, Some(data)) => message_event(name, serde_json::from_str(data).ok()?),
    }
}

#[derive(Deserialize)]
struct RestartData {
    after: String,
}

#[derive(Deserialize)]
struct EventData {
    message_id: MessageId,
    #[serde(default)]
    attempt: u32,
    role: Option<String>,
    #[serde(default)]
    chunk_id: Option<u32>,
    #[serde(default)]
    chunk: String,
    #[serde(default)]
    chunk_type: String,
    #[serde(default)]
    is_final: bool,
    #[serde(default)]
    metadata: Map<String, Value>,
    timestamp: Option<String>,
    correlation_id: Option<String>,
    #[serde(default)]
    compacted: bool,
    position: Option<Position>,
}

fn message_event(name: &str, said: EventData) -> Option<SeenEvent> {
    let message = said.message_id.clone();
    let position = said.position.map(Position::get);
    match (name, said.chunk_type.as_str()) {
        ("input", _) => Some(SeenEvent::Input { input: message }),
        ("input_withdrawn", _) => Some(SeenEvent::InputWithdrawn { input: message }),
        ("reset", _) => Some(SeenEvent::Reset { message, attempt: said.attempt }),
        ("", "system") => position.map(|_| SeenEvent::Complete { message, position }),
        // An `error` chunk of the producer is not shown, so this is the message's end.
        ("", "error") => position.map(|_| SeenEvent::Failed { message, position }),
        ("", _) => chunk(message, said),
        _ => None,
    }
}

fn chunk(message: MessageId, said: EventData) -> Option<SeenEvent> {
    said.role.as_deref().map_or(Some(Role::Assistant), Role::from_name)?;
    let kind = ChunkKind::from_name(&said.chunk_type)?;
    let chunk = Arc::new(Chunk {
        kind,
        metadata: Metadata::new(said.metadata).ok()?,
        timestamp: said.timestamp.map(Into::into),
        correlation_id: said.correlation_id.map(Into::into),
        ..Chunk::content(said.chunk_id?, &said.chunk, said.is_final)
    });
    Some(match said.compacted {
        true => SeenEvent::Rest { message, chunk },
        false => SeenEvent::Chunk { message, attempt: said.attempt, chunk },
    })
}

#[cfg(test)]
mod tests {
    use model::{BatchType, ThreadId};
    use protocols::{Cursor, MessageHeader, MessageProgress, Native, StreamError, native};
    use serde_json::json;

    use super::*;

    fn read(bytes: &[u8]) -> Option<SeenEvent> {
        event(std::str::from_utf8(bytes).unwrap())
    }

    #[test]
    fn what_was_written_is_read() {
        let message = MessageId::parse("m").unwrap();
        let mut native = Native::new(ThreadId::parse("t").unwrap(), Cursor::at(Position::from_stored(0)));
        let metadata = Metadata::new(json!({"tool_call_id": "c"}).as_object().unwrap().clone()).unwrap();
        let call = Chunk { kind: ChunkKind::ToolCall, metadata, ..Chunk::content(1, "{}", false) };
        let header =
            |attempt, role| MessageHeader::new(message.clone(), attempt, role, BatchType::SystemTrigger);
        let mut progress = MessageProgress::new(3, false);
        for (chunk, role) in
            [(Chunk::content(0, "a\u{2028}b\n\nc", false), Role::Assistant), (call, Role::Tool)]
        {
            progress.advance(&chunk);
            let bytes = native.chunk(&header(3, role), progress.seen().clone(), &chunk, false).bytes();
            let (message, chunk) = (message.clone(), Arc::new(chunk));
            assert_eq!(read(&bytes), Some(SeenEvent::Chunk { message, attempt: 3, chunk }));
        }
        let reset = SeenEvent::Reset { message: message.clone(), attempt: 4 };
        assert_eq!(read(&native.reset(&message, 4)), Some(reset));
        let header = header(4, Role::Assistant);
        for (position, is_stopped) in [(77, false), (78, true)] {
            let complete = SeenEvent::Complete { message: message.clone(), position: Some(position) };
            let report = model::AnswerReport::default();
            let bytes =
                native.complete(&header, Position::from_stored(position), is_stopped, &report).bytes();
            assert_eq!(read(&bytes), Some(complete));
        }
        let failure = StreamError::new("gap_timeout", "a gap", true);
        let bytes = native.failed(&header, Position::from_stored(79), &failure).bytes();
        assert_eq!(read(&bytes), Some(SeenEvent::Failed { message, position: Some(79) }));
        assert_eq!((read(native::HEARTBEAT), read(&native::drain(250))), (None, None));
    }
}
