//! What a session knows of its lease.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use store::Applied;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The lease of one session. Courtesy only: it keeps a worker that was paused from speaking before it has asked whether
/// its partition is still its own. Safety is the fence of every commit.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    asked: watch::Receiver<Instant>,
    /// What the session has been told of its partition: every renewal expects it.
    pub(crate) standing: Standing,
    /// Told when the store does not confirm it: the session ends, and its grant is looked at.
    pub(crate) doubt: Arc<Notify>,
    /// Cancelled when the partition is to be handed back after finishing what is in flight.
    pub(crate) drain: CancellationToken,
    /// Cancelled when the partition belongs to another worker: drop everything.
    pub(crate) lost: CancellationToken,
}

/// See [`Lease::standing`]. `None` between two grants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing(Arc<Mutex<Option<Applied>>>);

impl Standing {
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

/// The side that renews.
#[derive(Debug)]
pub(crate) struct LeaseRenewal {
    asked: watch::Sender<Instant>,
}

impl LeaseRenewal {
    pub(crate) fn new() -> Self {
        Self { asked: watch::Sender::new(Instant::now()) }
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease {
            asked: self.asked.subscribe(),
            standing: Standing::default(),
            doubt: Arc::default(),
            drain: CancellationToken::new(),
            lost: CancellationToken::new(),
        }
    }

    /// A renewal that was sent at `sent` has been answered, or Postgres is away for all workers: until `sent` plus the
    /// length of a lease, less a margin, sessions may speak.
    pub(crate) fn renewed(&self, sent: Instant, lease: Duration) {
        let until = sent + lease.mul_f64(0.8);
        self.asked.send_if_modified(|known| {
            let later = until > *known;
            *known = until.max(*known);
            later
        });
    }
}

impl Lease {
    /// Waits until the partition is known to be ours; false when it is not.
    pub(crate) async fn hold(&mut self) -> bool {
        loop {
            if self.lost.is_cancelled() {
                return false;
            }
            if *self.asked.borrow_and_update() > Instant::now() {
                return true;
            }
            tokio::select! {
                () = self.lost.cancelled() => return false,
                changed = self.asked.changed() => if changed.is_err() { return false },
            }
        }
    }
}
