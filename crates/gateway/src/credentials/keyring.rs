//! API keys that were seen lately, so that not every request asks the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use access::{Bucket, KeyId, Rate, StoredKey};
use model::Timestamp;
use store::Store;

use super::Denied;

/// So long a key counts as it was read: a key that is revoked counts no longer than this.
const FRESH_MS: i64 = 5_000;
/// And so long while the store cannot be read: streams and inputs go on while Postgres is away.
const STALE_MS: i64 = 5 * 60_000;
/// So long nobody else reads a key that somebody reads.
const READ_MS: i64 = 1_000;
/// Keys that are remembered, with those that do not exist.
const MOST: usize = 10_000;
/// Reads of the store in a second, and at once, for ids of which no key is known: who guesses ids costs the database no more than
/// that. Keys that are known do not pay: whoever guesses must not keep them from being looked at again.
const GUESSES: (u32, u32) = (200, 400);

#[derive(Debug, Default)]
pub(super) struct Keyring {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: HashMap<KeyId, Seen>,
    used: HashSet<KeyId>,
    guesses: Option<Bucket>,
}

#[derive(Debug)]
struct Seen {
    key: Option<StoredKey>,
    at: Timestamp,
    /// When it was last tried to read it again.
    asked_at: Timestamp,
}

impl Keyring {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key as it is stored, or was some seconds ago; `None` when there is none.
    pub(super) async fn key(
        &self,
        store: &Store,
        id: KeyId,
        now: Timestamp,
    ) -> Result<Option<StoredKey>, Denied> {
        if let Some(seen) = self.state().seen(id, now, FRESH_MS) {
            return Ok(seen);
        }
        if !self.state().reads_now(id, now) {
            // Somebody reads it at the moment, or too much is being read: what was known goes on counting.
            let known = self.state().seen(id, now, STALE_MS);
            return known.ok_or(Denied::Away("too many credentials are being looked up; try again"));
        }
        match store.of_all().key(id).await {
            Ok(row) => {
                let key = row.map(|row| row.key);
                self.state().remember(id, Seen { key: key.clone(), at: now, asked_at: now });
                Ok(key)
            }
            Err(error) => {
                tracing::debug!(%error, "a key cannot be looked up");
                let known = self.state().seen(id, now, STALE_MS);
                known.ok_or(Denied::Away("the database cannot be reached at the moment"))
            }
        }
    }

    /// Reads these keys again, all in one statement: however many there are, a store that is away is waited for once.
    pub(super) async fn read_again(&self, store: &Store, ids: &HashSet<KeyId>, now: Timestamp) {
        let stale: Vec<_> = {
            let state = self.state();
            ids.iter().filter(|id| state.seen(**id, now, FRESH_MS).is_none()).copied().collect()
        };
        if stale.is_empty() {
            return;
        }
        match store.of_all().keys_of(&stale).await {
            Ok(rows) => {
                let mut found: HashMap<_, _> = rows.into_iter().map(|row| (row.key.id, row.key)).collect();
                let mut state = self.state();
                for id in stale {
                    state.remember(id, Seen { key: found.remove(&id), at: now, asked_at: now });
                }
            }
            Err(error) => tracing::debug!(%error, "keys cannot be looked up"),
        }
    }

    /// What is remembered of a key, though it may be old; nothing when nothing is.
    pub(super) fn known(&self, id: KeyId, now: Timestamp) -> Option<Option<StoredKey>> {
        self.state().seen(id, now, STALE_MS)
    }

    pub(super) fn used(&self, id: KeyId) {
        self.state().used.insert(id);
    }

    /// Writes which keys were used since the last time.
    pub(super) async fn note_used(&self, store: &Store) {
        let used: Vec<_> = self.state().used.drain().collect();
        if used.is_empty() {
            return;
        }
        if let Err(error) = store.of_all().keys_used(&used).await {
            tracing::debug!(%error, "it cannot be noted which keys are used");
        }
    }
}

impl State {
    fn seen(&self, id: KeyId, now: Timestamp, for_ms: i64) -> Option<Option<StoredKey>> {
        let seen = self.seen.get(&id)?;
        // A clock that was set back makes nothing older than it is.
        (now.since_ms(seen.at) < for_ms).then(|| seen.key.clone())
    }

