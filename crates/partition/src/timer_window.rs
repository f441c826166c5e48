//! The timers of a partition that are due next. Not all of its timers are in memory: an idle
//! partition may have a million.
//!
//! Times are by the caller's clock. The store decides: a timer that seems due is checked there, and
//! is returned to the window if it is not due.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Seq, ThreadId, TimerId, Timestamp};

use crate::timers::{PendingTimer, TimerEnd, TimerPage, TimerWrite};
use crate::turn_state::SUPERSEDED_BY_MESSAGE;
use crate::types::NewWork;

/// Maximum number of timers whose decisions are pending.
pub(crate) const MOST_DECIDING: usize = 256;
/// Timers due at most this long after the end of the window are kept as well, because the store's
/// clock differs. A timer that is read twice has the same id.
const SLACK_MS: i64 = 10_000;
/// A hundred years ago: before any pending timer.
const FROM_THE_FIRST_MS: i64 = -3_155_760_000_000;
/// A clock that goes back by more than this has jumped.
const JUMP_MS: i64 = 1_000;

#[derive(Debug)]
pub(crate) struct TimerWindow {
    due: BTreeSet<(Timestamp, TimerId)>,
    /// Due times by id.
    at: BTreeMap<TimerId, Timestamp>,
    /// Timers being decided, until the commit with the decision is applied.
    deciding: BTreeSet<TimerId>,
    /// End of the window: timers due after it are only in the store. `None`: there are none.
    horizon: Option<Timestamp>,
    is_loading: bool,
    /// The last page contained nothing new, because at least a page of timers is due at the same
    /// moment. Reading the page again returns the same timers until one of them has left.
    is_exhausted: bool,
    /// Other processes have written timers since the last read.
    is_stale: bool,
    most: usize,
    seen_at: Timestamp,
    /// Decisions for the next commit, with the work that they begin.
    writes: Vec<(TimerWrite, Option<NewWork>)>,
    /// Stored checkpoints at the unanswered look-ups of due timers, and the threads whose follow-up
    /// was superseded since the first of them.
    asked: VecDeque<Seq>,
    superseded: BTreeSet<ThreadId>,
}

impl TimerWindow {
    pub(crate) fn new(page: TimerPage, most: usize, now: Timestamp) -> Self {
        let mut window = Self {
            due: BTreeSet::new(),
            at: BTreeMap::new(),
            deciding: BTreeSet::new(),
            horizon: None,
            is_loading: false,
            is_exhausted: false,
            is_stale: false,
            most: most.max(1),
            seen_at: now,
            writes: Vec::new(),
            asked: VecDeque::new(),
            superseded: BTreeSet::new(),
        };
        window.loaded(page, now);
        window
    }

