//! A chunk: a numbered piece of one message.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error, ser::SerializeMap};

use crate::{Halves, InvalidMetadata, MessageId, Metadata, ThreadId};

/// Highest chunk id that is parsed; the owner's limit per message may be lower.
pub const MAX_CHUNK_ID: u32 = 999_999;

/// Content type of a chunk. Absent on the wire means content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ChunkKind {
    /// Text of the answer.
    #[default]
    Content,
    /// Takes an id, adds no text.
    Metadata,
    /// Ends the message as failed.
    Error,
    /// A piece of a tool call.
    ToolCall,
    /// A tool's result.
    ToolResult,
    /// The model's reasoning.
    Reasoning,
}

impl ChunkKind {
    /// All kinds, in the order of their numbers in protobuf.
    pub const ALL: [Self; 6] =
        [Self::Content, Self::Metadata, Self::Error, Self::ToolCall, Self::ToolResult, Self::Reasoning];

    /// Name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Metadata => "metadata",
            Self::Error => "error",
            Self::ToolCall => "tool_call",
            Self::ToolResult => "tool_result",
            Self::Reasoning => "reasoning",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Author role of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    /// The model; the default of a chunk.
    #[default]
    Assistant,
    /// A person, or a task.
    User,
    /// A tool's result.
    Tool,
    System,
}

impl Role {
    /// All roles, in the order of their numbers in protobuf.
    pub const ALL: [Self; 4] = [Self::Assistant, Self::User, Self::Tool, Self::System];

    /// Name on the wire and in Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Assistant => "assistant",
            Self::User => "user",
            Self::Tool => "tool",
            Self::System => "system",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A chunk that is invalid by itself, regardless of its neighbours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidChunk {
    /// Negative or above [`MAX_CHUNK_ID`].
    #[error("chunk_id is {0}; 0 to {MAX_CHUNK_ID} are allowed")]
    Id(i64),
    /// Text with a NUL, which Postgres cannot store.
    #[error("the chunk's text holds a NUL character")]
    Nul,
    /// Metadata that cannot be stored.
    #[error(transparent)]
    Metadata(#[from] InvalidMetadata),
}

/// One validated piece of a message. Immutable once built, so it is cheap to share.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Number in the message, from 0.
    pub id: u32,
    pub kind: ChunkKind,
    /// True on the last chunk of a message.
    pub is_final: bool,
    /// Text (UTF-8, no NUL).
    pub text: Box<str>,
    /// Halves of UTF-16 pairs cut off at the ends of the text.
    pub halves: Halves,
    /// Free-form; the final chunk's metadata becomes the message's.
    pub metadata: Metadata,
    /// RFC 3339, as written by the publisher.
    pub timestamp: Option<Box<str>>,
    /// Id for tracing across services, as written by the publisher.
    pub correlation_id: Option<Box<str>>,
}

impl Chunk {
    /// A content chunk without metadata.
    pub fn content(id: u32, text: &str, is_final: bool) -> Self {
        Self {
            id,
            kind: ChunkKind::Content,
            is_final,
            text: text.into(),
            halves: Halves::NONE,
            metadata: Metadata::EMPTY,
            timestamp: None,
            correlation_id: None,
        }
    }

    /// Checks the rules for a single chunk.
    pub fn check(&self) -> Result<(), InvalidChunk> {
        if self.id > MAX_CHUNK_ID {
            return Err(InvalidChunk::Id(self.id.into()));
        }
        let texts = [Some(&self.text), self.timestamp.as_ref(), self.correlation_id.as_ref()];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            return Err(InvalidChunk::Nul);
        }
        if self.is_final {
            self.metadata.tokens_used()?;
        }
        self.metadata.model_calls()?;
        Ok(())
    }

    /// Size in bytes for memory limits.
    pub fn size(&self) -> usize {
        self.text.len() + self.metadata.size() + self.timestamp.as_ref().map_or(0, |t| t.len())
    }

    /// Distinguishes chunks of the same id. Covers text, kind, finality and metadata, but not
    /// timestamp and correlation id, which a retrying publisher may change.
    pub fn digest(&self) -> u64 {
        let tag = (self.kind as u64) << 1 | u64::from(self.is_final);
        let text = xxhash_rust::xxh3::xxh3_64_with_seed(self.text.as_bytes(), tag | self.halves.tag());
        match self.metadata.as_map() {
            None => text,
            Some(map) => {
                let json = serde_json::to_vec(map).unwrap_or_default();
                xxhash_rust::xxh3::xxh3_64_with_seed(&json, text)
            }
        }
    }
}

/// JSON with the field names of the wire, without the ids of thread and message.
impl Serialize for Chunk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("chunk_id", &self.id)?;
        map.serialize_entry("chunk", &self.text)?;
        map.serialize_entry("chunk_type", self.kind.name())?;
        map.serialize_entry("is_final", &self.is_final)?;
        map.serialize_entry("metadata", &self.metadata)?;
        if !self.halves.is_none() {
            map.serialize_entry("halves", &[self.halves.first(), self.halves.last()])?;
        }
        if let Some(timestamp) = &self.timestamp {
            map.serialize_entry("timestamp", timestamp)?;
        }
        if let Some(correlation_id) = &self.correlation_id {
            map.serialize_entry("correlation_id", correlation_id)?;
        }
        map.end()
    }
}

/// Reads the serialized form.
impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct StoredChunk {
            chunk_id: u32,
            chunk: Box<str>,
            chunk_type: String,
            is_final: bool,
            metadata: Metadata,
            #[serde(default)]
            halves: [Option<u16>; 2],
            timestamp: Option<Box<str>>,
            correlation_id: Option<Box<str>>,
        }
        let fields = StoredChunk::deserialize(deserializer)?;
        let kind = ChunkKind::from_name(&fields.chunk_type)
            .ok_or_else(|| D::Error::custom(format!("there is no chunk_type {:?}", fields.chunk_type)))?;
        Ok(Self {
            id: fields.chunk_id,
            kind,
            is_final: fields.is_final,
            text: fields.chunk,
            halves: Halves::new(fields.halves[0], fields.halves[1]),
            metadata: fields.metadata,
            timestamp: fields.timestamp,
            correlation_id: fields.correlation_id,
        })
    }
}

/// One chunk of a frame, with its message, attempt, step and role.
#[derive(Debug, Clone, PartialEq)]
pub struct IncomingChunk {
    /// Message that the chunk belongs to.
    pub message: MessageId,
    /// Attempt from which the chunk comes; a higher attempt fences a lower one.
    pub attempt: u32,
    /// Step of the turn, from 0.
    pub step: u32,
    pub role: Role,
    pub chunk: Arc<Chunk>,
}

/// One NATS message with one or more chunks of one thread.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub thread: ThreadId,
    /// Chunks in the order of the frame.
    pub chunks: Vec<IncomingChunk>,
    /// Token that proves that the publisher was asked for these chunks; chunks of a turn need it.
    pub token: Option<crate::TurnToken>,
}
