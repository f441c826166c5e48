//! Subscribers that wait to join a feed. Those with a cursor first get the messages that ended
//! after it, until they reach the feed's position.

use model::{Position, ThreadId, Timestamp};
use protocols::{Cursor, Native};

use crate::ended::{CatchUp, StorePage, StoreRead, catch_up};
use crate::feed::Feed;
use crate::join::JoinResult;
use crate::subscription::{StreamPart, Subscription};

/// Pause after a failed read from the store.
const READ_PAUSE_MS: i64 = 500;

/// Why a subscriber cannot continue from its cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadCursor {
    /// The cursor names a message that does not exist.
    Unknown,
    /// The cursor is ahead of everything that exists.
    Ahead,
}

/// The result for a subscriber that no longer waits.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitOutcome {
    /// The subscriber gets these events first; from then on it has the feed's position.
    Joined(Vec<StreamPart>),
    /// The subscriber has received the end of the only message that it wanted.
    Finished,
    /// The subscriber's cursor is not valid for this thread. If the subscriber can no longer be
    /// refused, it restarts: see [`Feed::restart`].
    Refused(BadCursor),
    /// The text of an open message was dropped because of the budget.
    OverBudget,
}

/// The waiting subscribers, each with its driver's data.
#[derive(Debug)]
pub struct WaitingSubscribers<V> {
    thread: ThreadId,
    all: Vec<WaitingSubscriber<V>>,
    /// Earliest time of the next read from the store.
    read_at: Timestamp,
    is_reading: bool,
    /// The epoch of the feed's owner when the read began.
    read_in: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beyond {
    /// The store must be queried.
    Asked,
    /// The store does not have the end either.
    Confirmed,
}

#[derive(Debug)]
struct WaitingSubscriber<V> {
    subscriber: V,
    /// Position of a subscriber that has a cursor.
    native: Option<Native>,
    subscription: Subscription,
    /// See [`Feed::asked`].
    asked: u64,
    /// Set if the subscriber knows an end that the owner does not know: whether the store has this
    /// end.
    beyond: Option<Beyond>,
    /// The subscriber has no cursor and arrived before the state of the thread was known. It gets
    /// the ends from now on, and the store must report the position at which these begin.
    needs_start: bool,
    /// The subscriber lacks ends that the feed has shown, or may lack stored ones while the state
    /// of the thread is unknown.
    is_behind: bool,
    /// The subscriber is above the last end that the feed has shown. At its position there is
    /// something else, such as an input, or an end that no longer exists.
    is_unsure: bool,
    /// The epoch of the feed's owner when its position was found in the store.
    found_in: Option<u64>,
}

impl<V> WaitingSubscriber<V> {
    fn base(&self) -> Option<Position> {
        self.native.as_ref().map(|native| native.cursor().base())
    }

    /// Whether the store must confirm that its position exists before it may join the feed.
    fn needs_check(&self, feed: &Feed) -> bool {
        let is_above = self.base().is_some_and(|base| base > feed.cursor().base());
        is_above && self.base() <= feed.through && self.found_in != feed.epoch()
    }
}

impl<V> WaitingSubscribers<V> {
    pub fn new(thread: ThreadId) -> Self {
        Self { thread, all: Vec::new(), read_at: Timestamp::default(), is_reading: false, read_in: None }
    }

    /// The waiting subscribers.
    pub fn subscribers(&self) -> impl Iterator<Item = &V> {
        self.all.iter().map(|waiter| &waiter.subscriber)
    }

    /// Whether no subscriber waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Removes the subscribers for which `keeps` is false.
    pub fn retain(&mut self, keeps: impl Fn(&V) -> bool) {
        self.all.retain(|waiter| keeps(&waiter.subscriber));
    }

    /// Adds a subscriber.
    pub fn push(&mut self, subscriber: V, cursor: Option<Cursor>, subscription: Subscription, feed: &Feed) {
        let native = cursor.map(|cursor| Native::new(self.thread.clone(), cursor));
        let is_behind = native.is_some() && !feed.has_begun();
        let needs_start = native.is_none() && !feed.has_begun();
        self.all.push(WaitingSubscriber {
            subscriber,
            native,
            subscription,
            asked: feed.asked(),
            beyond: None,
            needs_start,
            is_behind,
            is_unsure: false,
            found_in: None,
        });
    }

    /// Returns the read from the store that the subscribers need, from the lowest position on;
    /// reply with [`WaitingSubscribers::on_page`], [`WaitingSubscribers::on_last`] or
    /// [`WaitingSubscribers::on_read_failed`]. While the state of the thread is unknown,
    /// subscribers get what is committed.
    pub fn poll_store_read(&mut self, feed: &Feed, now: Timestamp) -> Option<StoreRead> {
        let read = self.read(feed).filter(|_| now >= self.read_at)?;
        (self.is_reading, self.read_in) = (true, feed.epoch());
        Some(read)
    }

    /// Time at which [`WaitingSubscribers::poll_store_read`] returns something, if no input arrives
    /// earlier.
    pub fn poll_timeout(&self, feed: &Feed) -> Option<Timestamp> {
        self.read(feed).map(|_| self.read_at)
    }

