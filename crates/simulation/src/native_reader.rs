//! What a native client makes of the bytes that it is sent.

use std::sync::Arc;

use model::{Chunk, ChunkKind, IdRange, MessageId, Metadata, Position, Role};
use protocols::StreamError;
use protocols::native::NativeEvent;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One event; `None` for a comment and for a drain notice, which is none of the thread.
pub(crate) fn event(text: &str) -> Option<NativeEvent> {
    let (mut name, mut data) = ("", None);
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("event: ") {
            name = value;
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(value);
        }
    }
    match (name, data) {
        ("drain", _) | (_, None) => None,
        ("restart", _) => Some(NativeEvent::Restart),
        (name, Some(data)) => native_event(name, serde_json::from_str(data).ok()?),
    }
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
    #[serde(default)]
    status: String,
}

fn native_event(name: &str, said: EventData) -> Option<NativeEvent> {
    let message = said.message_id.clone();
    match (name, said.chunk_type.as_str()) {
        ("reset", _) => Some(NativeEvent::Reset { message, attempt: said.attempt }),
        ("", "system") => {
            let is_stopped = said.status == "stopped";
            Some(NativeEvent::Complete { message, position: said.position?, is_stopped })
        }
        // An `error` chunk of the producer is not shown: this is the message's end.
        ("", "error") => {
            Some(NativeEvent::Failed { message, position: said.position?, failure: Box::new(failure(&said)) })
        }
        ("", _) => chunk(message, said),
        _ => None,
    }
}

fn chunk(message: MessageId, said: EventData) -> Option<NativeEvent> {
    let role = said.role.as_deref().map_or(Some(Role::Assistant), Role::from_name)?;
    let kind = ChunkKind::from_name(&said.chunk_type)?;
    let chunk = Arc::new(Chunk {
        kind,
        metadata: Metadata::new(said.metadata).ok()?,
        timestamp: said.timestamp.map(Into::into),
        correlation_id: said.correlation_id.map(Into::into),
        ..Chunk::content(said.chunk_id?, &said.chunk, said.is_final)
    });
    Some(NativeEvent::Chunk { message, attempt: said.attempt, role, chunk, is_compacted: said.compacted })
}

fn failure(said: &EventData) -> StreamError {
    let text = |key: &str| said.metadata.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let range = |value: &Value| {
        let id = |key: &str| value.get(key)?.as_u64().and_then(|id| u32::try_from(id).ok());
        Some(IdRange { first: id("first")?, last: id("last")? })
    };
    let missing = said.metadata.get("missing").and_then(Value::as_array);
    StreamError {
        code: text("code"),
        text: said.chunk.clone(),
        missing: missing.into_iter().flatten().filter_map(range).collect(),
        is_retryable: said.metadata.get("retryable") == Some(&Value::Bool(true)),
    }
}

#[cfg(test)]
mod tests {
    use model::{BatchType, ThreadId};
    use protocols::{Cursor, MessageHeader, MessageProgress, Native, native};
    use serde_json::json;

    use super::*;

    fn read(bytes: &[u8]) -> Option<NativeEvent> {
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
            let chunk = NativeEvent::Chunk { message, attempt: 3, role, chunk, is_compacted: false };
            assert_eq!(read(&bytes), Some(chunk));
        }
        let reset = NativeEvent::Reset { message: message.clone(), attempt: 4 };
        assert_eq!(read(&native.reset(&message, 4)), Some(reset));
        let header = header(4, Role::Assistant);
        for (position, is_stopped) in [(77, false), (78, true)] {
            let position = Position::from_stored(position);
            let complete = NativeEvent::Complete { message: message.clone(), position, is_stopped };
            assert_eq!(read(&native.complete(&header, position, is_stopped).bytes()), Some(complete));
        }
        let failure = StreamError {
            missing: vec![IdRange { first: 3, last: 5 }],
            ..StreamError::new("gap_timeout", "a gap", true)
        };
        let position = Position::from_stored(79);
        let bytes = native.failed(&header, position, &failure).bytes();
        assert_eq!(read(&bytes), Some(NativeEvent::Failed { message, position, failure: Box::new(failure) }));
        assert_eq!((read(native::HEARTBEAT), read(&native::drain(250))), (None, None));
    }
}
