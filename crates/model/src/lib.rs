//! The nouns of Antiphon: ids, buckets, positions, chunks, messages, metadata. Only invariants live here:
//! a value of one of these types is valid, and every constructor that can fail says what was wrong.
//!
//! Nothing here knows an encoding, a subject, a table or a clock.

mod bucket;
mod chunk;
mod failure;
mod id;
mod message;
mod metadata;
mod position;
mod time;

pub use bucket::{BUCKETS, Bucket, InvalidPartitionCount, PartitionCount, PartitionId};
pub use chunk::{Arrival, Chunk, ChunkKind, Frame, InvalidChunk, MAX_CHUNK_ID, Role};
pub use failure::{DeadLetter, DeadLetterSource, Failure, IdRange, Refusal};
pub use id::{InvalidId, MAX_ID_LEN, MessageId, MessageKey, ThreadId};
pub use message::{BatchType, Message, OpenText, Outcome, Placement};
pub use metadata::{InvalidMetadata, MAX_EXACT_INTEGER, Metadata};
pub use position::{Position, Positions};
pub use time::{Seq, Timestamp};