    fn read(&self, feed: &Feed) -> Option<StoreRead> {
        if self.is_reading {
            return None;
        }
        if self.all.iter().any(|waiter| waiter.needs_start || waiter.beyond == Some(Beyond::Asked)) {
            return Some(StoreRead::Last(Position::MAX));
        }
        if let Some(base) =
            self.all.iter().filter(|waiter| waiter.is_unsure).find_map(WaitingSubscriber::base)
        {
            return Some(StoreRead::Ends { after: base, through: base, is_checked: true });
        }
        let behind = self.all.iter().filter(|waiter| waiter.is_behind);
        let after = behind.filter_map(WaitingSubscriber::base).min()?;
        let through = if feed.has_begun() { feed.cursor().base() } else { Position::MAX };
        Some(StoreRead::Ends { after, through, is_checked: true })
    }

    /// The read from the store failed.
    pub fn on_read_failed(&mut self, now: Timestamp) {
        (self.is_reading, self.read_at) = (false, now.plus_ms(READ_PAUSE_MS));
    }

    /// Takes the thread's last end in the store. If an owner does not know a stored end, another
    /// owner has committed it, so the owner that does not know it is a former owner.
    ///
    /// `begins`: called for each subscriber without a cursor, with its first event; the subscriber
    /// gets every end after `last`.
    pub fn on_last(
        &mut self,
        last: Position,
        feed: &Feed,
        now: Timestamp,
        mut begins: impl FnMut(&mut V, Option<StreamPart>),
    ) {
        self.is_reading = false;
        for waiter in self.all.iter_mut().filter(|waiter| waiter.needs_start) {
            let native = Native::new(self.thread.clone(), Cursor::at(last));
            (waiter.needs_start, waiter.is_behind, waiter.asked) = (false, true, feed.asked());
            begins(&mut waiter.subscriber, waiter.subscription.ready(&native));
            waiter.native = Some(native);
        }
        if self.all.iter().any(|waiter| waiter.beyond == Some(Beyond::Asked)) {
            // A former owner may reply for a while, so the next read waits.
            self.read_at = now.plus_ms(READ_PAUSE_MS);
        }
        for waiter in self.all.iter_mut().filter(|waiter| waiter.beyond == Some(Beyond::Asked)) {
            let base = waiter.base();
            let is_stored = base.is_none_or(|base| base <= last);
            waiter.beyond = (!is_stored).then_some(Beyond::Confirmed);
            waiter.asked = if is_stored { feed.asked() } else { waiter.asked };
        }
    }

    /// Sends the ends of a page to the subscribers at its start or at one of its ends. For others
    /// the page does not show whether their position still exists.
    pub fn on_page(
        &mut self,
        page: &StorePage,
        feed: &Feed,
        mut send: impl FnMut(&V, Vec<StreamPart>),
    ) -> Vec<(V, WaitOutcome)> {
        self.is_reading = false;
        let mut gone = Vec::new();
        for mut waiter in std::mem::take(&mut self.all) {
            if waiter.is_unsure && waiter.base() == Some(page.after) {
                waiter.is_unsure = false;
                waiter.is_behind = page.back_to.is_some();
                waiter.found_in = self.read_in;
            }
            let native = waiter.native.as_mut().filter(|native| {
                let base = native.cursor().base();
                base == page.after || page.ends.iter().any(|ended| ended.position == base)
            });
            let Some(native) = native.filter(|_| waiter.is_behind) else {
                self.all.push(waiter);
                continue;
            };
            match catch_up(native, page, &waiter.subscription) {
                CatchUp::Events(events) => {
                    // An empty page means that nothing more is stored.
                    waiter.is_behind = !page.ends.is_empty();
                    // The subscriber may now know more than a reply in transit.
                    waiter.asked = feed.asked();
                    send(&waiter.subscriber, events);
                    self.all.push(waiter);
                }
                CatchUp::Last(events) => {
                    send(&waiter.subscriber, events);
                    gone.push((waiter.subscriber, WaitOutcome::Finished));
                }
                CatchUp::Restart(event) => {
                    send(&waiter.subscriber, vec![event]);
                    self.all.push(waiter);
                }
                CatchUp::Ahead => gone.push((waiter.subscriber, WaitOutcome::Refused(BadCursor::Ahead))),
            }
        }
        gone
    }

    /// Lets in the subscribers that have reached the feed's position.
    pub fn admit_waiting(&mut self, feed: &mut Feed, now: Timestamp) -> Vec<(V, WaitOutcome)> {
        let mut gone = Vec::new();
        for mut waiter in std::mem::take(&mut self.all) {
            waiter.is_unsure = waiter.needs_check(feed);
            if waiter.needs_start || waiter.is_unsure {
                self.all.push(waiter);
                continue;
            }
            let cursor = waiter.native.as_ref().map(Native::cursor);
            let fate = match feed.join(cursor, &waiter.subscription, waiter.asked, now) {
                JoinResult::Behind => {
                    waiter.is_behind = true;
                    self.all.push(waiter);
                    continue;
                }
                JoinResult::Wait => {
                    waiter.is_behind &= !feed.has_begun();
                    self.all.push(waiter);
                    continue;
                }
                JoinResult::Beyond if waiter.beyond != Some(Beyond::Confirmed) => {
                    waiter.beyond = Some(Beyond::Asked);
                    self.all.push(waiter);
                    continue;
                }
                JoinResult::Joined(first) => WaitOutcome::Joined(first),
                JoinResult::Unknown(_) => WaitOutcome::Refused(BadCursor::Unknown),
                JoinResult::Ahead | JoinResult::Beyond => WaitOutcome::Refused(BadCursor::Ahead),
                JoinResult::OverBudget => WaitOutcome::OverBudget,
            };
            gone.push((waiter.subscriber, fate));
        }
        gone
    }
}
