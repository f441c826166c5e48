//! Lets subscribers join a feed.

use model::{MessageId, Timestamp};
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageOffset, Native};

use crate::feed::{ABSENT, Feed};
use crate::open::{FeedMessage, chunk_event};
use crate::subscription::{StreamPart, Subscription};

/// Pause between two queries about one cursor.
pub(crate) const JUDGE_AGAIN_MS: i64 = 250;

/// The result of a subscriber's attempt to join.
#[derive(Debug, Clone, PartialEq)]
pub enum JoinResult {
    /// The subscriber gets these events first; from then on it has the feed's position.
    Joined(Vec<StreamPart>),
    /// The subscriber lacks ends that the feed has shown: read those from its cursor up to the
    /// feed's.
    Behind,
    /// The subscriber may know more than the feed, or the feed does not know the state of its
    /// thread yet. Try again when the feed has advanced.
    Wait,
    /// The cursor names a message that does not exist.
    Unknown(MessageId),
    /// The cursor claims more of an open message than exists.
    Ahead,
    /// The subscriber knows an end that the owner does not know. Unless the store has that end, the
    /// cursor is invalid.
    Beyond,
    /// The text of an open message was dropped because of the budget.
    OverBudget,
}

impl Feed {
    /// A value that a new subscriber must keep: replies to earlier queries may be older than its
    /// cursor.
    pub fn asked(&self) -> u64 {
        self.asks.answered + u64::from(self.asks.is_under_way())
    }

    /// Lets a subscriber in. Without a cursor it gets the open messages from their first chunks on.
    /// `asked`: the value of [`Feed::asked`] when the subscriber arrived.
    pub fn join(
        &mut self,
        cursor: Option<&Cursor>,
        subscription: &Subscription,
        asked: u64,
        now: Timestamp,
    ) -> JoinResult {
        let Some(through) = self.through else { return JoinResult::Wait };
        let Some(cursor) = cursor else {
            let mut native = Native::new(self.thread().clone(), Cursor::at(self.cursor().base()));
            let first = subscription.ready(&native).into_iter().collect();
            return self.join_open(&mut native, subscription, first);
        };
        let base = self.cursor().base();
        if cursor.base() < base {
            return JoinResult::Behind;
        }
        if cursor.base() > base.max(through) {
            // The store decides whether that position exists.
            return self.unless_newer(asked, now, 1, JoinResult::Beyond);
        }
        // Nothing has ended between the two positions.
        let mut native = Native::new(self.thread().clone(), cursor.clone());
        let mut forgotten = Vec::new();
        let answers = if self.left_out { 1 } else { ABSENT };
        for (message, seen) in cursor.open() {
            match self.open.get(message) {
                Some(open) if is_beyond(seen, open.seen()) => {
                    return self.unless_newer(asked, now, ABSENT, JoinResult::Ahead);
                }
                Some(_) => {}
                None => match self.unless_newer(asked, now, answers, JoinResult::Unknown(message.clone())) {
                    // The message exists but is not shown here: it is shown from its start when it
                    // ends.
                    JoinResult::Unknown(message) if self.left_out => forgotten.push(message),
                    other => return other,
                },
            }
        }
        let mut out = Vec::new();
        let mut inputs = Vec::new();
        for message in forgotten {
            // Resets to the lowest attempt. An owner that reads the stream again may first show an
            // earlier attempt, and an owner whose stream has lost its end has no other attempt. If
            // the cursor is already there, nothing is forgotten, and a reset would repeat the
            // cursor's id.
            let is_forgotten = native.cursor().seen(&message) == Some(&MessageOffset::nothing(0));
            if !is_forgotten {
                out.push(StreamPart::Encoded(native.reset(&message, 0)));
            }
            match cursor.input(&message) {
                // The feed does not show the input again, neither live nor with the end of the
                // message: without new text before it, that would repeat the cursor's id.
                Some(mark) => inputs.push((message, mark)),
                None => native.remove(&message),
            }
        }
        let joined = self.join_open(&mut native, subscription, out);
        if matches!(joined, JoinResult::Joined(_)) {
            self.remember_resets(cursor);
            for (message, mark) in inputs {
                self.native.note_input(&message, mark);
            }
        }
        joined
    }

    /// This feed may have shown nothing of a message that was reset and has not begun again. A
    /// subscriber whose cursor names it must not see a lower attempt, so the feed's cursor names it
    /// as well. Then the message is not dropped while the next owner has not read it yet.
    fn remember_resets(&mut self, cursor: &Cursor) {
        for (message, _) in cursor.open() {
            let shown = self.open.get(message).map(FeedMessage::seen).filter(|shown| shown.attempt > 0);
            if let Some(shown) = shown.filter(|_| self.native.cursor().seen(message).is_none()) {
                self.native.advance_silently(message, MessageOffset::nothing(shown.attempt));
            }
        }
    }

