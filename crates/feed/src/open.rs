//! One open message, and the part of it that was shown.

use std::sync::Arc;

use bytes::Bytes;
use model::{Chunk, ChunkKind, OpenInput};
use protocols::native::NativeEvent;
use protocols::{MessageHeader, MessageOffset, MessageProgress, Native, WithheldCalls};

use crate::subscription::FeedEvent;

#[derive(Debug)]
pub(crate) struct FeedMessage {
    pub(crate) header: MessageHeader,
    progress: MessageProgress,
    withheld: WithheldCalls,
    /// Number of consecutive replies of a current owner that have not listed the message.
    pub(crate) absent: u32,
    /// Number of the message among those that the feed has opened.
    pub(crate) opened: u64,
    has_input: bool,
    log: Option<EventLog>,
    log_bytes: usize,
}

/// The events that were sent of a message, for subscribers that join later.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// The input that the message answers.
    pub(crate) input: Option<Bytes>,
    /// The events from chunk 0 on.
    pub(crate) chunks: Vec<Shown>,
}

/// An event that was sent, and its reader's offset after it.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) data: Bytes,
    /// The chunk that the data encodes.
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) seen: MessageOffset,
}

impl FeedMessage {
    pub(crate) fn new(header: MessageHeader, opened: u64) -> Self {
        let progress = MessageProgress::new(header.attempt, header.is_answer());
        Self {
            header,
            progress,
            withheld: WithheldCalls::default(),
            absent: 0,
            opened,
            has_input: false,
            log: Some(EventLog::default()),
            log_bytes: 0,
        }
    }

    /// Begins a higher attempt. The input stays shown.
    pub(crate) fn restart(&mut self, header: MessageHeader) {
        let input = self.log.take().and_then(|log| log.input);
        let is_dropped = self.has_input && input.is_none();
        let fresh = Self::new(header, self.opened);
        let log_bytes = input.as_ref().map_or(0, Bytes::len);
        let log = (!is_dropped).then(|| EventLog { input, chunks: Vec::new() });
        *self = Self { has_input: self.has_input, log, log_bytes, ..fresh };
    }

    /// True if the input that the message answers was shown.
    pub(crate) fn has_input(&self) -> bool {
        self.has_input
    }

    /// Shows the input that it answers.
    pub(crate) fn show_input(&mut self, native: &mut Native, input: Arc<OpenInput>) -> FeedEvent {
        self.has_input = true;
        let event = native.input(&self.header, &input);
        if let Some(log) = &mut self.log {
            self.log_bytes += event.len();
            log.input = Some(event.data());
        }
        FeedEvent { bytes: event.bytes(), event: NativeEvent::Input(input) }
    }

    pub(crate) fn seen(&self) -> &MessageOffset {
        self.progress.seen()
    }

    /// The id of the next chunk to show.
    pub(crate) fn next(&self) -> u32 {
        self.progress.seen().next
    }

    /// The events so far; `None` if the log was dropped.
    pub(crate) fn log(&self) -> Option<&EventLog> {
        self.log.as_ref()
    }

    pub(crate) fn log_bytes(&self) -> usize {
        self.log_bytes
    }

    /// Drops the log to free its memory.
    pub(crate) fn drop_log(&mut self) {
        (self.log, self.log_bytes) = (None, 0);
    }

    /// Shows the next chunk. An `error` chunk only takes its number: the end of the message reports
    /// the error once.
    pub(crate) fn show(&mut self, native: &mut Native, chunk: &Arc<Chunk>) -> Option<FeedEvent> {
        self.progress.advance(chunk);
        let seen = self.progress.seen().clone();
        if chunk.kind == ChunkKind::Error {
            native.advance_silently(&self.header.message, seen);
            return None;
        }
        let shown = self.withheld.shown(chunk);
        let chunk: &Arc<Chunk> = &shown;
        let event = native.chunk(&self.header, seen.clone(), chunk, false);
        if let Some(log) = &mut self.log {
            self.log_bytes += event.len();
            log.chunks.push(Shown { data: event.data(), chunk: Arc::clone(chunk), seen });
        }
        Some(FeedEvent { bytes: event.bytes(), event: chunk_event(&self.header, chunk, false) })
    }
}

/// A chunk of a message as a value.
pub(crate) fn chunk_event(header: &MessageHeader, chunk: &Arc<Chunk>, is_compacted: bool) -> NativeEvent {
    let MessageHeader { message, attempt, role, .. } = header;
    NativeEvent::Chunk {
        message: message.clone(),
        attempt: *attempt,
        role: *role,
        chunk: Arc::clone(chunk),
        is_compacted,
    }
}

#[cfg(test)]
mod tests {
    use model::{BatchType, MessageId, Metadata, Position, Role, ThreadId};
    use protocols::Cursor;
    use serde_json::json;

    use super::*;

    #[test]
    fn reasoning_tools_are_withheld_while_they_come() {
        let thread = ThreadId::parse("t").unwrap();
        let mut native = Native::new(thread, Cursor::at(Position::from_stored(0)));
        let message = MessageId::parse("m").unwrap();
        let mut open =
            FeedMessage::new(MessageHeader::new(message, 0, Role::Assistant, BatchType::UserRequest), 1);
        let named = json!({ "tool_call_id": "c", "tool_name": "frs_view_thread" });
        for (id, kind, text) in
            [(0, ChunkKind::ToolCall, "{\"SECRET\":1}"), (1, ChunkKind::ToolResult, "[1] SECRET")]
        {
            let metadata = Metadata::new(named.as_object().unwrap().clone()).unwrap();
            let chunk = Arc::new(Chunk { kind, metadata, ..Chunk::content(id, text, false) });
            let shown = open.show(&mut native, &chunk).unwrap();
            let NativeEvent::Chunk { chunk, .. } = &shown.event else { panic!("{shown:?}") };
            let sent = String::from_utf8_lossy(&shown.bytes).into_owned();
            assert!(!sent.contains("SECRET") && !chunk.text.contains("SECRET"), "{sent}");
        }
        // Subscribers that join later get the same, and cursors count all chunks.
        let log = open.log().unwrap();
        assert!(log.chunks.iter().all(|shown| !String::from_utf8_lossy(&shown.data).contains("SECRET")));
        assert_eq!(open.seen().calls[0].result, Some(10));
    }
}