    /// Number of timers in memory.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// Due time of the first timer; `None` also while too many decisions are pending.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        (self.deciding.len() < MOST_DECIDING).then(|| self.due.first().map(|(at, _)| *at))?
    }

    /// Adds a page from the store, which begins shortly before the end of the window.
    pub(crate) fn loaded(&mut self, page: TimerPage, now: Timestamp) {
        self.is_loading = false;
        let last = page.timers.last().map(|timer| now.plus_ms(timer.wait_ms));
        let is_known = |id: &TimerId| self.at.contains_key(id) || self.deciding.contains(id);
        self.is_exhausted = page.timers.iter().all(|timer| is_known(&timer.id));
        for PendingTimer { id, wait_ms } in page.timers {
            self.insert(id, now.plus_ms(wait_ms));
        }
        self.horizon = if page.is_all { None } else { last.or(self.horizon) };
        // A timer written meanwhile may be due long after the end of the page. If the window kept
        // it, all timers before it would seem to be known.
        while let Some((at, id)) = self.due.last().filter(|(at, _)| self.is_beyond(*at)).cloned() {
            self.due.remove(&(at, id.clone()));
            self.at.remove(&id);
        }
        self.bound();
    }

    /// Notes that a commit with the timer's write is applied: the timer is due in `waits_ms`, or is
    /// no longer pending.
    pub(crate) fn written(&mut self, id: TimerId, waits_ms: Option<i64>, now: Timestamp) {
        if self.deciding.remove(&id) {
            self.is_exhausted = false;
        }
        let Some(at) = waits_ms.map(|ms| now.plus_ms(ms)) else { return };
        // The page being read may be older than the write.
        if self.is_loading || !self.is_beyond(at) {
            self.insert(id, at);
            self.bound();
        }
    }

    /// Prevents a decision about the timer until a command's change of the timer is written. False
    /// if a decision or a write is already pending.
    pub(crate) fn hold(&mut self, id: &TimerId) -> bool {
        if !self.deciding.insert(id.clone()) {
            return false;
        }
        if let Some(at) = self.at.remove(id) {
            self.due.remove(&(at, id.clone()));
        }
        true
    }

    /// True if only the store has timers due at that time.
    fn is_beyond(&self, at: Timestamp) -> bool {
        self.horizon.is_some_and(|horizon| at > horizon.plus_ms(SLACK_MS))
    }

    /// The decision on the timer needs no write.
    pub(crate) fn undecided(&mut self, id: &TimerId) {
        self.deciding.remove(id);
        self.is_exhausted = false;
    }

    /// Puts the timer back: it is not due before `at`.
    pub(crate) fn again(&mut self, id: TimerId, at: Timestamp) {
        self.deciding.remove(&id);
        self.is_exhausted = false;
        self.insert(id, at);
    }

    pub(crate) fn write(&mut self, write: TimerWrite, fired: Option<NewWork>) {
        self.writes.push((write, fired));
    }

    pub(crate) fn take_writes(&mut self) -> (Vec<TimerWrite>, Vec<NewWork>) {
        let (writes, fired): (Vec<_>, Vec<_>) = std::mem::take(&mut self.writes).into_iter().unzip();
        (writes, fired.into_iter().flatten().collect())
    }

    /// Supersedes the thread's follow-up: a person has written to the thread, or a commit arms a
    /// newer follow-up there. The old one does not fire if its decision is pending or no commit
    /// contains its firing yet. When the decision arrives, its row may belong to another follow-up.
    pub(crate) fn supersede(&mut self, thread: &ThreadId) {
        if !self.asked.is_empty() {
            self.superseded.insert(thread.clone());
        }
        for (write, fired) in &mut self.writes {
            if matches!(&*fired, Some(NewWork::Turn(opened)) if opened.thread == *thread) {
                let (id, by) = (write.id().clone(), SUPERSEDED_BY_MESSAGE.to_owned());
                (*write, *fired) = (TimerWrite::End { id, state: TimerEnd::Cancelled, by }, None);
            }
        }
    }

    /// True if the thread's follow-up was superseded since the look-up of its timer began.
    pub(crate) fn is_superseded(&self, thread: &ThreadId) -> bool {
        self.superseded.contains(thread)
    }

    /// Notes the answer to a look-up of due timers.
    pub(crate) fn decided(&mut self) {
        self.asked.pop_front();
        if self.asked.is_empty() {
            self.superseded.clear();
        }
    }

    /// Stored checkpoint at the first unanswered look-up of due timers. The look-up may not know
    /// what has been stored since.
    pub(crate) fn first_asked(&self) -> Option<Seq> {
        self.asked.front().copied()
    }

    /// Takes the due timers to decide; `stored` is the last stored checkpoint.
    pub(crate) fn take_due(&mut self, now: Timestamp, stored: Seq) -> Vec<TimerId> {
        let back_ms = self.seen_at.since_ms(now);
        if back_ms > JUMP_MS {
            self.shift(-back_ms);
        }
        self.seen_at = now;
        let mut due = Vec::new();
        while self.deciding.len() < MOST_DECIDING {
            let Some((at, id)) = self.due.first().filter(|(at, _)| *at <= now).cloned() else { break };
            self.due.remove(&(at, id.clone()));
            self.at.remove(&id);
            if self.deciding.insert(id.clone()) {
                due.push(id);
            }
        }
        if !due.is_empty() {
            self.asked.push_back(stored);
        }
        due
    }

    /// Where to read more timers from, in ms from now; `None`: no read is needed now.
    pub(crate) fn wants_more(&mut self, now: Timestamp) -> Option<i64> {
        if self.is_loading {
            return None;
        }
        let from_ms = match (self.is_stale, self.horizon) {
            (true, _) => FROM_THE_FIRST_MS,
            // Negative when the window ends in the past: after an outage more timers may be overdue
            // than fit in one page.
            (false, Some(horizon)) if self.due.len() <= self.most / 2 && !self.is_exhausted => {
                horizon.0.saturating_sub(now.0).saturating_sub(SLACK_MS)
            }
            (false, _) => return None,
        };
        (self.is_loading, self.is_stale) = (true, false);
        Some(from_ms)
    }

    /// Other processes have written timers: the window must be read again.
    pub(crate) fn reread(&mut self) {
        self.is_stale = true;
    }

    fn insert(&mut self, id: TimerId, at: Timestamp) {
        if self.deciding.contains(&id) {
            return;
        }
        if let Some(before) = self.at.insert(id.clone(), at) {
            self.due.remove(&(before, id.clone()));
        }
        self.due.insert((at, id));
    }

    /// Drops the last timers if there are too many; they are read again later.
    fn bound(&mut self) {
        while self.due.len() > 2 * self.most {
            let Some((at, id)) = self.due.pop_last() else { break };
            self.at.remove(&id);
            self.horizon = Some(self.horizon.map_or(at, |horizon| horizon.min(at)));
        }
    }

    fn shift(&mut self, by_ms: i64) {
        self.due =
            std::mem::take(&mut self.due).into_iter().map(|(at, id)| (at.plus_ms(by_ms), id)).collect();
        self.at.values_mut().for_each(|at| *at = at.plus_ms(by_ms));
        self.horizon = self.horizon.map(|horizon| horizon.plus_ms(by_ms));
    }
}

