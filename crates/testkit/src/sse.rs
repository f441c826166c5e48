//! A client of `GET /v1/threads/{id}/events` that records everything it receives.
//!
//! A [`Follower`] follows one thread, reconnects with `Last-Event-ID` when its connection breaks,
//! and keeps one [`Transcript`] per connection. It checks nothing; `chaos::verify` does.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use protocols::EventReader;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

pub use protocols::SseItem;

use crate::{http, locked};

/// Pause before a reconnect, unless a drain asked for another; a gateway that is down is tried five
/// times a second.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Reads a gateway's stream piece by piece.
#[derive(Debug, Default)]
pub struct Parser(EventReader);

impl Parser {
    /// The reconnect pause that the stream last asked for, ms.
    pub fn retry_ms(&self) -> Option<u64> {
        self.0.retry_ms()
    }

    /// Takes the next bytes and returns the items that they complete.
    ///
    /// # Panics
    /// An event is larger than any of a gateway.
    #[expect(clippy::panic, reason = "a client of tests has no use for the error")]
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<SseItem> {
        self.0.feed(bytes).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The record of one connection.
#[derive(Debug, Clone)]
pub struct Transcript {
    pub gateway: SocketAddr,
    /// The cursor that was sent.
    pub last_event_id: Option<String>,
    /// The id of `ready`, which begins a connection without a cursor.
    pub ready: Option<String>,
    /// When the connection was begun.
    pub began_at: Instant,
    /// In order of arrival.
    pub events: Vec<Received>,
    /// Comments (`: open`, heartbeats), each with the number of events before it.
    pub comments: Vec<(usize, String)>,
    /// How the connection ended; `None` while it is open, or if we closed it.
    pub end: Option<StreamEnd>,
    /// The pause after which a draining gateway wants the client to reconnect.
    pub drained: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The server finished its body.
    Clean,
    /// The connection broke, or could not be made.
    Aborted(String),
    /// A status other than 200, with its body.
    Refused(u16, String),
}

#[derive(Debug, Clone)]
pub struct Received {
    /// The `id:` field.
    pub id: Option<String>,
    pub at: Instant,
    pub event: StreamEvent,
}

/// The content of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A chunk, in order.
    Chunk(ReceivedChunk),
    /// The message has been persisted.
    Complete {
        message: String,
        position: Option<String>,
        /// The text is the part that had arrived when its turn was stopped.
        is_stopped: bool,
    },
    /// The message was given up.
    Failed {
        message: String,
        /// Position in the order in which the messages of the thread end; `None` if the message was
        /// lost.
        position: Option<String>,
        /// A code such as `gap_timeout`.
        code: String,
        /// The reason for people.
        text: String,
        /// Code and other fields.
        metadata: Value,
    },
    /// The text of the message starts again.
    Reset { message: String, attempt: u32 },
    /// The client's position no longer exists: the client drops everything after another position,
    /// and all open messages.
    Restart { after: String },
    /// Any other event, unchanged.
    Other { name: Option<String>, data: String },
}

/// A chunk as a client sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedChunk {
    pub message: String,
    pub attempt: u32,
    pub id: u32,
    /// Its type on the wire.
    pub kind: String,
    pub text: String,
    pub is_final: bool,
    /// The chunk contains all stored chunks of its type that the client lacks.
    pub is_compacted: bool,
}

/// The JSON fields of all kinds of events.
#[derive(Debug, Deserialize)]
struct EventFields {
    message_id: String,
    chunk_id: Option<u32>,
    #[serde(default)]
    chunk: String,
    #[serde(default)]
    chunk_type: String,
    #[serde(default)]
    is_final: bool,
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    metadata: Value,
    position: Option<String>,
    #[serde(default)]
    status: String,
    #[serde(default)]
    compacted: bool,
}

#[derive(Debug, Deserialize)]
struct RestartData {
    after: String,
}

