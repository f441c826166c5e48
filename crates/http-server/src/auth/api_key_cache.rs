//! Cache of recently used API keys, so that not every request reads the store.
//!
//! Invariant: each key has at most one read in progress, in a separate task; requests without a
//! usable value wait for it.

mod guesses;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use auth::{KeyId, StoredKey};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use model::Timestamp;
use runtime::spawn_named;
use store::{Store, StoreError};
use tokio::sync::Semaphore;

use crate::auth::error::AuthError;
use guesses::Guesses;

/// How long a cached key is used without a new read, ms. A revoked key remains valid no longer than
/// this.
const FRESH_MS: i64 = 5_000;
/// How long a cached key is used while the store cannot be read, ms: streams and inputs continue
/// while Postgres is down.
const STALE_MS: i64 = 5 * 60_000;
/// Pause after a failed read, ms.
const RETRY_MS: i64 = 1_000;
/// Maximum number of cached keys, including those that do not exist.
const MOST: usize = 10_000;
/// Number of keys loaded at the start.
const LEARNT: u32 = 5_000;
/// Concurrent lookups of unknown keys. Further ones wait, which leaves the database connections to
/// known keys.
const GUESSED_AT_A_TIME: usize = 4;

/// Clones share the cache.
#[derive(Debug, Clone)]
pub(crate) struct ApiKeyCache {
    state: Arc<Mutex<CacheState>>,
    guessing: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct CacheState {
    seen: HashMap<KeyId, Cached>,
    reads: HashMap<KeyId, Reading>,
    used: HashSet<KeyId>,
    guesses: Guesses,
}

/// A read in progress, shared by all requests that wait for it. It resolves to `None` when the
/// store cannot be read.
type Reading = Shared<BoxFuture<'static, Option<Option<StoredKey>>>>;

#[derive(Debug)]
struct Cached {
    key: Option<StoredKey>,
    at: Timestamp,
    /// When the last failed attempt to read the key again was made.
    failed_at: Option<Timestamp>,
}

/// The result of a cache lookup.
#[derive(Debug)]
enum Next {
    Known(Option<StoredKey>),
    Wait(Reading),
    AuthError(AuthError),
}

/// Removes a read from the list when it has ended, even by a panic.
struct Listed(ApiKeyCache, KeyId);

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.state().reads.remove(&self.1);
    }
}

impl Default for ApiKeyCache {
    fn default() -> Self {
        Self { state: Arc::default(), guessing: Arc::new(Semaphore::new(GUESSED_AT_A_TIME)) }
    }
}

