//! Viewers who join a feed.

use model::{MessageId, Timestamp};
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageOffset, Native};

use crate::feed::{ABSENT, Feed};
use crate::open::{FeedMessage, chunk_event};
use crate::subscription::{StreamPart, Subscription};

/// Pause between two queries on which a cursor is judged.
pub(crate) const JUDGE_AGAIN_MS: i64 = 250;

/// What comes of a viewer's wish to join.
#[derive(Debug, Clone, PartialEq)]
pub enum JoinResult {
    /// It gets this first; from then on it stands where the feed stands.
    Joined(Vec<StreamPart>),
    /// It lacks ends that the feed has shown: read those after its cursor, up to the feed's.
    Behind,
    /// It may know more than the feed, or the feed does not know yet how its thread stands. Try again when the feed has gone on.
    Wait,
    /// Its cursor names a message that does not exist.
    Unknown(MessageId),
    /// It claims to have seen more of an open message than there is.
    Ahead,
    /// It knows of an end that the owner does not know of. Unless the store knows of it, it is ahead of all that exists.
    Beyond,
    /// The text of an open message was let go.
    OverBudget,
}

impl Feed {
    /// What a viewer who comes now has to remember: an answer that has been asked for already may be older than what it knows.
    pub fn asked(&self) -> u64 {
        self.asks.answered + u64::from(self.asks.is_under_way())
    }

    /// Lets a viewer in: without a cursor it gets what is open from its first chunk on. `asked`: what [`Feed::asked`] said when it came.
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
            // The store decides.
            return self.unless_newer(asked, now, 1, JoinResult::Beyond);
        }
        // Between the two nothing has ended.
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
                    // It is there and not shown here: when it ends it is shown anew.
                    JoinResult::Unknown(message) if self.left_out => forgotten.push(message),
                    other => return other,
                },
            }
        }
        let mut out = Vec::new();
        for message in forgotten {
            // To the lowest attempt: an owner that reads the stream again may show an earlier attempt first, and one whose stream has lost its
            // end has no other. Where that is what the cursor says there is nothing to forget, and the reset would have its id.
            let is_forgotten = native.cursor().seen(&message) == Some(&MessageOffset::nothing(0));
            if !is_forgotten {
                out.push(StreamPart::Encoded(native.reset(&message, 0)));
            }
            native.remove(&message);
        }
        let joined = self.join_open(&mut native, subscription, out);
        if matches!(joined, JoinResult::Joined(_)) {
            self.remember_resets(cursor);
        }
        joined
    }

    /// Of a message that was reset and has not begun again this feed may have shown nothing. A subscriber whose cursor names it must not see a
    /// lower attempt, so the feed's own cursor names it, too: then the message is not let go when the next owner has not read it yet.
    fn remember_resets(&mut self, cursor: &Cursor) {
        for (message, _) in cursor.open() {
            let shown = self.open.get(message).map(FeedMessage::seen).filter(|shown| shown.attempt > 0);
            if let Some(shown) = shown.filter(|_| self.native.cursor().seen(message).is_none()) {
                self.native.advance_silently(message, MessageOffset::nothing(shown.attempt));
            }
        }
    }

    /// For a viewer that has been waiting and whose cursor turned out to be none of this thread's: it forgets all that it has after the feed's
    /// base, and joins as one that has come late.
    pub fn restart(&self, subscription: &Subscription) -> JoinResult {
        let mut native = Native::new(self.thread().clone(), Cursor::at(self.cursor().base()));
        let bytes = native.restart(Cursor::at(self.cursor().base()));
        let first = subscription.part(bytes, NativeEvent::Restart);
        self.join_open(&mut native, subscription, vec![first])
    }

    /// A verdict needs so many answers in a row of an owner that was asked after the viewer came, and that has read all there is.
    fn unless_newer(&mut self, asked: u64, now: Timestamp, answers: u32, verdict: JoinResult) -> JoinResult {
        let newer = self.asks.answered.saturating_sub(asked);
        let is_sure = newer >= answers.into() && self.asks.current >= answers;
        if is_sure && self.is_settled() {
            return verdict;
        }
        if !self.asks.wanted && !self.asks.is_under_way() {
            self.asks.wanted = true;
            // An owner that is still reading is given some time, and one that is an owner no more to find out; the viewer waits for an answer to
            // its request meanwhile.
            let pause_ms = if newer > 0 { JUDGE_AGAIN_MS } else { 0 };
            self.asks.not_before = self.asks.not_before.max(now.plus_ms(pause_ms));
        }
        JoinResult::Wait
    }

    /// `out`: what comes first.
    fn join_open(
        &self,
        native: &mut Native,
        subscription: &Subscription,
        mut out: Vec<StreamPart>,
    ) -> JoinResult {
        if let Subscription::Message(message) = subscription {
            let Some(open) = self.open.get(message) else { return JoinResult::Joined(out) };
            let Some(log) = open.log() else { return JoinResult::OverBudget };
            out.extend(log.iter().map(|shown| {
                subscription.part(shown.data.clone(), chunk_event(&open.header, &shown.chunk, false))
            }));
            return JoinResult::Joined(out);
        }
        for (message, open) in &self.open {
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

/// Whether what a viewer has seen was numbered as it is here. Read from the store, an answer has other chunks than while it comes: a viewer
/// who was cut there may come to a feed that does not know yet that the message has ended.
fn has_same_chunks(seen: &MessageOffset, open: &FeedMessage) -> bool {
    if seen.next == open.next() {
        return seen == open.seen();
    }
    let mut log = open.log().into_iter().flatten();
    log.find(|shown| shown.seen.next == seen.next).is_none_or(|shown| shown.seen == *seen)
}

/// What a viewer misses of an open message, from the log; false when that is gone.
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
    for shown in log.iter().filter(|shown| shown.seen.next > next) {
        let parts = [native.replay(message, shown.seen.clone()), shown.data.clone()];
        out.extend(parts.map(StreamPart::Encoded));
    }
    true
}
