//! Timers that are due: what the store and the rules say of them.

use model::TimerId;
use partition::{Input, TimerDecision, TimerPage, TimerVerdict};

use super::World;
use crate::world::event::Address;

impl World {
    pub(super) fn request_timers(&mut self, address: Address, due: Vec<TimerId>) {
        let gone = |id| TimerDecision { id, thread: None, verdict: TimerVerdict::Gone };
        let delay = self.look_up_delay();
        self.answer(address, delay, Input::TimersDecided(due.into_iter().map(gone).collect()));
    }

    pub(super) fn request_window(&mut self, address: Address, _from_ms: i64, _limit: usize) {
        let delay = self.look_up_delay();
        self.answer(address, delay, Input::Timers(TimerPage::NONE));
    }
}
