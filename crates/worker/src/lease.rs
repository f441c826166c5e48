//! A session's view of its lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use store::Applied;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The lease of one session. It is advisory: a worker that was paused publishes nothing until it
/// has confirmed its lease. Safety comes from the fence of every commit.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    valid_until: watch::Receiver<Instant>,
    /// State of the partition that the session has confirmed; every renewal expects it.
    pub(crate) confirmed: ConfirmedState,
    /// Notified when the store does not confirm the state: the session ends, and its grant is
    /// checked.
    pub(crate) doubt: Arc<Notify>,
    /// See [`Lease::check`].
    seen_epoch: Arc<AtomicU64>,
    /// Cancelled to hand the partition back after finishing what is in flight.
    pub(crate) drain: CancellationToken,
    /// Cancelled when the partition belongs to another worker: drop everything.
    pub(crate) lost: CancellationToken,
}

/// See [`Lease::confirmed`]. `None` between two grants.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfirmedState(Arc<Mutex<Option<Applied>>>);

impl ConfirmedState {
    pub(crate) fn get(&self) -> Option<Applied> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, applied: Option<Applied>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = applied;
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Extends the leases of all sessions.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewal {
    valid_until: watch::Sender<Instant>,
}

impl LeaseRenewal {
    pub(crate) fn new() -> Self {
        Self { valid_until: watch::Sender::new(Instant::now()) }
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease {
            valid_until: self.valid_until.subscribe(),
            confirmed: ConfirmedState::default(),
            doubt: Arc::default(),
            seen_epoch: Arc::default(),
            drain: CancellationToken::new(),
            lost: CancellationToken::new(),
        }
    }

    /// Notes a renewal sent at `sent`: either it was answered, or Postgres was unavailable to all
    /// workers. Sessions may publish until `sent` plus the duration of a lease, less a margin.
    pub(crate) fn renewed(&self, sent: Instant, lease: Duration) {
        self.extend(lease_until(sent, lease), |_| true);
    }

    /// Notes that Postgres has been silent for part of a lease, so that no worker can take a
    /// partition. Sessions that may publish at `now` may continue to, as if Postgres had answered
    /// at `now`. Sessions of a worker that was paused past the end of its leases must wait for an
    /// answer.
    pub(crate) fn unanswered(&self, now: Instant, lease: Duration) {
        self.extend(lease_until(now, lease), |known| known > now);
    }

    fn extend(&self, until: Instant, is_extended: impl Fn(Instant) -> bool) {
        self.valid_until.send_if_modified(|known| {
            let later = until > *known && is_extended(*known);
            if later {
                *known = until;
            }
            later
        });
    }
}

fn lease_until(from: Instant, lease: Duration) -> Instant {
    from + lease.mul_f64(0.8)
}

impl Lease {
    /// Requests a check of the grant, because this higher epoch was seen.
    pub(crate) fn check(&self, seen_epoch: u64) {
        self.seen_epoch.fetch_max(seen_epoch, Ordering::Relaxed);
        self.doubt.notify_one();
    }

    /// Highest epoch passed to [`Lease::check`]; 0 before the first call.
    pub(crate) fn seen_epoch(&self) -> u64 {
        self.seen_epoch.load(Ordering::Relaxed)
    }

    /// Waits until the lease is confirmed; false if it is lost.
    pub(crate) async fn hold(&mut self) -> bool {
        loop {
            if self.lost.is_cancelled() {
                return false;
            }
            if *self.valid_until.borrow_and_update() > Instant::now() {
                return true;
            }
            tokio::select! {
                () = self.lost.cancelled() => return false,
                changed = self.valid_until.changed() => if changed.is_err() { return false },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    #[test]
    fn silence_extends_a_lease_that_has_not_run_out() {
        let (renewal, start) = (LeaseRenewal::new(), Instant::now());
        let lease = renewal.lease();
        let valid_for = || lease.valid_until.borrow().duration_since(start);
        renewal.renewed(start, LEASE);
        for part in 1..=10 {
            renewal.unanswered(start + LEASE / 3 * part, LEASE);
            assert_eq!(valid_for(), LEASE / 3 * part + LEASE.mul_f64(0.8));
        }
        // A worker that was paused waits for an answer.
        let before = valid_for();
        renewal.unanswered(start + before, LEASE);
        assert_eq!(valid_for(), before);
        renewal.renewed(start + before, LEASE);
        assert_eq!(valid_for(), before + LEASE.mul_f64(0.8));
    }
}
