//! Viewers who wait to join a feed: those that come with a cursor are shown what ended since, until they stand where the feed stands.

use model::{Position, ThreadId, Timestamp};
use protocols::{Cursor, Native};

use crate::ended::{CatchUp, StorePage, StoreRead, catch_up};
use crate::feed::Feed;
use crate::join::JoinResult;
use crate::subscription::{StreamPart, Subscription};

/// Pause after the store could not be read.
const READ_PAUSE_MS: i64 = 500;

/// Why a viewer cannot go on from its cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadCursor {
    /// It names a message that does not exist.
    Unknown,
    /// It is ahead of all that exists.
    Ahead,
}

/// What became of a viewer that waits no more.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitOutcome {
    /// It gets this first; from then on it stands where the feed stands.
    Joined(Vec<StreamPart>),
    /// It has been shown the end of the one message that it wanted.
    Finished,
    /// Its cursor is none of this thread's. Unless it can still be refused it begins anew: see [`Feed::restart`].
    Refused(BadCursor),
    /// The text of an open message was let go.
    OverBudget,
}

/// Viewers who wait, each with what its driver needs of it.
#[derive(Debug)]
pub struct WaitingSubscribers<V> {
    thread: ThreadId,
    all: Vec<WaitingSubscriber<V>>,
    /// The store is read from then on.
    read_at: Timestamp,
    is_reading: bool,
    /// The epoch of the feed's owner when the read began.
    read_in: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beyond {
    /// The store is to be asked.
    Asked,
    /// It does not.
    Confirmed,
}

#[derive(Debug)]
struct WaitingSubscriber<V> {
    viewer: V,
    /// Where it stands, if it came with a cursor.
    native: Option<Native>,
    subscription: Subscription,
    /// See [`Feed::asked`].
    asked: u64,
    /// It knows of an end that the owner does not know of: whether the store does.
    beyond: Option<Beyond>,
    /// It came without a cursor before the state of the thread was known: what ends from then on is shown to it, and the store has to say where
    /// that begins.
    needs_start: bool,
    /// It lacks ends that the feed has shown, or, while the state of the thread is unknown, may lack some that are stored.
    is_behind: bool,
    /// It is above the last end that the feed has shown: at what is no end, like an input, or at an end that does not exist any more.
    is_unsure: bool,
    /// The epoch of the feed's owner when its place was found in the store.
    found_in: Option<u64>,
}

impl<V> WaitingSubscriber<V> {
    fn base(&self) -> Option<Position> {
        self.native.as_ref().map(|native| native.cursor().base())
    }

    /// Whether the store has to say that its place exists before it may stand where the feed stands.
    fn needs_check(&self, feed: &Feed) -> bool {
        let is_above = self.base().is_some_and(|base| base > feed.cursor().base());
        is_above && self.base() <= feed.through && self.found_in != feed.epoch()
    }
}

impl<V> WaitingSubscribers<V> {
    /// Without subscribers.
    pub fn new(thread: ThreadId) -> Self {
        Self { thread, all: Vec::new(), read_at: Timestamp::default(), is_reading: false, read_in: None }
    }

    /// Those who wait.
    pub fn viewers(&self) -> impl Iterator<Item = &V> {
        self.all.iter().map(|waiter| &waiter.viewer)
    }

    /// Whether no subscriber waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Forgets those of whom this is not true.
    pub fn retain(&mut self, keeps: impl Fn(&V) -> bool) {
        self.all.retain(|waiter| keeps(&waiter.viewer));
    }

    /// A viewer comes.
    pub fn push(&mut self, viewer: V, cursor: Option<Cursor>, subscription: Subscription, feed: &Feed) {
        let native = cursor.map(|cursor| Native::new(self.thread.clone(), cursor));
        let is_behind = native.is_some() && !feed.has_begun();
        let needs_start = native.is_none() && !feed.has_begun();
        self.all.push(WaitingSubscriber {
            viewer,
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

    /// What to read from the store for them, from the one on who has the least; answer with [`WaitingSubscribers::on_page`],
    /// [`WaitingSubscribers::on_last`] or [`WaitingSubscribers::on_read_failed`]. While the state of the thread is
    /// unknown, they are shown what is committed.
    pub fn poll_store_read(&mut self, feed: &Feed, now: Timestamp) -> Option<StoreRead> {
        let read = self.read(feed).filter(|_| now >= self.read_at)?;
        (self.is_reading, self.read_in) = (true, feed.epoch());
        Some(read)
    }

    /// When [`WaitingSubscribers::poll_store_read`] has something, if nothing happens before.
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

    /// The store could not be read.
    pub fn on_read_failed(&mut self, now: Timestamp) {
        (self.is_reading, self.read_at) = (false, now.plus_ms(READ_PAUSE_MS));
    }

    /// The thread's last end in the store. What an owner does not know of that is stored was committed by another one: it is an owner no more.
    ///
    /// `begins`: called for each viewer without a cursor, with what it gets first; it gets every end after this position.
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
            begins(&mut waiter.viewer, waiter.subscription.ready(&native));
            waiter.native = Some(native);
        }
        if self.all.iter().any(|waiter| waiter.beyond == Some(Beyond::Asked)) {
            // An owner that is one no more may answer for a while.
            self.read_at = now.plus_ms(READ_PAUSE_MS);
        }
        for waiter in self.all.iter_mut().filter(|waiter| waiter.beyond == Some(Beyond::Asked)) {
            let base = waiter.base();
            let is_stored = base.is_none_or(|base| base <= last);
            waiter.beyond = (!is_stored).then_some(Beyond::Confirmed);
            waiter.asked = if is_stored { feed.asked() } else { waiter.asked };
        }
    }

    /// Shows those who stand where a page begins, or at one of its ends, what they have missed. Of others it does not say whether their place still
    /// exists.
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
                    // Without any, this is all that is stored.
                    waiter.is_behind = !page.ends.is_empty();
                    // It may know of more now than an answer that is on its way.
                    waiter.asked = feed.asked();
                    send(&waiter.viewer, events);
                    self.all.push(waiter);
                }
                CatchUp::Last(events) => {
                    send(&waiter.viewer, events);
                    gone.push((waiter.viewer, WaitOutcome::Finished));
                }
                CatchUp::Restart(event) => {
                    send(&waiter.viewer, vec![event]);
                    self.all.push(waiter);
                }
                CatchUp::Ahead => gone.push((waiter.viewer, WaitOutcome::Refused(BadCursor::Ahead))),
            }
        }
        gone
    }

    /// Lets those in who stand where the feed stands.
    pub fn let_in(&mut self, feed: &mut Feed, now: Timestamp) -> Vec<(V, WaitOutcome)> {
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
            gone.push((waiter.viewer, fate));
        }
        gone
    }
}
