//! The remaining events for follow-ups in this history.

use crate::rng::Rng;

#[derive(Debug)]
pub(crate) struct FollowUps {
    pub(crate) rng: Rng,
    /// Remaining messages that persons write close to a timer's due time.
    pub(crate) persons: usize,
    /// Messages of persons that are scheduled.
    pub(crate) coming: usize,
    /// Number of messages that persons have written.
    pub(crate) written: usize,
    /// Remaining jumps of the clocks while there are faults.
    pub(crate) jumps: u32,
}

impl FollowUps {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, persons: 0, coming: 0, written: 0, jumps: 0 }
    }
}
