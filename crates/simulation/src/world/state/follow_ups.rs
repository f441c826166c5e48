//! What is left to happen to follow-ups in this history.

use crate::rng::Rng;

/// See the module.
#[derive(Debug)]
pub(crate) struct FollowUps {
    pub(crate) rng: Rng,
    /// Messages that persons write close to the time of a timer.
    pub(crate) persons: usize,
    /// Those on their way.
    pub(crate) coming: usize,
    /// How many they have written.
    pub(crate) written: usize,
    /// Jumps of the clocks while there are faults.
    pub(crate) jumps: u32,
}

impl FollowUps {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, persons: 0, coming: 0, written: 0, jumps: 0 }
    }
}