    /// Whether this caller is the one who reads the key now.
    fn reads_now(&mut self, id: KeyId, now: Timestamp) -> bool {
        let seen = self.seen.get(&id);
        if seen.is_some_and(|seen| now.since_ms(seen.asked_at) < READ_MS) {
            return false;
        }
        let may = seen.is_some_and(|seen| seen.key.is_some()) || self.may_guess(now);
        if let Some(seen) = self.seen.get_mut(&id).filter(|_| may) {
            seen.asked_at = now;
        }
        may
    }

    fn may_guess(&mut self, now: Timestamp) -> bool {
        let full = || Rate::new(GUESSES.0, GUESSES.1).ok().map(|rate| Bucket::new(rate, now));
        match self.guesses.as_mut() {
            Some(guesses) => guesses.take(now),
            None => {
                self.guesses = full();
                true
            }
        }
    }

    fn remember(&mut self, id: KeyId, seen: Seen) {
        if self.seen.len() >= MOST {
            // First what names nothing: whoever guesses must not make us forget those that exist.
            self.seen.retain(|_, seen| seen.key.is_some());
        }
        if self.seen.len() >= MOST {
            self.seen.clear();
        }
        self.seen.insert(id, seen);
    }
}

#[cfg(test)]
mod tests {
    use access::{NewKey, Role, TenantName};

    use super::*;

    fn id(n: u64) -> KeyId {
        NewKey::from_random(n.to_be_bytes(), [0; 32]).id()
    }

    fn key(n: u64) -> StoredKey {
        StoredKey {
            id: id(n),
            digest: [0; 32],
            tenant: TenantName::default(),
            role: Role::Viewer,
            scopes: None,
            name: String::new(),
            expires_at: None,
            revoked_at: None,
        }
    }

    fn seen(key: Option<StoredKey>, at: Timestamp) -> Seen {
        Seen { key, at, asked_at: at }
    }

    #[test]
    fn one_of_many_reads_a_key_again() {
        let mut state = State::default();
        state.remember(id(1), seen(Some(key(1)), Timestamp(0)));
        let now = Timestamp(FRESH_MS);
        assert_eq!((0..100).filter(|_| state.reads_now(id(1), now)).count(), 1);
        // Who reads it may never come back.
        assert!(state.reads_now(id(1), now.plus_ms(READ_MS)));
        assert!(state.seen(id(1), now, STALE_MS).is_some());
    }

    #[test]
    fn who_guesses_fills_nothing_and_displaces_nobody() {
        let (mut state, now) = (State::default(), Timestamp(1_000_000));
        state.remember(id(0), seen(Some(key(0)), now));
        for n in 1..50_000 {
            state.remember(id(n), seen(None, now));
        }
        assert!(state.seen.len() <= MOST);
        assert_eq!(state.seen(id(0), now, FRESH_MS), Some(Some(key(0))));
        let reads = (50_000..60_000).filter(|n| state.reads_now(id(*n), now)).count();
        assert_eq!(reads, GUESSES.1 as usize + 1);
        // The one that is known is read again all the same, or it would count although it was revoked.
        let later = now.plus_ms(FRESH_MS);
        assert!((60_000..70_000).any(|n| !state.reads_now(id(n), later)));
        assert!(!state.reads_now(id(70_000), later));
        assert!(state.reads_now(id(0), later));
    }

    #[test]
    fn a_key_counts_for_seconds_and_for_minutes_without_the_store() {
        let mut state = State::default();
        state.remember(id(1), seen(Some(key(1)), Timestamp(0)));
        assert!(state.seen(id(1), Timestamp(FRESH_MS - 1), FRESH_MS).is_some());
        assert!(state.seen(id(1), Timestamp(FRESH_MS), FRESH_MS).is_none());
        assert!(state.seen(id(1), Timestamp(FRESH_MS), STALE_MS).is_some());
        assert!(state.seen(id(1), Timestamp(STALE_MS), STALE_MS).is_none());
    }
}
