//! One turn per thread: what happens to an input that comes while another turn is under way.

use std::collections::VecDeque;

use model::BusyPolicy;

/// The turns of one thread: at most one under way, the others wait in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane<T> {
    active: Option<T>,
    waiting: VecDeque<T>,
}

/// What becomes of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission<T> {
    /// It waits; when nothing is under way, it is next.
    Waits,
    /// It is refused: the thread is busy.
    Refused,
    /// It is next, and the turn under way is to be stopped.
    Stops(T),
    /// It is next, and the turn under way is to be taken back.
    TakesBack(T),
}

/// Whether a waiting input may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// It may.
    Ready,
    /// Not yet, and those behind it wait with it.
    Blocks,
    /// Not yet; those behind it need not wait for it.
    StepsAside,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { active: None, waiting: VecDeque::new() }
    }
}

impl<T: Clone + PartialEq> Lane<T> {
    /// Takes an input in.
    pub fn admit(&mut self, turn: T, policy: BusyPolicy) -> Admission<T> {
        let Some(active) = self.active.clone() else {
            // Whoever waits already has been admitted; an input that would stop what runs has nothing to stop.
            if policy == BusyPolicy::Reject && !self.waiting.is_empty() {
                return Admission::Refused;
            }
            self.waiting.push_back(turn);
            return Admission::Waits;
        };
        match policy {
            BusyPolicy::Reject => Admission::Refused,
            BusyPolicy::Enqueue => {
                self.waiting.push_back(turn);
                Admission::Waits
            }
            BusyPolicy::Interrupt => {
                self.waiting.push_front(turn);
                Admission::Stops(active)
            }
            BusyPolicy::Rollback => {
                self.waiting.push_front(turn);
                Admission::TakesBack(active)
            }
        }
    }

    /// The turn under way.
    pub fn active(&self) -> Option<&T> {
        self.active.as_ref()
    }

    /// Inputs that wait, in their order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &T> {
        self.waiting.iter()
    }

    /// Begins the first waiting input that may begin, when nothing is under way.
    pub fn start_next(&mut self, whose: impl Fn(&T) -> Readiness) -> Option<T> {
        if self.active.is_some() {
            return None;
        }
        let index = self.waiting.iter().position(|turn| whose(turn) != Readiness::StepsAside)?;
        if whose(&self.waiting[index]) == Readiness::Blocks {
            return None;
        }
        self.active = self.waiting.remove(index);
        self.active.clone()
    }

    /// Begins this turn, which did not wait here or waits; false when another one is under way.
    pub fn start(&mut self, turn: T) -> bool {
        if self.active.is_some() {
            return false;
        }
        self.waiting.retain(|waiting| *waiting != turn);
        self.active = Some(turn);
        true
    }

    /// This turn, which did not wait here or waits, is the next.
    pub fn wait_first(&mut self, turn: T) {
        self.waiting.retain(|waiting| *waiting != turn);
        self.waiting.push_front(turn);
    }

    /// The turn is over, or waits no more.
    pub fn leave(&mut self, turn: &T) {
        if self.active.as_ref() == Some(turn) {
            self.active = None;
        }
        self.waiting.retain(|waiting| waiting != turn);
    }

    /// Nothing is under way and nothing waits.
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

    fn busy() -> Lane<u8> {
        let mut lane = Lane::default();
        assert_eq!(lane.admit(1, BusyPolicy::Enqueue), Admission::Waits);
        assert_eq!(lane.start_next(ready), Some(1));
        assert_eq!(lane.admit(2, BusyPolicy::Enqueue), Admission::Waits);
        lane
    }

    fn command(mut lane: Lane<u8>) -> Vec<u8> {
        let mut command = Vec::new();
        while let Some(active) = lane.active().copied().or_else(|| lane.start_next(ready)) {
            command.push(active);
            lane.leave(&active);
        }
        command
    }

    #[test]
    fn enqueue_waits_its_turn() {
        let mut lane = busy();
        assert_eq!(lane.admit(3, BusyPolicy::Enqueue), Admission::Waits);
        assert_eq!(lane.start_next(ready), None, "one turn at a time");
        assert_eq!(command(lane), [1, 2, 3]);
    }

    #[test]
    fn reject_refuses_while_anything_runs_or_waits() {
        let mut lane = busy();
        assert_eq!(lane.admit(3, BusyPolicy::Reject), Admission::Refused);
        lane.leave(&1);
        assert_eq!(lane.admit(3, BusyPolicy::Reject), Admission::Refused);
        lane.leave(&2);
        assert_eq!(lane.admit(3, BusyPolicy::Reject), Admission::Waits);
        assert_eq!(command(lane), [3]);
    }

    #[test]
    fn interrupt_and_rollback_come_before_those_that_wait() {
        let mut lane = busy();
        assert_eq!(lane.admit(3, BusyPolicy::Interrupt), Admission::Stops(1));
        assert_eq!(lane.admit(4, BusyPolicy::Rollback), Admission::TakesBack(1));
        lane.leave(&1);
        assert_eq!(command(lane), [4, 3, 2]);
    }

    #[test]
    fn what_may_not_begin_yet_blocks_those_behind_it_or_steps_aside() {
        let mut lane = Lane::default();
        for turn in 1..=3 {
            assert_eq!(lane.admit(turn, BusyPolicy::Enqueue), Admission::Waits);
        }
        let rule = |of_1: Readiness, of_2: Readiness| {
            move |turn: &u8| match turn {
                1 => of_1,
                2 => of_2,
                _ => Readiness::Ready,
            }
        };
        assert_eq!(lane.start_next(rule(Readiness::Blocks, Readiness::Ready)), None);
        assert_eq!(lane.start_next(rule(Readiness::StepsAside, Readiness::Blocks)), None);
        assert_eq!(lane.start_next(rule(Readiness::StepsAside, Readiness::StepsAside)), Some(3));
        lane.leave(&3);
        assert_eq!(lane.start_next(rule(Readiness::StepsAside, Readiness::Ready)), Some(2));
        lane.leave(&2);
        assert_eq!(lane.start_next(rule(Readiness::StepsAside, Readiness::Ready)), None);
        assert_eq!(command(lane), [1]);
    }

    #[test]
    fn a_turn_that_others_began_takes_its_place() {
        let mut lane = Lane::default();
        lane.admit(1, BusyPolicy::Enqueue);
        lane.admit(2, BusyPolicy::Enqueue);
        assert!(lane.start(2) && !lane.start(1));
        assert_eq!(lane.waiting().copied().collect::<Vec<_>>(), [1]);
        lane.admit(3, BusyPolicy::Enqueue);
        lane.wait_first(3);
        lane.wait_first(4);
        assert_eq!(command(lane), [2, 4, 3, 1]);
    }
}