#[cfg(test)]
mod tests {
    use model::Position;

    use super::*;

    const T0: Timestamp = Timestamp(1_000_000);

    fn timer(number: i64) -> TimerId {
        TimerId::follow_up(&ThreadId::parse("t").unwrap(), Position::from_stored(number))
    }

    fn page(waits: impl IntoIterator<Item = (i64, i64)>, is_all: bool) -> TimerPage {
        let timers = waits.into_iter().map(|(number, wait_ms)| PendingTimer { id: timer(number), wait_ms });
        TimerPage { timers: timers.collect(), is_all }
    }

    #[test]
    fn timers_are_due_in_their_order_and_decided_once() {
        let mut window = TimerWindow::new(page([(1, -5), (2, 0), (3, 10)], true), 8, T0);
        assert_eq!(window.take_due(T0, Seq(0)), [timer(1), timer(2)]);
        assert_eq!((window.take_due(T0, Seq(0)), window.first()), (vec![], Some(T0.plus_ms(10))));
        // A timer that is read again while its decision is pending is not decided twice.
        window.loaded(page([(1, -5)], true), T0);
        assert_eq!(window.take_due(T0.plus_ms(9), Seq(0)), []);
        window.written(timer(1), None, T0);
        window.written(timer(2), Some(20), T0);
        assert_eq!(window.take_due(T0.plus_ms(20), Seq(0)), [timer(3), timer(2)]);
    }

