//! Open streams, whose credentials are checked periodically: a stream ends when its credential was
//! revoked or has expired.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use auth::{PresentedKey, Principal};
use feed::StreamPart;
use http_server::auth::erased_tenants::ErasedTenants;
use model::Timestamp;
use protocols::native;

use crate::streaming::send_queue::SendQueue;

/// Minimum number of streams before ended ones are removed.
const FEW: usize = 64;

/// The open streams of a gateway. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenStreams {
    open: Arc<Mutex<StreamTable>>,
}

#[derive(Debug, Default)]
struct StreamTable {
    streams: Vec<OpenStream>,
    /// Number of streams left after the last cleanup.
    kept: usize,
}

/// An open stream and its principal.
#[derive(Debug)]
struct OpenStream {
    principal: Arc<Principal>,
    send_queue: SendQueue,
}

impl OpenStreams {
    fn open(&self) -> MutexGuard<'_, StreamTable> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, principal: &Arc<Principal>, send_queue: &SendQueue) {
        let mut open = self.open();
        // Streams may come and go faster than their credentials are checked.
        if open.streams.len() >= (2 * open.kept).max(FEW) {
            open.forget_ended();
        }
        open.streams.push(OpenStream { principal: Arc::clone(principal), send_queue: send_queue.clone() });
    }

    /// Ends the streams whose credential has expired, which needs no lookup. Returns the API keys
    /// of the others.
    pub(crate) fn end_expired(&self, now: Timestamp) -> HashSet<PresentedKey> {
        self.end(|principal| principal.has_expired(now).then_some("credential_expired"));
        self.open().streams.iter().filter_map(|streams| streams.principal.key()).collect()
    }

    /// Ends the streams of keys that are no longer valid.
    pub(crate) fn end_revoked(&self, keys: &HashSet<PresentedKey>) {
        let is_revoked = |principal: &Principal| principal.key().is_some_and(|key| keys.contains(&key));
        self.end(|principal| is_revoked(principal).then_some("credential_revoked"));
    }

    /// Ends the streams of tenants that are marked as erased.
    pub(crate) fn end_erased(&self, tenants: &ErasedTenants) {
        self.end(|principal| tenants.has(principal).then_some("tenant_erased"));
    }

    fn end(&self, why: impl Fn(&Principal) -> Option<&'static str>) {
        let mut open = self.open();
        for OpenStream { principal, send_queue } in &open.streams {
            if let Some(why) = why(principal) {
                send_queue.end_with(StreamPart::Encoded(native::auth_expired(why)));
            }
        }
        open.forget_ended();
    }
}

impl StreamTable {
    fn forget_ended(&mut self) {
        self.streams.retain(|streams| streams.send_queue.is_open());
        self.kept = self.streams.len();
    }
}

#[cfg(test)]
mod tests {
    use auth::{AccessRole, ApiKey, NewKey, StoredKey, TenantName};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::streaming::send_queue::SendQueueBody;

    fn send_queue() -> (SendQueue, SendQueueBody) {
        SendQueue::new(CancellationToken::new(), 1_000)
    }

    fn of_key(number: u8, expires_at: Option<Timestamp>) -> Arc<Principal> {
        let made = NewKey::from_random([number; 8], [0; 32]);
        let (id, digest) = (made.id(), made.digest());
        let (tenant, name) = (TenantName::default(), String::new());
        let (scopes, revoked_at) = (None, None);
        let key = StoredKey {
            id,
            digest,
            previous: None,
            tenant,
            role: AccessRole::Viewer,
            scopes,
            name,
            expires_at,
            revoked_at,
        };
        Arc::new(ApiKey::parse(made.text()).unwrap().check(&key, Timestamp(0)).unwrap())
    }

    #[tokio::test]
    async fn what_has_expired_ends_before_anybody_is_asked() {
        let open_streams = OpenStreams::default();
        let (brief, long) = (of_key(1, Some(Timestamp(5))), of_key(2, None));
        let ((first, _body), (second, _body_of_second)) = (send_queue(), send_queue());
        open_streams.register(&brief, &first);
        open_streams.register(&long, &second);
        assert_eq!(open_streams.end_expired(Timestamp(4)).len(), 2);
        assert_eq!(open_streams.end_expired(Timestamp(5)), HashSet::from([long.key().unwrap()]));
        assert!(!first.is_open() && second.is_open());
        open_streams.end_revoked(&HashSet::from([brief.key().unwrap()]));
        assert!(second.is_open());
        open_streams.end_revoked(&HashSet::from([long.key().unwrap()]));
        assert!(!second.is_open());
        assert!(open_streams.end_expired(Timestamp(5)).is_empty());
    }

    #[tokio::test]
    async fn streams_that_come_and_go_are_forgotten() {
        let (open_streams, key) = (OpenStreams::default(), of_key(1, None));
        let open: Vec<_> = (0..100).map(|_| send_queue()).collect();
        for (send_queue, _) in &open {
            open_streams.register(&key, send_queue);
        }
        for _ in 0..10_000 {
            let (send_queue, body) = send_queue();
            open_streams.register(&key, &send_queue);
            drop(body);
        }
        assert!(open_streams.open().streams.len() <= 2 * open.len(), "{}", open_streams.open().streams.len());
    }
}
