//! Messages that have ended, as the store has them, and the events by which a reader learns of them.

use model::{AnswerReport, Position};
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageHeader, MessageOffset, Native, StoredAnswer, StreamError};

use crate::open;
use crate::subscription::{FeedEvent, StreamPart, Subscription};

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
    /// Persisted, whole or as far as it had come when it was stopped.
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
        /// Whether the page has to say if `after` still exists: see [`StorePage::back_to`].
        is_checked: bool,
    },
}

/// Ends of a thread, in the order of their positions.
#[derive(Debug, Clone, PartialEq)]
pub struct StorePage {
    /// After this position.
    pub after: Position,
    /// Where a reader at `after` has to go back to, because the store has gone back in time and has no message there any more; 0 is the beginning.
    /// Everything up to here is as it was when the reader was shown it: this is the last end that is a minute older than `after`, which is more
    /// than clocks differ, and than an owner may be paused between giving a position and storing it.
    pub back_to: Option<Position>,
    /// The ends.
    pub ends: Vec<EndedMessage>,
    /// The page has all ends up to here; lower than was requested if there are more than a page holds.
    pub through: Position,
}

/// What a page has for a reader with a cursor of its own.
#[derive(Debug, Clone, PartialEq)]
pub enum CatchUp {
    /// These events, which the reader's cursor has passed.
    Events(Vec<StreamPart>),
    /// These events, the last of which is the end of the message that it wanted.
    Last(Vec<StreamPart>),
    /// This event: some of what it has seen does not exist any more, and it goes on from where it went back to.
    Restart(StreamPart),
    /// It claims to have seen more of a message than there is.
    Ahead,
}

/// The events of what has ended after a reader's cursor, up to the end of the message that it wants. A reader at a place
/// that does not exist any more, for the store has gone back in time, goes back first, and the next page goes on from there.
pub fn catch_up(native: &mut Native, page: &StorePage, subscription: &Subscription) -> CatchUp {
    if let Some(end) = page.back_to.filter(|_| native.cursor().base() == page.after) {
        let bytes = native.restart(Cursor::at(end));
        return CatchUp::Restart(subscription.part(bytes, NativeEvent::Restart));
    }
    let mut out = Vec::new();
    let parts = |events: Vec<FeedEvent>| {
        events.into_iter().map(|event| subscription.part(event.bytes, event.event)).collect()
    };
    for ended in page.ends.iter().filter(|ended| ended.position > page.after) {
        let message = &ended.header.message;
        let is_last = subscription.until() == Some(message);
        if ended.position <= native.cursor().base() || (subscription.takes_values() && !is_last) {
            continue;
        }
        if let (EndKind::Stored(answer), Some(seen)) = (&ended.how, native.cursor().seen(message))
            && !answer.has(seen)
        {
            return CatchUp::Ahead;
        }
        append_end(native, ended, &mut out);
        if is_last {
            return CatchUp::Last(parts(out));
        }
    }
    native.pass(page.through);
    CatchUp::Events(parts(out))
}

/// Appends the events that the reader lacks of a message, and its end.
pub(crate) fn append_end(native: &mut Native, ended: &EndedMessage, out: &mut impl Extend<FeedEvent>) {
    let EndedMessage { header, position, how } = ended;
    let message = &header.message;
    match how {
        EndKind::Failed(failure) => out.extend([failed_event(native, header, *position, failure.clone())]),
        EndKind::Stored(answer) => {
            let nothing = || MessageOffset::nothing(answer.attempt());
            let seen = native.cursor().seen(message).cloned().unwrap_or_else(nothing);
            let mut rest = answer.rest(&seen);
            if rest.is_anew {
                let attempt = answer.attempt();
                let event = NativeEvent::Reset { message: message.clone(), attempt };
                out.extend([FeedEvent { bytes: native.reset(message, attempt), event }]);
            }
            for chunk in &rest.chunks {
                rest.progress.advance(chunk);
                let bytes = native.chunk(header, rest.progress.seen().clone(), chunk, true).bytes();
                out.extend([FeedEvent { bytes, event: open::chunk_event(header, chunk, true) }]);
            }
            out.extend([complete_event(native, header, *position, answer.is_stopped(), answer.report())]);
        }
    }
}

/// The end of a message that is persisted.
pub(crate) fn complete_event(
    native: &mut Native,
    header: &MessageHeader,
    position: Position,
    is_stopped: bool,
    report: &AnswerReport,
) -> FeedEvent {
    let bytes = native.complete(header, position, is_stopped, report).bytes();
    let (message, report) = (header.message.clone(), report.clone());
    FeedEvent { bytes, event: NativeEvent::Complete { message, position, is_stopped, report } }
}

/// The end of a message that was given up.
pub(crate) fn failed_event(
    native: &mut Native,
    header: &MessageHeader,
    position: Position,
    failure: StreamError,
) -> FeedEvent {
    let bytes = native.failed(header, position, &failure).bytes();
    let (message, failure) = (header.message.clone(), Box::new(failure));
    FeedEvent { bytes, event: NativeEvent::Failed { message, position, failure } }
}
