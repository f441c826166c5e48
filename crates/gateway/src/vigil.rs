//! Open streams, whose credentials are looked at again: one that was revoked or has expired ends them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use access::{KeyId, Principal};
use adapters::native;
use model::Timestamp;
use store::Store;

use crate::credentials::Credentials;
use crate::lane::Lane;

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vigil {
    open: Arc<Mutex<Vec<Watched>>>,
}

/// An open stream, and in whose name.
#[derive(Debug, Clone)]
struct Watched {
    principal: Arc<Principal>,
    lane: Lane,
}

impl Vigil {
    fn open(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(&self, principal: &Arc<Principal>, lane: &Lane) {
        self.open().push(Watched { principal: Arc::clone(principal), lane: lane.clone() });
    }

    /// Looks at all of them once.
    pub(crate) async fn look(&self, credentials: &Credentials, store: &Store, now: Timestamp) {
        let watched = {
            let mut open = self.open();
            open.retain(|watched| watched.lane.is_open());
            open.clone()
        };
        // One question for all streams of a key.
        let mut asked: HashMap<KeyId, Option<&'static str>> = HashMap::new();
        for Watched { principal, lane } in watched {
            let known = principal.key().and_then(|key| asked.get(&key).copied());
            let ended = match known {
                Some(ended) if !principal.has_expired(now) => ended,
                // A stream goes on while nobody can say.
                _ => credentials.ended(store, &principal, now).await.unwrap_or(None),
            };
            if let Some(key) = principal.key()
                && !principal.has_expired(now)
            {
                asked.insert(key, ended);
            }
            if let Some(why) = ended {
                lane.end_with(native::auth_expired(why));
            }
        }
    }
}
