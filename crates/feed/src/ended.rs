//! Messages that have ended, as stored, and the events that report them to a reader.

use std::sync::Arc;

use model::{AnswerReport, OpenInput, Position};
use protocols::cursor::InputMark;
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageHeader, MessageOffset, Native, StoredAnswer, StreamError};

use crate::open;
use crate::subscription::{FeedEvent, StreamPart, Subscription};

/// A message that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedMessage {
    pub header: MessageHeader,
    /// Position at which the message ended in the thread.
    pub position: Position,
    pub how: EndKind,
    /// The input that the message answers, if people may see the input and the answer is stored.
    pub input: Option<Arc<OpenInput>>,
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq)]
pub enum EndKind {
    /// Stored, either whole or up to the point where its turn was stopped.
    Stored(StoredAnswer),
    /// The message failed.
    Failed(StreamError),
}

/// A read from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRead {
    /// The position of the thread's last end at or below this one.
    Last(Position),
    /// The ends of the thread after the first position, up to the second one.
    Ends {
        /// Exclusive lower bound.
        after: Position,
        /// Inclusive upper bound; [`Position::MAX`]: all.
        through: Position,
        /// True if the page must report whether `after` still exists: see [`StorePage::back_to`].
        is_checked: bool,
    },
}

/// Ends of a thread, in the order of their positions.
#[derive(Debug, Clone, PartialEq)]
pub struct StorePage {
    /// Exclusive lower bound of the page.
    pub after: Position,
    /// Set if the store has gone back in time and has no message at `after` any more. It is the
    /// position to which a reader at `after` must go back; 0 is the beginning. The reader saw
    /// everything up to here as it is now: this is the last end that is at least a minute older
    /// than `after`. A minute exceeds both the difference between clocks and the pause of an owner
    /// between assigning a position and storing it.
    pub back_to: Option<Position>,
    pub ends: Vec<EndedMessage>,
    /// The page has all ends up to here. It is lower than requested if there are more than fit on a
    /// page.
    pub through: Position,
}

/// The content of a page for a reader with its own cursor.
#[derive(Debug, Clone, PartialEq)]
pub enum CatchUp {
    /// Events; the reader's cursor has advanced past them.
    Events(Vec<StreamPart>),
    /// Events; the last one is the end of the requested message.
    Last(Vec<StreamPart>),
    /// A restart: some of the data that the reader has seen does not exist any more, so it
    /// continues from [`StorePage::back_to`].
    Restart(StreamPart),
    /// The cursor claims more of a message than exists.
    Ahead,
}

/// The events of messages that ended after a reader's cursor, up to the end of the message that the
/// reader wants. If the reader's position does not exist any more, because the store has gone back
/// in time, the reader goes back first. The next page continues from there.
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

/// Appends the events of a message that the reader lacks, and its end.
pub(crate) fn append_end(native: &mut Native, ended: &EndedMessage, out: &mut impl Extend<FeedEvent>) {
    let EndedMessage { header, position, how, input } = ended;
    let message = &header.message;
    match how {
        EndKind::Failed(failure) => out.extend(failed_events(native, header, *position, failure)),
        EndKind::Stored(answer) => {
            // Like a live input, it is shown only as the first event of its answer. If the feed has
            // shown text without it, a subscriber may have it from another gateway.
            let is_begun = native.cursor().seen(message).is_some_and(|seen| seen.next > 0);
            let lacks_input = !is_begun && native.cursor().input(message).is_none();
            if let Some(input) = input.as_ref().filter(|_| lacks_input) {
                let bytes = native.input(header, input).bytes();
                out.extend([FeedEvent { bytes, event: NativeEvent::Input(Arc::clone(input)) }]);
            }
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

/// The end of a stored message.
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

/// The end of a failed message. If its reader has the input, the input is withdrawn first.
pub(crate) fn failed_events(
    native: &mut Native,
    header: &MessageHeader,
    position: Position,
    failure: &StreamError,
) -> Vec<FeedEvent> {
    let message = &header.message;
    let has_input = native.cursor().input(message) == Some(InputMark::Shown);
    let withdrawn = has_input.then(|| FeedEvent {
        bytes: native.input_withdrawn(header, failure).bytes(),
        event: NativeEvent::InputWithdrawn { message: message.clone() },
    });
    let bytes = native.failed(header, position, failure).bytes();
    let (message, failure) = (message.clone(), Box::new(failure.clone()));
    let failed = FeedEvent { bytes, event: NativeEvent::Failed { message, position, failure } };
    withdrawn.into_iter().chain([failed]).collect()
}