impl StreamEvent {
    /// Reads a dispatched SSE event.
    pub fn read(name: Option<&str>, data: &str) -> Self {
        let other = || Self::Other { name: name.map(str::to_owned), data: data.to_owned() };
        if name == Some("restart") {
            let read = serde_json::from_str(data);
            return read.map_or_else(|_| other(), |RestartData { after }| Self::Restart { after });
        }
        let Ok(fields) = serde_json::from_str::<EventFields>(data) else { return other() };
        match (name, fields.chunk_type.as_str(), fields.chunk_id) {
            (Some("reset"), ..) => Self::Reset { message: fields.message_id, attempt: fields.attempt },
            (None, "system", _) if fields.chunk == "message_complete" => {
                let is_stopped = fields.status == "stopped";
                Self::Complete { message: fields.message_id, position: fields.position, is_stopped }
            }
            // A producer's own error chunk has a number; the event that ends a message has none.
            (None, "error", None) => Self::Failed {
                message: fields.message_id,
                position: fields.position,
                code: fields.metadata.get("code").and_then(Value::as_str).unwrap_or_default().to_owned(),
                text: fields.chunk,
                metadata: fields.metadata,
            },
            (None, kind, Some(id)) => Self::Chunk(ReceivedChunk {
                message: fields.message_id,
                attempt: fields.attempt,
                id,
                kind: kind.to_owned(),
                text: fields.chunk,
                is_final: fields.is_final,
                is_compacted: fields.compacted,
            }),
            _ => other(),
        }
    }

    /// The message that this event ends, if any.
    pub fn terminal(&self) -> Option<&str> {
        match self {
            Self::Complete { message, .. } | Self::Failed { message, .. } => Some(message),
            Self::Chunk(_) | Self::Reset { .. } | Self::Restart { .. } | Self::Other { .. } => None,
        }
    }
}

impl Transcript {
    /// The record of a connection that begins now.
    pub fn new(gateway: SocketAddr, last_event_id: Option<String>) -> Self {
        let (events, comments) = (Vec::new(), Vec::new());
        let (ready, end, drained) = (None, None, None);
        Self { gateway, last_event_id, ready, began_at: Instant::now(), events, comments, end, drained }
    }

    /// Records the pause that the stream asked for, if its last event is that of a drain.
    fn obey(&mut self, retry_ms: u64) {
        let last = self.events.last().map(|received| &received.event);
        if matches!(last, Some(StreamEvent::Other { name: Some(name), .. }) if name == "drain") {
            self.drained = Some(Duration::from_millis(retry_ms));
        }
    }

    /// The text received of a message since its last reset.
    pub fn text_of(&self, message: &str) -> String {
        let mut text = String::new();
        for received in &self.events {
            match &received.event {
                StreamEvent::Reset { message: reset, .. } if reset == message => text.clear(),
                StreamEvent::Chunk(chunk) if chunk.message == message && chunk.kind == "content" => {
                    text.push_str(&chunk.text)
                }
                _ => {}
            }
        }
        text
    }
}

/// How a thread is followed.
#[derive(Debug, Clone, Default)]
pub struct FollowOptions {
    /// The cursor of the first connection.
    pub last_event_id: Option<String>,
    /// Do not reconnect after the first connection.
    pub once: bool,
    /// The client reads only while this is true.
    pub reads: Option<watch::Receiver<bool>>,
    /// Close each connection after this time and reconnect with the cursor, for an unreliable
    /// client.
    pub hang_up_after: Option<Duration>,
}

/// Counts that grow while a follower reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FollowerProgress {
    /// Connections on which `: open` has been seen.
    pub opened: usize,
    /// Events but those of inputs.
    pub events: usize,
    pub terminals: usize,
    /// Connections that have ended.
    pub ended: usize,
    /// The follower has a cursor to reconnect with.
    pub has_cursor: bool,
}

/// Follows one thread until it is stopped or dropped.
#[derive(Debug)]
pub struct Follower {
    thread: String,
    transcripts: Arc<Mutex<Vec<Transcript>>>,
    progress: watch::Receiver<FollowerProgress>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Starts at the first of `gateways`; each reconnect uses the next one.
    pub fn start(gateways: &[SocketAddr], thread: &str, options: FollowOptions) -> Self {
        let transcripts = Arc::new(Mutex::new(Vec::new()));
        let (progress, watcher) = watch::channel(FollowerProgress::default());
        let reader = FollowerTask {
            gateways: gateways.to_vec(),
            path: format!("/v1/threads/{thread}/events"),
            options,
            transcripts: Arc::clone(&transcripts),
            progress,
        };
        let task = tokio::spawn(reader.run());
        Self { thread: thread.to_owned(), transcripts, progress: watcher, task }
    }

