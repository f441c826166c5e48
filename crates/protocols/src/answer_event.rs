//! What happens to the answer of one turn, and what every protocol makes of it.
//!
//! Entry types: [`AnswerEvent`] goes in, [`ProtocolOutput`] comes out, and [`Protocol`] is the fold between them.

use bytes::Bytes;
use model::{Chunk, ModelCall, Position};

use crate::StreamError;

/// Something that happened to the answer of one turn. They come in order and each once; chunks of an attempt from the
/// first on, without a gap.
#[derive(Debug, Clone, Copy)]
pub enum AnswerEvent<'a> {
    /// The input is durable, and the turn waits or has begun.
    Opened,
    /// The next chunk of the answer.
    Chunk {
        /// The attempt that it comes from.
        attempt: u32,
        /// The chunk.
        chunk: &'a Chunk,
    },
    /// The answer starts again.
    Reset {
        /// The new attempt, of which nothing has come yet.
        attempt: u32,
    },
    /// What its calls of models used together, those of earlier attempts included. It comes right before the end, where it is known; without it
    /// the chunks say it.
    Used(&'a ModelCall),
    /// The whole answer is committed.
    Complete {
        /// Where its last message stands.
        position: Position,
    },
    /// The turn was stopped, and what there was of the answer is committed.
    Stopped,
    /// The turn was given up.
    Failed(&'a StreamError),
}

/// What becomes of the connection after the bytes of an [`ProtocolOutput`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamAction {
    /// It goes on.
    Continue,
    /// It ends cleanly: the protocol's own terminal has been written.
    Close,
    /// It must be cut, so that no client takes what it has for the whole: without the last chunk of HTTP/1.1, with a reset
    /// of the stream in HTTP/2. The client comes back and reads the new attempt from its beginning.
    Abort,
}

/// What a protocol says to one happening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolOutput {
    /// Complete events, or nothing.
    pub bytes: Bytes,
    /// What comes after them.
    pub then: StreamAction,
}

/// A client protocol as a fold over what happens to one answer.
///
/// The same happenings give the same bytes on every machine: ids are made from the answer's id, times come with the
/// happenings. A terminal is written for [`AnswerEvent::Complete`], [`AnswerEvent::Stopped`] and [`AnswerEvent::Failed`] alone,
/// so only after the commit, and a stream never ends cleanly without one.
pub trait Protocol {
    /// Takes the next happening.
    ///
    /// After [`StreamAction::Abort`] the fold stands at the beginning of the new attempt, for a caller that has no connection to cut
    /// because it only waits for the whole. After [`StreamAction::Close`] nothing more is to be handed in.
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput;

    /// What follows is the answer as the history has it, whose pieces are not those that a client may have seen before.
    /// Nothing of it has been handed in yet.
    fn recall(&mut self) {}

    /// Headers that the protocol demands, beyond those of any stream of server-sent events.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}
