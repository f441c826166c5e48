//! Messages that have ended, as the store has them, and the events by which a reader learns of them.

use bytes::Bytes;
use model::{MessageId, Position};
use protocols::{MessageHeader, MessageOffset, Native, StoredAnswer, StreamError};

/// A message that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedMessage {
    /// Which message.
    pub header: MessageHeader,
    /// Its place among the ends of the thread.
    pub position: Position,
    /// How it ended.
    pub how: EndKind,
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq)]
pub enum EndKind {
    /// Persisted, whole or as far as it had come.
    Stored(StoredAnswer),
    /// Given up.
    Failed(StreamError),
}

/// What to read from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRead {
    /// The position of the thread's last end at or below this one.
    Last(Position),
    /// The ends of the thread after the first position, up to the second one.
    Ends {
        /// After this one.
        after: Position,
        /// Up to this one; [`Position::MAX`]: whatever there is.
        through: Position,
    },
}

/// Ends of a thread, in the order of their positions.
#[derive(Debug, Clone, PartialEq)]
pub struct StorePage {
    /// After this position.
    pub after: Position,
    /// The ends.
    pub ends: Vec<EndedMessage>,
    /// There are no others up to here; less than was asked for when there are more than one page holds.
    pub through: Position,
}

/// What a page says to a reader with a cursor of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatchUp {
    /// These events; the reader stands behind them now.
    NativeEvent(Vec<Bytes>),
    /// These events, the last of which is the end of the message that it wanted.
    Last(Vec<Bytes>),
    /// It claims to have seen more of a message than there is.
    Ahead,
}

/// Shows a reader what ended after its cursor. `until`: nothing is shown after the end of this message.
pub fn catch_up(native: &mut Native, page: &StorePage, until: Option<&MessageId>) -> CatchUp {
    let mut out = Vec::new();
    for ended in page.ends.iter().filter(|ended| ended.position > page.after) {
        if ended.position <= native.cursor().base() {
            continue;
        }
        let message = &ended.header.message;
        if let (EndKind::Stored(answer), Some(seen)) = (&ended.how, native.cursor().seen(message))
            && !answer.has(seen)
        {
            return CatchUp::Ahead;
        }
        append_end(native, ended, &mut out);
        if until == Some(message) {
            return CatchUp::Last(out);
        }
    }
    native.pass(page.through);
    CatchUp::NativeEvent(out)
}

/// Appends the events that the reader lacks of a message, and its end.
pub(crate) fn append_end(native: &mut Native, ended: &EndedMessage, out: &mut Vec<Bytes>) {
    let EndedMessage { header, position, how } = ended;
    let message = &header.message;
    match how {
        EndKind::Failed(failure) => out.push(native.failed(header, *position, failure).bytes()),
        EndKind::Stored(answer) => {
            let nothing = || MessageOffset::nothing(answer.attempt());
            let seen = native.cursor().seen(message).cloned().unwrap_or_else(nothing);
            let mut rest = answer.rest(&seen);
            if rest.is_anew {
                out.push(native.reset(message, answer.attempt()));
            }
            for chunk in &rest.chunks {
                rest.progress.advance(chunk);
                let seen = rest.progress.seen().clone();
                out.push(native.chunk(header, seen, chunk, true).bytes());
            }
            out.push(native.complete(header, *position, answer.is_stopped()).bytes());
        }
    }
}
