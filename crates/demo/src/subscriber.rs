//! A client of one thread: its event stream, piece by piece, across broken connections.

use std::{io, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use testkit::{
    http,
    sse::{Parser, ReceivedChunk, SseItem, StreamEvent},
};

/// Pause before a reconnect.
const PAUSE: Duration = Duration::from_millis(200);

/// An event that a subscriber sees.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SubscriberEvent {
    /// The stream is open: nothing published from now on is missed.
    Opened,
    /// A piece of a message.
    Piece { message: String, kind: PieceKind, text: String },
    /// The message is in Postgres.
    Complete { message: String },
    /// The message was given up.
    Failed { message: String, code: String, text: String },
    /// The message starts again, in another attempt.
    Reset { message: String },
    /// The stream starts over: the text received of open messages is no longer valid.
    Restart,
    /// The connection broke; another one resumes after the last event.
    Broken(String),
}

/// The kind of a piece.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PieceKind {
    Text,
    Reasoning,
    /// The arguments of this call of this tool.
    Call {
        id: String,
        tool: String,
    },
    /// The result of the tool.
    Result {
        tool: String,
    },
}

/// Reads until it is dropped.
#[derive(Debug)]
pub(super) struct Subscriber {
    seen: mpsc::UnboundedReceiver<SubscriberEvent>,
    task: JoinHandle<()>,
}

impl Subscriber {
    pub(super) fn start(gateway: SocketAddr, thread: &str) -> Self {
        let (sender, seen) = mpsc::unbounded_channel();
        let reader = SubscriberTask { gateway, path: format!("/v1/threads/{thread}/events"), sender };
        Self { seen, task: tokio::spawn(reader.read()) }
    }

    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> SubscriberEvent {
        match self.seen.recv().await {
            Some(seen) => seen,
            None => SubscriberEvent::Broken("the reader has ended".to_owned()),
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct SubscriberTask {
    gateway: SocketAddr,
    path: String,
    sender: mpsc::UnboundedSender<SubscriberEvent>,
}

impl SubscriberTask {
    async fn read(self) {
        let mut cursor = None;
        while !self.sender.is_closed() {
            let why = match self.connection(&mut cursor).await {
                Ok(why) => why,
                Err(error) => error.to_string(),
            };
            _ = self.sender.send(SubscriberEvent::Broken(why));
            sleep(PAUSE).await;
        }
    }

    async fn connection(&self, cursor: &mut Option<String>) -> io::Result<String> {
        let mut headers = vec![("accept", "text/event-stream")];
        headers.extend(cursor.as_deref().map(|cursor| ("last-event-id", cursor)));
        let mut response = http::open(self.gateway, &self.path, &headers).await?;
        if response.status != 200 {
            return Ok(format!("the gateway answered {}", response.status));
        }
        _ = self.sender.send(SubscriberEvent::Opened);
        let (mut parser, mut bytes) = (Parser::default(), Vec::new());
        while response.body.read(&mut bytes).await? > 0 {
            for item in parser.feed(&bytes) {
                let SseItem::Event { id, name, data } = item else { continue };
                if id.is_some() {
                    *cursor = id;
                }
                seen(name.as_deref(), &data).into_iter().for_each(|seen| _ = self.sender.send(seen));
            }
            bytes.clear();
        }
        Ok("the gateway ended the stream".to_owned())
    }
}

fn seen(name: Option<&str>, data: &str) -> Option<SubscriberEvent> {
    Some(match StreamEvent::read(name, data) {
        StreamEvent::Chunk(chunk) => piece(chunk, data)?,
        StreamEvent::Complete { message, .. } => SubscriberEvent::Complete { message },
        StreamEvent::Failed { message, code, text, .. } => SubscriberEvent::Failed { message, code, text },
        StreamEvent::Reset { message, .. } => SubscriberEvent::Reset { message },
        StreamEvent::Restart { .. } => SubscriberEvent::Restart,
        StreamEvent::Other { .. } => return None,
    })
}

/// Chunks of other kinds, such as keep-alives, are not shown.
fn piece(chunk: ReceivedChunk, data: &str) -> Option<SubscriberEvent> {
    let fields: Value = serde_json::from_str(data).unwrap_or_default();
    let metadata = |key: &str| fields["metadata"][key].as_str().unwrap_or_default().to_owned();
    let kind = match chunk.kind.as_str() {
        "content" => PieceKind::Text,
        "reasoning" => PieceKind::Reasoning,
        "tool_call" => PieceKind::Call { id: metadata("tool_call_id"), tool: metadata("tool_name") },
        "tool_result" => PieceKind::Result { tool: metadata("tool_name") },
        _ => return None,
    };
    Some(SubscriberEvent::Piece { message: chunk.message, kind, text: chunk.text })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pieces_are_distinguished() {
        let chunk = |kind: &str| {
            let data = json!({"session_id": "t", "message_id": "m", "chunk_id": 0, "chunk": "x", "chunk_type": kind,
                "metadata": {"tool_call_id": "c", "tool_name": "f"}});
            seen(None, &data.to_string())
        };
        let piece = |kind| Some(SubscriberEvent::Piece { message: "m".into(), kind, text: "x".into() });
        assert_eq!(chunk("content"), piece(PieceKind::Text));
        assert_eq!(chunk("reasoning"), piece(PieceKind::Reasoning));
        assert_eq!(chunk("tool_call"), piece(PieceKind::Call { id: "c".into(), tool: "f".into() }));
        assert_eq!(chunk("tool_result"), piece(PieceKind::Result { tool: "f".into() }));
        assert_eq!(chunk("metadata"), None);
        let end = json!({"chunk_type": "system", "chunk": "message_complete", "session_id": "t", "message_id": "m",
            "position": "12"});
        assert_eq!(seen(None, &end.to_string()), Some(SubscriberEvent::Complete { message: "m".into() }));
    }
}