impl ApiKeyCache {
    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stored key, as of now or some seconds ago; `None` when there is none. The lookup of an
    /// unknown key counts against the budget of `peer`, if it is given.
    pub(crate) async fn key(
        &self,
        store: &Store,
        id: KeyId,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Option<StoredKey>, AuthError> {
        let store = store.of_installation();
        let read = move || async move { Ok(store.key(id).await?.map(|row| row.key)) };
        self.looked_up(id, peer, now, read).await
    }

    /// The stored key as of now, for a caller whose secret is not the cached one. It counts as a
    /// guess of `peer`, and other callers do not wait for it. `None` without a key, when `peer` has
    /// guessed too much, and when the store cannot be read.
    pub(crate) async fn key_again(
        &self,
        store: &Store,
        id: KeyId,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Option<StoredKey> {
        let store = store.of_installation();
        let read = move || async move { Ok(store.key(id).await?.map(|row| row.key)) };
        self.looked_up_again(id, peer, now, read).await
    }

    async fn looked_up_again<F>(
        &self,
        id: KeyId,
        peer: Option<IpAddr>,
        now: Timestamp,
        read: impl FnOnce() -> F + Send + 'static,
    ) -> Option<StoredKey>
    where
        F: Future<Output = Result<Option<StoredKey>, StoreError>> + Send,
    {
        let reading = {
            let mut state = self.state();
            let may_guess = peer.is_none_or(|peer| state.guesses.take(peer, now));
            may_guess.then(|| match state.reads.get(&id) {
                Some(reading) => reading.clone(),
                None => self.begin_read(&mut state, id, now, false, read),
            })
        };
        match reading {
            Some(reading) => reading.await.flatten(),
            None => None,
        }
    }

    async fn looked_up<F>(
        &self,
        id: KeyId,
        peer: Option<IpAddr>,
        now: Timestamp,
        read: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Option<StoredKey>, AuthError>
    where
        F: Future<Output = Result<Option<StoredKey>, StoreError>> + Send,
    {
        let reading = match self.next(id, peer, now, read) {
            Next::Known(key) => return Ok(key),
            Next::AuthError(denied) => return Err(denied),
            Next::Wait(reading) => reading,
        };
        if let Some(key) = reading.await {
            return Ok(key);
        }
        let known = self.state().seen(id, now, STALE_MS);
        known.ok_or(AuthError::Away("the database cannot be reached at the moment"))
    }

    fn next<F>(
        &self,
        id: KeyId,
        peer: Option<IpAddr>,
        now: Timestamp,
        read: impl FnOnce() -> F + Send + 'static,
    ) -> Next
    where
        F: Future<Output = Result<Option<StoredKey>, StoreError>> + Send,
    {
        let mut state = self.state();
        if let Some(key) = state.seen(id, now, FRESH_MS) {
            return Next::Known(key);
        }
        let stale = state.seen(id, now, STALE_MS).flatten();
        if let Some(reading) = state.reads.get(&id) {
            // A store that hangs does not block keys that were valid recently.
            return stale.map_or_else(|| Next::Wait(reading.clone()), |key| Next::Known(Some(key)));
        }
        if let Some(key) = stale.filter(|_| state.has_just_failed(id, now)) {
            return Next::Known(Some(key));
        }
        let is_guess = !state.exists(id);
        if is_guess && !peer.is_none_or(|peer| state.guesses.take(peer, now)) {
            return Next::AuthError(AuthError::TooManyUnknown);
        }
        Next::Wait(self.begin_read(&mut state, id, now, is_guess, read))
    }

    /// Begins the one read of a key.
    fn begin_read<F>(
        &self,
        state: &mut CacheState,
        id: KeyId,
        now: Timestamp,
        is_guess: bool,
        read: impl FnOnce() -> F + Send + 'static,
    ) -> Reading
    where
        F: Future<Output = Result<Option<StoredKey>, StoreError>> + Send,
    {
        let cache = self.clone();
        let read = async move {
            // Created inside the task, because dropping it locks the state. A stopping runtime
            // drops the task at once, while the state is still locked here.
            let _listed = Listed(cache.clone(), id);
            // The semaphore is never closed; even without a permit the key would be read.
            let _turn = if is_guess { Some(cache.guessing.acquire().await) } else { None };
            cache.finish(id, now, read().await)
        };
        // The read is a separate task: other requests wait for it, and this request may be
        // cancelled.
        let reading = spawn_named("api key", read).map(|ended| ended.ok().flatten()).boxed().shared();
        state.reads.insert(id, reading.clone());
        reading
    }

    fn finish(
        &self,
        id: KeyId,
        now: Timestamp,
        read: Result<Option<StoredKey>, StoreError>,
    ) -> Option<Option<StoredKey>> {
        match read {
            Ok(key) => {
                self.state().remember(id, Cached::new(key.clone(), now));
                Some(key)
            }
            Err(error) => {
                tracing::debug!(%error, "a key cannot be looked up");
                if let Some(seen) = self.state().seen.get_mut(&id) {
                    seen.failed_at = Some(now);
                }
                None
            }
        }
    }

    /// Loads existing keys, so that none of them is taken for a guess.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn learn(&self, store: &Store, now: Timestamp) -> Result<(), StoreError> {
        let rows = store.of_installation().recent_keys(LEARNT).await?;
        let mut state = self.state();
        for row in rows {
            state.remember(row.key.id, Cached::new(Some(row.key), now));
        }
        Ok(())
    }

    /// Reads these keys again in one statement, so that an unavailable store is waited for only
    /// once.
    pub(crate) async fn read_again(&self, store: &Store, ids: &HashSet<KeyId>, now: Timestamp) {
        let stale: Vec<_> = {
            let state = self.state();
            ids.iter().filter(|id| state.seen(**id, now, FRESH_MS).is_none()).copied().collect()
        };
        if stale.is_empty() {
            return;
        }
        match store.of_installation().keys_of(&stale).await {
            Ok(rows) => {
                let mut found: HashMap<_, _> = rows.into_iter().map(|row| (row.key.id, row.key)).collect();
                let mut state = self.state();
                for id in stale {
                    state.remember(id, Cached::new(found.remove(&id), now));
                }
            }
            Err(error) => tracing::debug!(%error, "keys cannot be looked up"),
        }
    }

    /// Adds a new key, so that its first use here does not count as a guess.
    pub(crate) fn made(&self, key: StoredKey, now: Timestamp) {
        self.state().remember(key.id, Cached::new(Some(key), now));
    }

    /// The cached value of a key, even if it is old; `None` when nothing is cached.
    pub(crate) fn known(&self, id: KeyId, now: Timestamp) -> Option<Option<StoredKey>> {
        self.state().seen(id, now, STALE_MS)
    }

    pub(crate) fn used(&self, id: KeyId) {
        self.state().used.insert(id);
    }

    /// Records which keys were used since the last call.
    pub(crate) async fn note_used(&self, store: &Store) {
        let used: Vec<_> = self.state().used.drain().collect();
        if used.is_empty() {
            return;
        }
        if let Err(error) = store.of_installation().touch_keys(&used).await {
            tracing::debug!(%error, "it cannot be noted which keys are used");
        }
    }
}

impl Cached {
    fn new(key: Option<StoredKey>, at: Timestamp) -> Self {
        Self { key, at, failed_at: None }
    }
}

impl CacheState {
    fn seen(&self, id: KeyId, now: Timestamp, for_ms: i64) -> Option<Option<StoredKey>> {
        let seen = self.seen.get(&id)?;
        is_within(seen.at, now, for_ms).then(|| seen.key.clone())
    }

    /// Whether the key existed at its last lookup, however long ago that was.
    fn exists(&self, id: KeyId) -> bool {
        self.seen.get(&id).is_some_and(|seen| seen.key.is_some())
    }

    fn has_just_failed(&self, id: KeyId, now: Timestamp) -> bool {
        let failed_at = self.seen.get(&id).and_then(|seen| seen.failed_at);
        failed_at.is_some_and(|at| is_within(at, now, RETRY_MS))
    }

    fn remember(&mut self, id: KeyId, seen: Cached) {
        if !self.seen.contains_key(&id) && self.seen.len() >= MOST {
            // First evict revoked keys and ids without a key: requests with guessed ids must not
            // evict keys that exist.
            self.seen.retain(|_, seen| seen.key.as_ref().is_some_and(|key| key.revoked_at.is_none()));
            // If the cache is full, evict only the key with the oldest lookup: one tenant may have
            // as many keys as the cache holds.
            if self.seen.len() >= MOST
                && let Some(oldest) = self.seen.iter().min_by_key(|(_, seen)| seen.at).map(|(id, _)| *id)
            {
                self.seen.remove(&oldest);
            }
        }
        self.seen.insert(id, seen);
    }
}

/// Whether the two times are less than `ms` apart, in either direction: a request may read the
/// clock before another one and arrive after it. A time further in the future is from before the
/// clock was set back.
fn is_within(at: Timestamp, now: Timestamp, ms: i64) -> bool {
    now.since_ms(at).max(at.since_ms(now)) < ms
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use auth::{AccessRole, NewKey, TenantName};
    use futures_util::future::join_all;

    use super::*;

    fn id(n: u64) -> KeyId {
        NewKey::from_random(n.to_be_bytes(), [0; 32]).id()
    }

    fn key(n: u64) -> StoredKey {
        StoredKey {
            id: id(n),
            digest: [0; 32],
            previous: None,
            tenant: TenantName::default(),
            role: AccessRole::Viewer,
            scopes: None,
            name: String::new(),
            expires_at: None,
            revoked_at: None,
        }
    }

    const PEER: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn away() -> StoreError {
        StoreError::TimedOut
    }

    #[tokio::test]
    async fn all_who_ask_at_once_for_a_key_wait_for_one_read() {
        let cache = ApiKeyCache::default();
        let reads = Arc::new(AtomicUsize::new(0));
        // At first the key is unknown; then it has been idle for longer than a cached value is
        // usable without the store.
        for now in [Timestamp(0), Timestamp(STALE_MS)] {
            reads.store(0, Ordering::Relaxed);
            let ask = |_| {
                let reads = Arc::clone(&reads);
                cache.looked_up(id(1), PEER, now, move || async move {
                    reads.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok(Some(key(1)))
                })
            };
            for answer in join_all((0..20).map(ask)).await {
                assert_eq!(answer.unwrap(), Some(key(1)), "{now:?}");
            }
            assert_eq!(reads.load(Ordering::Relaxed), 1, "{now:?}");
            assert!(cache.state().reads.is_empty(), "a read that has ended is off the list");
        }
    }

    #[tokio::test]
    async fn hanging_read_does_not_delay_a_recently_valid_key() {
        let cache = ApiKeyCache::default();
        cache.state().remember(id(1), Cached::new(Some(key(1)), Timestamp(0)));
        let now = Timestamp(FRESH_MS);
        let hangs = cache.looked_up(id(1), PEER, now, std::future::pending);
        let mut hangs = std::pin::pin!(hangs);
        assert!(hangs.as_mut().now_or_never().is_none());
        let beside = cache.looked_up(id(1), PEER, now, || async { panic!("a second read") });
        assert_eq!(beside.await.unwrap(), Some(key(1)));
    }

    #[tokio::test]
    async fn another_secret_is_looked_up_as_a_guess() {
        let (cache, now) = (ApiKeyCache::default(), Timestamp(0));
        let rotated = StoredKey { digest: [1; 32], ..key(1) };
        cache.state().remember(id(1), Cached::new(Some(key(1)), now));
        let slow = cache.looked_up_again(id(1), PEER, now, std::future::pending);
        let mut slow = std::pin::pin!(slow);
        assert!(slow.as_mut().now_or_never().is_none());
        let beside = cache.looked_up(id(1), PEER, now, || async { panic!("a second read") });
        assert_eq!(beside.await.unwrap(), Some(key(1)));
        cache.state().reads.clear();
        let new = rotated.clone();
        let read = cache.looked_up_again(id(1), PEER, now, || async { Ok(Some(new)) });
        assert_eq!(read.await, Some(rotated.clone()));
        assert_eq!(cache.known(id(1), now), Some(Some(rotated)));
        let mut read = 0;
        for _ in 0..1_000 {
            let again = cache.looked_up_again(id(1), PEER, now, || async { Ok(Some(key(1))) });
            read += usize::from(again.await.is_some());
        }
        assert!(read < 500, "{read}");
    }

    #[tokio::test]
    async fn cancelled_or_panicked_read_does_not_fail_other_requests() {
        let cache = ApiKeyCache::default();
        let slow = || async {
            tokio::task::yield_now().await;
            Ok(Some(key(1)))
        };
        let given_up = cache.looked_up(id(1), PEER, Timestamp(0), slow).now_or_never();
        assert!(given_up.is_none());
        let other = cache.looked_up(id(1), PEER, Timestamp(0), || async { panic!("a second read") });
        assert_eq!(other.await.unwrap(), Some(key(1)));
        let panics = cache.looked_up(id(2), PEER, Timestamp(0), || async { panic!("as it is meant to") });
        assert!(matches!(panics.await, Err(AuthError::Away(_))));
        let again = cache.looked_up(id(2), PEER, Timestamp(0), || async { Ok(Some(key(2))) });
        assert_eq!(again.await.unwrap(), Some(key(2)));
    }

    #[tokio::test]
    async fn unreachable_store_is_read_once_a_second_and_key_stays_valid() {
        let cache = ApiKeyCache::default();
        cache.state().remember(id(1), Cached::new(Some(key(1)), Timestamp(0)));
        let reads = Arc::new(AtomicUsize::new(0));
        for at in 0..3_000 {
            let reads = Arc::clone(&reads);
            let read = move || async move {
                reads.fetch_add(1, Ordering::Relaxed);
                Err(away())
            };
            let answer = cache.looked_up(id(1), PEER, Timestamp(FRESH_MS + at), read).await;
            assert_eq!(answer.unwrap(), Some(key(1)));
        }
        assert_eq!(reads.load(Ordering::Relaxed), 3);
        let unknown = cache.looked_up(id(2), PEER, Timestamp(0), || async { Err(away()) }).await;
        assert!(matches!(unknown, Err(AuthError::Away(_))));
    }

    #[tokio::test]
    async fn who_guesses_keeps_out_neither_others_nor_keys_that_are_known() {
        let (cache, now) = (ApiKeyCache::default(), Timestamp(1_000_000));
        cache.state().remember(id(0), Cached::new(Some(key(0)), Timestamp(0)));
        let mut denied = 0;
        for n in 1..2_000 {
            let answer = cache.looked_up(id(n), PEER, now, || async { Ok(None) }).await;
            denied += usize::from(matches!(answer, Err(AuthError::TooManyUnknown)));
        }
        assert!(denied > 1_500, "{denied}");
        // A known key that was idle, and the first use of a key at another address.
        let known = cache.looked_up(id(0), PEER, now, || async { Ok(Some(key(0))) });
        assert_eq!(known.await.unwrap(), Some(key(0)));
        let elsewhere = Some(IpAddr::from([10, 0, 0, 1]));
        let new = cache.looked_up(id(5_000), elsewhere, now, || async { Ok(Some(key(5_000))) });
        assert_eq!(new.await.unwrap(), Some(key(5_000)));
    }

    #[test]
    fn guessed_ids_neither_fill_the_cache_nor_evict_keys() {
        let (mut state, now) = (CacheState::default(), Timestamp(1_000_000));
        state.remember(id(0), Cached::new(Some(key(0)), now));
        for n in 1..50_000 {
            state.remember(id(n), Cached::new(None, now));
        }
        assert!(state.seen.len() <= MOST);
        assert_eq!(state.seen(id(0), now, FRESH_MS), Some(Some(key(0))));
    }

    #[test]
    fn a_full_cache_forgets_the_oldest_key_and_no_other() {
        let mut state = CacheState::default();
        let of = |n: u64| (id(n), Cached::new(Some(key(n)), Timestamp(n as i64)));
        for (id, seen) in (0..MOST as u64).map(of) {
            state.remember(id, seen);
        }
        // A key that is cached already takes no room.
        state.remember(id(1), Cached::new(Some(key(1)), Timestamp(MOST as i64)));
        assert!(state.exists(id(0)));
        state.remember(id(MOST as u64), of(MOST as u64).1);
        assert_eq!(state.seen.len(), MOST);
        assert!(!state.exists(id(0)) && state.exists(id(1)) && state.exists(id(2)));
        state.remember(id(60_000), Cached::new(None, Timestamp(0)));
        let revoked = StoredKey { revoked_at: Some(Timestamp(1)), ..key(3) };
        state.remember(id(3), Cached::new(Some(revoked), Timestamp(MOST as i64)));
        state.remember(id(50_000), of(50_000).1);
        assert!(state.exists(id(4)), "what counts no longer goes first");
    }

    #[tokio::test]
    async fn a_key_that_was_made_here_is_no_guess() {
        let (cache, now) = (ApiKeyCache::default(), Timestamp(1_000_000));
        for n in 1..2_000 {
            cache.looked_up(id(n), PEER, now, || async { Ok(None) }).await.ok();
        }
        cache.made(key(0), now);
        let later = now.plus_ms(STALE_MS);
        for n in 2_000..4_000 {
            cache.looked_up(id(n), PEER, later, || async { Ok(None) }).await.ok();
        }
        let first = cache.looked_up(id(0), PEER, later, || async { Ok(Some(key(0))) });
        assert_eq!(first.await.unwrap(), Some(key(0)));
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_key() {
        let (mut state, hour) = (CacheState::default(), Timestamp(3_600_000));
        state.remember(id(1), Cached::new(Some(key(1)), hour));
        let before = |ms: i64| Timestamp(hour.0 - ms);
        assert!(state.seen(id(1), before(FRESH_MS - 1), FRESH_MS).is_some(), "two requests at once");
        assert!(state.seen(id(1), before(FRESH_MS), FRESH_MS).is_none());
        assert!(state.seen(id(1), before(STALE_MS), STALE_MS).is_none());
    }

    #[test]
    fn a_key_counts_for_seconds_and_for_minutes_without_the_store() {
        let mut state = CacheState::default();
        state.remember(id(1), Cached::new(Some(key(1)), Timestamp(0)));
        assert!(state.seen(id(1), Timestamp(FRESH_MS - 1), FRESH_MS).is_some());
        assert!(state.seen(id(1), Timestamp(FRESH_MS), FRESH_MS).is_none());
        assert!(state.seen(id(1), Timestamp(FRESH_MS), STALE_MS).is_some());
        assert!(state.seen(id(1), Timestamp(STALE_MS), STALE_MS).is_none());
    }
}
