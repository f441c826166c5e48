//! Open streams, whose credentials are looked at again: one that was revoked or has expired ends them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use auth::{KeyId, Principal};
use model::Timestamp;
use protocols::native;

use crate::streaming::send_queue::Lane;

/// So many streams are kept before those that have ended are looked for.
const FEW: usize = 64;

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vigil {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    watched: Vec<Watched>,
    /// How many were left when those that have ended were forgotten.
    kept: usize,
}

/// An open stream, and in whose name.
#[derive(Debug)]
struct Watched {
    principal: Arc<Principal>,
    lane: Lane,
}

impl Vigil {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(&self, principal: &Arc<Principal>, lane: &Lane) {
        let mut open = self.open();
        // Streams may come and go faster than they are looked at.
        if open.watched.len() >= (2 * open.kept).max(FEW) {
            open.forget_ended();
        }
        open.watched.push(Watched { principal: Arc::clone(principal), lane: lane.clone() });
    }

    /// Ends the streams whose credential has ended by itself, for which nobody need be asked. The API keys of the others.
    pub(crate) fn end_expired(&self, now: Timestamp) -> HashSet<KeyId> {
        self.end(|principal| principal.has_expired(now).then_some("credential_expired"));
        self.open().watched.iter().filter_map(|watched| watched.principal.key()).collect()
    }

    /// Ends the streams of keys that count no longer.
    pub(crate) fn end_revoked(&self, keys: &HashSet<KeyId>) {
        let is_revoked = |principal: &Principal| principal.key().is_some_and(|key| keys.contains(&key));
        self.end(|principal| is_revoked(principal).then_some("credential_revoked"));
    }

    fn end(&self, why: impl Fn(&Principal) -> Option<&'static str>) {
        let mut open = self.open();
        for Watched { principal, lane } in &open.watched {
            if let Some(why) = why(principal) {
                lane.end_with(native::auth_expired(why));
            }
        }
        open.forget_ended();
    }
}

impl Open {
    fn forget_ended(&mut self) {
        self.watched.retain(|watched| watched.lane.is_open());
        self.kept = self.watched.len();
    }
}

#[cfg(test)]
mod tests {
    use auth::{ApiKey, NewKey, Role, StoredKey, TenantName};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::streaming::send_queue::LaneBody;

    fn lane() -> (Lane, LaneBody) {
        Lane::new(CancellationToken::new(), 1_000)
    }

    fn of_key(number: u8, expires_at: Option<Timestamp>) -> Arc<Principal> {
        let made = NewKey::from_random([number; 8], [0; 32]);
        let (id, digest) = (made.id(), made.digest());
        let (tenant, name) = (TenantName::default(), String::new());
        let (scopes, revoked_at) = (None, None);
        let key = StoredKey { id, digest, tenant, role: Role::Viewer, scopes, name, expires_at, revoked_at };
        Arc::new(ApiKey::parse(made.text()).unwrap().check(&key, Timestamp(0)).unwrap())
    }

    #[tokio::test]
    async fn what_has_expired_ends_before_anybody_is_asked() {
        let vigil = Vigil::default();
        let (brief, long) = (of_key(1, Some(Timestamp(5))), of_key(2, None));
        let ((first, _body), (second, _body_of_second)) = (lane(), lane());
        vigil.watch(&brief, &first);
        vigil.watch(&long, &second);
        assert_eq!(vigil.end_expired(Timestamp(4)).len(), 2);
        assert_eq!(vigil.end_expired(Timestamp(5)), HashSet::from([long.key().unwrap()]));
        assert!(!first.is_open() && second.is_open());
        vigil.end_revoked(&HashSet::from([brief.key().unwrap()]));
        assert!(second.is_open());
        vigil.end_revoked(&HashSet::from([long.key().unwrap()]));
        assert!(!second.is_open());
        assert!(vigil.end_expired(Timestamp(5)).is_empty());
    }

    #[tokio::test]
    async fn streams_that_come_and_go_are_forgotten() {
        let (vigil, key) = (Vigil::default(), of_key(1, None));
        let open: Vec<_> = (0..100).map(|_| lane()).collect();
        for (lane, _) in &open {
            vigil.watch(&key, lane);
        }
        for _ in 0..10_000 {
            let (lane, body) = lane();
            vigil.watch(&key, &lane);
            drop(body);
        }
        assert!(vigil.open().watched.len() <= 2 * open.len(), "{}", vigil.open().watched.len());
    }
}