    pub fn thread(&self) -> &str {
        &self.thread
    }

    /// The counts so far.
    pub fn progress(&self) -> FollowerProgress {
        *self.progress.borrow()
    }

    /// Waits until `enough` holds.
    ///
    /// # Errors
    /// It does not hold within `limit`.
    pub async fn wait(
        &self,
        limit: Duration,
        mut enough: impl FnMut(FollowerProgress) -> bool,
    ) -> Result<()> {
        let mut progress = self.progress.clone();
        let waited = timeout(limit, progress.wait_for(|progress| enough(*progress))).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!(
                "thread {}: the follower has ended; last connection: {:?}",
                self.thread,
                self.last_end()
            ),
            Err(_) => bail!("thread {}: nothing more for {limit:?}; {:?}", self.thread, self.progress()),
        }
    }

    /// Waits until the first connection is open, so that nothing published from now on is missed.
    pub async fn opened(&self) -> Result<()> {
        self.wait(crate::WAIT_TIMEOUT, |progress| progress.opened > 0).await
    }

    /// A copy of the records so far.
    pub fn transcripts(&self) -> Vec<Transcript> {
        locked(&self.transcripts).clone()
    }

    /// Reads the transcripts without copying them.
    pub fn inspect<T>(&self, look: impl FnOnce(&[Transcript]) -> T) -> T {
        look(&locked(&self.transcripts))
    }

    /// Disconnects, and returns the records.
    pub fn stop(self) -> Vec<Transcript> {
        self.task.abort();
        std::mem::take(&mut *locked(&self.transcripts))
    }

    fn last_end(&self) -> Option<StreamEnd> {
        self.inspect(|transcripts| transcripts.last().and_then(|transcript| transcript.end.clone()))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct FollowerTask {
    gateways: Vec<SocketAddr>,
    path: String,
    options: FollowOptions,
    transcripts: Arc<Mutex<Vec<Transcript>>>,
    progress: watch::Sender<FollowerProgress>,
}

impl FollowerTask {
    async fn run(self) {
        let mut cursor = self.options.last_event_id.clone();
        for gateway in self.gateways.iter().cycle() {
            locked(&self.transcripts).push(Transcript::new(*gateway, cursor.clone()));
            let end = tokio::select! {
                end = self.connection(*gateway, &mut cursor) => {
                    Some(end.unwrap_or_else(|error| StreamEnd::Aborted(error.to_string())))
                }
                () = self.hang_up() => None,
            };
            self.with_transcript(|transcript| transcript.end = end);
            self.progress.send_modify(|progress| progress.ended += 1);
            if self.options.once {
                break;
            }
            let drained = locked(&self.transcripts).last().and_then(|transcript| transcript.drained);
            sleep(drained.unwrap_or(RECONNECT_PAUSE)).await;
        }
    }

    /// Waits for the time to hang up, and then for a cursor: a client without a cursor misses what
    /// ends before it reconnects.
    async fn hang_up(&self) {
        let Some(stay) = self.options.hang_up_after else { return std::future::pending().await };
        sleep(stay).await;
        // This never fails, because `self` holds the sender.
        let _ = self.progress.subscribe().wait_for(|progress| progress.has_cursor).await;
    }

    async fn connection(
        &self,
        gateway: SocketAddr,
        cursor: &mut Option<String>,
    ) -> std::io::Result<StreamEnd> {
        let mut headers = vec![("accept", "text/event-stream")];
        if let Some(cursor) = cursor {
            headers.push(("last-event-id", cursor));
        }
        let mut response = http::open(gateway, &self.path, &headers).await?;
        let mut bytes = Vec::new();
        if response.status != 200 {
            while response.body.read(&mut bytes).await? > 0 {}
            return Ok(StreamEnd::Refused(response.status, String::from_utf8_lossy(&bytes).into_owned()));
        }
        let mut parser = Parser::default();
        while response.body.read(&mut bytes).await? > 0 {
            let items = parser.feed(&bytes);
            bytes.clear();
            self.record(items, cursor);
            if let Some(retry_ms) = parser.retry_ms() {
                self.with_transcript(|transcript| transcript.obey(retry_ms));
            }
            if let Some(reads) = &self.options.reads {
                // If the test has dropped the sender, the client reads on.
                let _ = reads.clone().wait_for(|reads| *reads).await;
            }
        }
        Ok(StreamEnd::Clean)
    }

    fn record(&self, items: Vec<SseItem>, cursor: &mut Option<String>) {
        let at = Instant::now();
        let mut seen = FollowerProgress::default();
        self.with_transcript(|transcript| {
            for item in items {
                match item {
                    SseItem::Comment(text) => {
                        seen.opened += usize::from(transcript.comments.is_empty());
                        transcript.comments.push((transcript.events.len(), text));
                    }
                    SseItem::Event { id, name, .. } if name.as_deref() == Some("ready") => {
                        cursor.clone_from(&id);
                        transcript.ready = id;
                    }
                    SseItem::Event { id, name, data } => {
                        let event = StreamEvent::read(name.as_deref(), &data);
                        let is_of_input = matches!(name.as_deref(), Some("input" | "input_withdrawn"));
                        seen.events += usize::from(!is_of_input);
                        seen.terminals += usize::from(event.terminal().is_some());
                        if id.is_some() {
                            cursor.clone_from(&id);
                        }
                        transcript.events.push(Received { id, at, event });
                    }
                }
            }
        });
        self.progress.send_modify(|progress| {
            progress.opened += seen.opened;
            progress.events += seen.events;
            progress.terminals += seen.terminals;
            progress.has_cursor = cursor.is_some();
        });
    }

    fn with_transcript(&self, change: impl FnOnce(&mut Transcript)) {
        if let Some(transcript) = locked(&self.transcripts).last_mut() {
            change(transcript);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_distinguished() {
        let chunk = json!({"session_id": "t", "message_id": "m", "chunk_id": 3, "chunk": "x", "chunk_type": "content",
            "is_final": true, "metadata": {}, "attempt": 2, "role": "assistant", "batch_type": "system_trigger"});
        let expected = ReceivedChunk {
            message: "m".into(),
            attempt: 2,
            id: 3,
            kind: "content".into(),
            text: "x".into(),
            is_final: true,
            is_compacted: false,
        };
        assert_eq!(StreamEvent::read(None, &chunk.to_string()), StreamEvent::Chunk(expected.clone()));
        let mut rest = chunk;
        rest["compacted"] = json!(true);
        let expected = ReceivedChunk { is_compacted: true, ..expected };
        assert_eq!(StreamEvent::read(None, &rest.to_string()), StreamEvent::Chunk(expected));
        let complete = json!({"chunk_type": "system", "chunk": "message_complete", "session_id": "t", "message_id": "m",
            "position": "12"});
        for status in ["completed", "stopped"] {
            let mut complete = complete.clone();
            complete["status"] = json!(status);
            let (message, position) = ("m".into(), Some("12".into()));
            let expected = StreamEvent::Complete { message, position, is_stopped: status == "stopped" };
            assert_eq!(StreamEvent::read(None, &complete.to_string()), expected);
        }
        let failed = json!({"chunk_type": "error", "chunk": "gone", "is_final": true, "message_id": "m",
            "metadata": {"code": "gap_timeout"}, "position": "13"});
        let StreamEvent::Failed { position, code, text, .. } = StreamEvent::read(None, &failed.to_string())
        else {
            panic!("{failed}")
        };
        assert_eq!((position.as_deref(), &*code, &*text), (Some("13"), "gap_timeout", "gone"));
        let reset = json!({"session_id": "t", "message_id": "m", "attempt": 1});
        let expected = StreamEvent::Reset { message: "m".into(), attempt: 1 };
        assert_eq!(StreamEvent::read(Some("reset"), &reset.to_string()), expected);
        let restart = json!({"session_id": "t", "after": "12"});
        let expected = StreamEvent::Restart { after: "12".into() };
        assert_eq!(StreamEvent::read(Some("restart"), &restart.to_string()), expected);
        assert!(matches!(StreamEvent::read(Some("drain"), "{}"), StreamEvent::Other { .. }));
    }
}