    /// Restarts a waiting subscriber whose cursor is not valid for this thread. It discards
    /// everything after the feed's base and joins like a subscriber that comes late.
    pub fn restart(&self, subscription: &Subscription) -> JoinResult {
        let mut native = Native::new(self.thread().clone(), Cursor::at(self.cursor().base()));
        let bytes = native.restart(Cursor::at(self.cursor().base()));
        let first = subscription.part(bytes, NativeEvent::Restart);
        self.join_open(&mut native, subscription, vec![first])
    }

    /// Returns the verdict only if it is certain. That needs `answers` consecutive replies of one
    /// owner to queries sent after the subscriber arrived, and the owner must have read its whole
    /// stream.
    fn unless_newer(&mut self, asked: u64, now: Timestamp, answers: u32, verdict: JoinResult) -> JoinResult {
        let newer = self.asks.answered.saturating_sub(asked);
        let is_sure = newer >= answers.into() && self.asks.current >= answers;
        if is_sure && self.is_settled() {
            return verdict;
        }
        if !self.asks.wanted && !self.asks.is_under_way() {
            self.asks.wanted = true;
            // An owner that is still reading needs time, and a former owner needs time to notice
            // its loss. The subscriber waits for the reply.
            let pause_ms = if newer > 0 { JUDGE_AGAIN_MS } else { 0 };
            self.asks.not_before = self.asks.not_before.max(now.plus_ms(pause_ms));
        }
        JoinResult::Wait
    }

    /// `out`: the events that come first.
    fn join_open(
        &self,
        native: &mut Native,
        subscription: &Subscription,
        mut out: Vec<StreamPart>,
    ) -> JoinResult {
        if let Subscription::Message(message) = subscription {
            let Some(open) = self.open.get(message) else { return JoinResult::Joined(out) };
            let Some(log) = open.log() else { return JoinResult::OverBudget };
            out.extend(log.chunks.iter().map(|shown| {
                subscription.part(shown.data.clone(), chunk_event(&open.header, &shown.chunk, false))
            }));
            return JoinResult::Joined(out);
        }
        // Messages are sorted by their arrival, so that inputs are shown in the order in which they
        // came.
        let mut all: Vec<(&MessageId, &FeedMessage)> = self.open.iter().collect();
        all.sort_unstable_by_key(|(_, open)| open.opened);
        for (message, open) in &all {
            if !show_input(native, message, open, &mut out) {
                return JoinResult::OverBudget;
            }
        }
        for (message, open) in all {
            if !show_rest(native, message, open, &mut out) {
                return JoinResult::OverBudget;
            }
        }
        JoinResult::Joined(out)
    }
}

fn is_beyond(seen: &MessageOffset, shown: &MessageOffset) -> bool {
    (seen.attempt, seen.next) > (shown.attempt, shown.next)
}

/// Whether the chunks that a subscriber has seen had the numbers used here. An answer from the
/// store has other chunks than the original. A subscriber that was disconnected within such an
/// answer may join a feed that does not know yet that the message has ended.
fn has_same_chunks(seen: &MessageOffset, open: &FeedMessage) -> bool {
    if seen.next == open.next() {
        return seen == open.seen();
    }
    let mut log = open.log().into_iter().flat_map(|log| &log.chunks);
    log.find(|shown| shown.seen.next == seen.next).is_none_or(|shown| shown.seen == *seen)
}

/// Adds the input of an open message, unless the subscriber has it. False if the log was dropped.
fn show_input(
    native: &mut Native,
    message: &MessageId,
    open: &FeedMessage,
    out: &mut Vec<StreamPart>,
) -> bool {
    if !open.has_input() || native.cursor().input(message).is_some() {
        return true;
    }
    let Some(input) = open.log().and_then(|log| log.input.clone()) else { return false };
    out.extend([native.replay_input(message), input].map(StreamPart::Encoded));
    true
}

/// Adds the part of an open message that a subscriber lacks, from the log; false if the log was
/// dropped.
fn show_rest(
    native: &mut Native,
    message: &MessageId,
    open: &FeedMessage,
    out: &mut Vec<StreamPart>,
) -> bool {
    let known = native.cursor().seen(message);
    let next = match known {
        Some(seen) if seen.attempt == open.seen().attempt && has_same_chunks(seen, open) => seen.next,
        Some(_) => {
            out.push(StreamPart::Encoded(native.reset(message, open.seen().attempt)));
            0
        }
        None => 0,
    };
    if next == open.next() {
        return true;
    }
    let Some(log) = open.log() else { return false };
    for shown in log.chunks.iter().filter(|shown| shown.seen.next > next) {
        let parts = [native.replay(message, shown.seen.clone()), shown.data.clone()];
        out.extend(parts.map(StreamPart::Encoded));
    }
    true
}
