//! One turn per thread: what happens to an input that comes while another turn is active.

use std::collections::VecDeque;

use model::BusyPolicy;

/// The turns of one thread: at most one active, the others wait in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadQueue<T> {
    active: Option<T>,
    waiting: VecDeque<T>,
}

/// Result of admitting an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission<T> {
    /// The input waits; if no turn is active, it is next.
    Enqueued,
    /// The input is refused: the thread is busy.
    Rejected,
    /// The input is next, and the active turn must be stopped.
    Interrupts(T),
    /// The input is next, and the active turn must be rolled back.
    RollsBack(T),
}

/// Whether a waiting input may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// The input may start.
    Ready,
    /// The input cannot start yet, and the inputs behind it wait with it.
    Blocks,
    /// The input cannot start yet, but the inputs behind it need not wait.
    Yields,
}

impl<T> Default for ThreadQueue<T> {
    fn default() -> Self {
        Self { active: None, waiting: VecDeque::new() }
    }
}

impl<T: Clone + PartialEq> ThreadQueue<T> {
    /// Admits an input.
    pub fn admit(&mut self, turn: T, policy: BusyPolicy) -> Admission<T> {
        let Some(active) = self.active.clone() else {
            // Waiting inputs have been admitted before, so they stay. An input that would stop the
            // active turn has nothing to stop.
            if policy == BusyPolicy::Reject && !self.waiting.is_empty() {
                return Admission::Rejected;
            }
            self.waiting.push_back(turn);
            return Admission::Enqueued;
        };
        match policy {
            BusyPolicy::Reject => Admission::Rejected,
            BusyPolicy::Enqueue => {
                self.waiting.push_back(turn);
                Admission::Enqueued
            }
            BusyPolicy::Interrupt => {
                self.waiting.push_front(turn);
                Admission::Interrupts(active)
            }
            BusyPolicy::Rollback => {
                self.waiting.push_front(turn);
                Admission::RollsBack(active)
            }
        }
    }

    pub fn active(&self) -> Option<&T> {
        self.active.as_ref()
    }

    /// Waiting inputs in order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &T> {
        self.waiting.iter()
    }

    /// Starts the first waiting input that may start, if no turn is active.
    pub fn start_next(&mut self, whose: impl Fn(&T) -> Readiness) -> Option<T> {
        if self.active.is_some() {
            return None;
        }
        let index = self.waiting.iter().position(|turn| whose(turn) != Readiness::Yields)?;
        if whose(&self.waiting[index]) == Readiness::Blocks {
            return None;
        }
        self.active = self.waiting.remove(index);
        self.active.clone()
    }

    /// Starts this turn, whether or not it was waiting; false if another one is active.
    pub fn start(&mut self, turn: T) -> bool {
        if self.active.is_some() {
            return false;
        }
        self.waiting.retain(|waiting| *waiting != turn);
        self.active = Some(turn);
        true
    }

    /// Makes this turn the next one, whether or not it was waiting.
    pub fn wait_first(&mut self, turn: T) {
        self.waiting.retain(|waiting| *waiting != turn);
        self.waiting.push_front(turn);
    }

    /// Removes a turn that is over or no longer waits.
    pub fn leave(&mut self, turn: &T) {
        if self.active.as_ref() == Some(turn) {
            self.active = None;
        }
        self.waiting.retain(|waiting| waiting != turn);
    }

    /// True if no turn is active or waiting.
    pub fn is_empty(&self) -> bool {
        self.active.is_none() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(_: &u8) -> Readiness {
        Readiness::Ready
    }

    fn busy() -> ThreadQueue<u8> {
        let mut queue = ThreadQueue::default();
        assert_eq!(queue.admit(1, BusyPolicy::Enqueue), Admission::Enqueued);
        assert_eq!(queue.start_next(ready), Some(1));
        assert_eq!(queue.admit(2, BusyPolicy::Enqueue), Admission::Enqueued);
        queue
    }

    fn order(mut queue: ThreadQueue<u8>) -> Vec<u8> {
        let mut command = Vec::new();
        while let Some(active) = queue.active().copied().or_else(|| queue.start_next(ready)) {
            command.push(active);
            queue.leave(&active);
        }
        command
    }

    #[test]
    fn a_queue_is_empty_when_nothing_runs_or_waits() {
        let mut queue = ThreadQueue::default();
        assert!(queue.is_empty());
        queue.admit(1, BusyPolicy::Enqueue);
        assert!(!queue.is_empty(), "one waits");
        queue.start_next(ready);
        assert!(!queue.is_empty(), "one runs");
        queue.leave(&1);
        assert!(queue.is_empty());
    }

    #[test]
    fn enqueue_waits_its_turn() {
        let mut queue = busy();
        assert_eq!(queue.admit(3, BusyPolicy::Enqueue), Admission::Enqueued);
        assert_eq!(queue.start_next(ready), None, "one turn at a time");
        assert_eq!(order(queue), [1, 2, 3]);
    }

    #[test]
    fn reject_refuses_while_anything_runs_or_waits() {
        let mut queue = busy();
        assert_eq!(queue.admit(3, BusyPolicy::Reject), Admission::Rejected);
        queue.leave(&1);
        assert_eq!(queue.admit(3, BusyPolicy::Reject), Admission::Rejected);
        queue.leave(&2);
        assert_eq!(queue.admit(3, BusyPolicy::Reject), Admission::Enqueued);
        assert_eq!(order(queue), [3]);
    }

    #[test]
    fn interrupt_and_rollback_come_before_those_that_wait() {
        let mut queue = busy();
        assert_eq!(queue.admit(3, BusyPolicy::Interrupt), Admission::Interrupts(1));
        assert_eq!(queue.admit(4, BusyPolicy::Rollback), Admission::RollsBack(1));
        queue.leave(&1);
        assert_eq!(order(queue), [4, 3, 2]);
    }

    #[test]
    fn what_may_not_begin_yet_blocks_those_behind_it_or_yields() {
        let mut queue = ThreadQueue::default();
        for turn in 1..=3 {
            assert_eq!(queue.admit(turn, BusyPolicy::Enqueue), Admission::Enqueued);
        }
        let rule = |of_1: Readiness, of_2: Readiness| {
            move |turn: &u8| match turn {
                1 => of_1,
                2 => of_2,
                _ => Readiness::Ready,
            }
        };
        assert_eq!(queue.start_next(rule(Readiness::Blocks, Readiness::Ready)), None);
        assert_eq!(queue.start_next(rule(Readiness::Yields, Readiness::Blocks)), None);
        assert_eq!(queue.start_next(rule(Readiness::Yields, Readiness::Yields)), Some(3));
        queue.leave(&3);
        assert_eq!(queue.start_next(rule(Readiness::Yields, Readiness::Ready)), Some(2));
        queue.leave(&2);
        assert_eq!(queue.start_next(rule(Readiness::Yields, Readiness::Ready)), None);
        assert_eq!(order(queue), [1]);
    }

    #[test]
    fn a_turn_that_others_began_takes_its_place() {
        let mut queue = ThreadQueue::default();
        queue.admit(1, BusyPolicy::Enqueue);
        queue.admit(2, BusyPolicy::Enqueue);
        assert!(queue.start(2) && !queue.start(1));
        assert_eq!(queue.waiting().copied().collect::<Vec<_>>(), [1]);
        queue.admit(3, BusyPolicy::Enqueue);
        queue.wait_first(3);
        queue.wait_first(4);
        assert_eq!(order(queue), [2, 4, 3, 1]);
    }
}