    #[test]
    fn a_window_is_bounded_and_reads_on_in_time() {
        let mut window = TimerWindow::new(page((0..8).map(|n| (n, 1_000_000 * n)), false), 8, T0);
        assert_eq!(window.wants_more(T0), None, "there are enough");
        let horizon = 7_000_000;
        window.written(timer(100), Some(horizon + 1_000_000), T0);
        assert_eq!(window.len(), 8, "beyond the horizon only the store has it");
        window.written(timer(101), Some(horizon + 5_000), T0);
        assert_eq!(window.len(), 9, "clocks differ");
        let late = T0.plus_ms(4_000_000);
        assert_eq!(window.take_due(late, Seq(0)).len(), 5);
        assert_eq!(window.wants_more(late), Some(3_000_000 - SLACK_MS));
        assert_eq!(window.wants_more(late), None, "it is being read");
        window.written(timer(102), Some(100_000_000), late);
        assert_eq!(window.len(), 5, "what is read may not have it");
        window.loaded(page((7..40).map(|n| (n, 1_000_000 * (n - 4))), true), late);
        assert_eq!(window.len(), 16, "twice the window at most");
        assert!(window.horizon.is_some(), "what had no room is read again");
    }

    #[test]
    fn what_is_written_while_a_page_is_read_hides_nothing_before_it() {
        let mut window = TimerWindow::new(page((0..4).map(|n| (n, n)), false), 4, T0);
        window.take_due(T0.plus_ms(3), Seq(0));
        assert!(window.wants_more(T0.plus_ms(3)).is_some());
        window.written(timer(100), Some(600_000), T0);
        window.written(timer(101), Some(600_001), T0);
        window.written(timer(102), Some(600_002), T0);
        // The page ends long before them.
        window.loaded(page((0..4).map(|n| (n, n)), false), T0);
        assert_eq!(window.len(), 0);
        window.undecided(&timer(0));
        assert!(window.wants_more(T0).is_some(), "what is due before them is not known");
    }

    #[test]
    fn overdue_timers_beyond_a_page_are_read_on() {
        const DAY_MS: i64 = 86_400_000;
        let mut window = TimerWindow::new(page((0..4).map(|n| (n, n - DAY_MS)), false), 4, T0);
        assert_eq!(window.take_due(T0, Seq(0)).len(), 4);
        assert_eq!(window.wants_more(T0), Some(3 - DAY_MS - SLACK_MS));
    }

    #[test]
    fn what_others_wrote_is_read_from_the_first_on() {
        let mut window = TimerWindow::new(page((0..8).map(|n| (n, 1_000_000 + n)), true), 8, T0);
        assert_eq!(window.wants_more(T0), None);
        window.reread();
        assert_eq!((window.wants_more(T0), window.wants_more(T0)), (Some(FROM_THE_FIRST_MS), None));
        window.loaded(page([(50, 3)], false), T0);
        assert_eq!(
            (window.first(), window.len()),
            (Some(T0.plus_ms(3)), 1),
            "the others are due after its end"
        );
    }

    /// More timers are due at one moment than fit in a page.
    #[test]
    fn a_page_without_anything_new_is_not_read_again_at_once() {
        let at_nine = |numbers: std::ops::Range<i64>| page(numbers.map(|number| (number, 60_000)), false);
        let mut window = TimerWindow::new(at_nine(0..4), 64, T0);
        assert!(window.wants_more(T0).is_some());
        window.loaded(at_nine(0..4), T0);
        assert_eq!(window.wants_more(T0), None, "it would be the same");
        window.reread();
        assert!(window.wants_more(T0).is_some(), "others wrote some");
        window.loaded(at_nine(0..4), T0);
        let nine = T0.plus_ms(60_000);
        assert_eq!(window.take_due(nine, Seq(0)).len(), 4);
        assert_eq!(window.wants_more(nine), None, "they are in the store until the commit with their firing");
        (0..4).for_each(|number| window.written(timer(number), None, nine));
        assert!(window.wants_more(nine).is_some());
        window.loaded(page((4..8).map(|number| (number, 0)), false), nine);
        assert_eq!(window.take_due(nine, Seq(0)).len(), 4, "those behind them");
    }

    #[test]
    fn a_clock_that_goes_back_delays_nothing() {
        let mut window = TimerWindow::new(page([(1, 5_000)], true), 8, T0);
        let early = T0.plus_ms(-3_600_000);
        assert_eq!(window.take_due(early, Seq(0)), []);
        assert_eq!(window.first(), Some(early.plus_ms(5_000)));
    }
}
