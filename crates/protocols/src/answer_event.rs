//! Events of one turn's answer, and their encoding by a protocol.
//!
//! Entry types: [`AnswerEvent`] is the input, [`ProtocolOutput`] the output, and [`Protocol`] the
//! fold between them.

use bytes::Bytes;
use model::{Chunk, ModelCall, Position};

use crate::StreamError;

/// An event of one turn's answer. Events arrive in order and once; the chunks of an attempt arrive
/// from the first one without a gap.
#[derive(Debug, Clone, Copy)]
pub enum AnswerEvent<'a> {
    /// The input is durable, and the turn is queued or running.
    Opened,
    /// The next chunk of the answer.
    Chunk {
        /// Attempt of the chunk.
        attempt: u32,
        chunk: &'a Chunk,
    },
    /// The answer restarts.
    Reset {
        /// The new attempt, which has no chunks yet.
        attempt: u32,
    },
    /// Usage of all its model calls, including those of earlier attempts. If known, it comes
    /// directly before the end; otherwise the chunks' own reports apply.
    Used(&'a ModelCall),
    /// The whole answer is committed.
    Complete {
        /// Position of the last message.
        position: Position,
    },
    /// The turn was stopped, and the answer so far is committed.
    Stopped,
    /// The turn failed.
    Failed(&'a StreamError),
}

/// The fate of the connection after the bytes of a [`ProtocolOutput`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamAction {
    /// The connection stays open.
    Continue,
    /// The connection ends cleanly: the protocol's terminal event has been written.
    Close,
    /// The connection must be cut, so that no client mistakes a part for the whole: HTTP/1.1 omits
    /// the last chunk, HTTP/2 resets the stream. The client reconnects and reads the new attempt
    /// from its start.
    Abort,
}

/// The output for one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolOutput {
    /// Complete events, or nothing.
    pub bytes: Bytes,
    /// The fate of the connection after them.
    pub then: StreamAction,
}

/// A client protocol as a fold over the events of one answer.
///
/// The same events give the same bytes on every machine: ids derive from the answer's id, and times
/// come with the events. Only [`AnswerEvent::Complete`], [`AnswerEvent::Stopped`] and
/// [`AnswerEvent::Failed`] write a terminal event. So a terminal event follows the commit, and a
/// stream never ends cleanly without one.
pub trait Protocol {
    /// Encodes the next event.
    ///
    /// After [`StreamAction::Abort`] the fold is at the start of the new attempt, for a caller
    /// without a connection that only waits for the whole answer. After [`StreamAction::Close`] no
    /// more events are allowed.
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput;

    /// Must be called before the first event if the events come from the history. The pieces of the
    /// history differ from those that a client may have seen.
    fn recall(&mut self) {}

    /// Headers that the protocol requires, besides those of every event stream.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}
