//! Decides when the keys of an identity provider are fetched again.

use std::sync::Arc;

use model::Timestamp;

use super::Jwks;

/// Minimum time between two fetches, in ms, however many tokens name unknown keys.
const PAUSE_MS: i64 = 30_000;
/// Maximum age of the keys before a regular fetch, in ms, so that a revoked key is dropped.
const FRESH_MS: i64 = 10 * 60_000;
/// Age in ms after which keys are no longer used, if no fetch succeeds.
const STALE_MS: i64 = 24 * 3_600_000;

/// The last fetched keys, and when they may be fetched again. The caller does the fetching.
#[derive(Debug, Default)]
pub struct JwksRefresh {
    fetched: Option<(Arc<Jwks>, Timestamp)>,
    tried_at: Option<Timestamp>,
}

/// The reason why the keys should be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshReason {
    /// A regular check, which the caller makes every few seconds.
    Age,
    /// A token names an unknown key.
    UnknownKey,
}

impl JwksRefresh {
    /// Starts without keys: the first call with [`RefreshReason::Age`] returns true.
    pub fn new() -> Self {
        Self::default()
    }

    /// The keys; `None` before the first fetch, and 24 hours after the last successful one.
    pub fn keys(&self, now: Timestamp) -> Option<Arc<Jwks>> {
        let (keys, at) = self.fetched.as_ref()?;
        (now.since_ms(*at) < STALE_MS).then(|| Arc::clone(keys))
    }

    /// Returns true if the caller should fetch the keys now. True counts as a fetch attempt: only
    /// one of many callers gets it, and then none for 30 s. After a failed fetch the caller reports
    /// nothing. The keys stay in use, and a call after 30 s starts the next fetch.
    #[must_use]
    pub fn may_fetch(&mut self, why: RefreshReason, now: Timestamp) -> bool {
        let wanted = why == RefreshReason::UnknownKey
            || self.fetched.as_ref().is_none_or(|(_, at)| has_passed(*at, now, FRESH_MS));
        let may = wanted && self.tried_at.is_none_or(|at| has_passed(at, now, PAUSE_MS));
        if may {
            self.tried_at = Some(now);
        }
        may
    }

    /// Stores keys that have just been fetched.
    pub fn fetched(&mut self, keys: Jwks, now: Timestamp) {
        self.fetched = Some((Arc::new(keys), now));
    }
}

/// True if `ms` have passed since `since`. A time in the future is from before the clock was set
/// back. It counts as passed, because waiting for it could take days.
fn has_passed(since: Timestamp, now: Timestamp, ms: i64) -> bool {
    now < since || now.since_ms(since) >= ms
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(START + seconds * 1000)
    }

    fn keys() -> Jwks {
        Jwks::secret(&[7; 32]).unwrap()
    }

    #[test]
    fn a_flood_of_unknown_keys_is_one_fetch_in_thirty_seconds() {
        let mut gate = JwksRefresh::new();
        assert!(gate.may_fetch(RefreshReason::Age, at(0)));
        gate.fetched(keys(), at(1));
        let fetches = (0..60_000).filter(|i| gate.may_fetch(RefreshReason::UnknownKey, at(i / 1000)));
        assert_eq!(fetches.count(), 1);
        assert!(gate.may_fetch(RefreshReason::UnknownKey, at(60)));
        assert!(!gate.may_fetch(RefreshReason::UnknownKey, Timestamp(at(90).0 - 1)));
    }

    #[test]
    fn keys_are_fetched_again_after_ten_minutes() {
        let mut gate = JwksRefresh::new();
        assert!(gate.keys(at(0)).is_none());
        assert!(gate.may_fetch(RefreshReason::Age, at(0)));
        assert!(!gate.may_fetch(RefreshReason::Age, at(29)) && gate.may_fetch(RefreshReason::Age, at(30)));
        gate.fetched(keys(), at(31));
        assert!(!gate.may_fetch(RefreshReason::Age, at(630)) && gate.may_fetch(RefreshReason::Age, at(631)));
    }

    #[test]
    fn keys_stay_while_fetching_fails_but_not_for_ever() {
        let mut gate = JwksRefresh::new();
        gate.fetched(keys(), at(0));
        let day = 24 * 3600;
        let tries = (600..day).filter(|second| gate.may_fetch(RefreshReason::Age, at(*second))).count();
        assert_eq!(tries, (day as usize - 600) / 30);
        assert!(gate.keys(at(day - 1)).is_some() && gate.keys(at(day)).is_none());
        gate.fetched(keys(), at(day));
        assert!(gate.keys(at(day)).is_some());
    }

    #[test]
    fn a_clock_that_is_set_back_stops_nothing() {
        let mut gate = JwksRefresh::new();
        assert!(gate.may_fetch(RefreshReason::Age, at(100_000)));
        gate.fetched(keys(), at(100_000));
        assert!(gate.keys(at(0)).is_some());
        assert!(
            gate.may_fetch(RefreshReason::Age, at(0)) && !gate.may_fetch(RefreshReason::UnknownKey, at(29))
        );
    }
}
