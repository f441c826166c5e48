//! Caches of what was read from Postgres and decides about inputs: recently used threads accept
//! inputs while Postgres is unavailable.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{AgentId, BusyPolicy, Tenant, ThreadId, Timestamp};

/// Time an entry is used while Postgres is unavailable, ms; the same as for cached API keys.
const STALE_MS: i64 = 5 * 60_000;
/// Maximum number of entries.
const MOST: usize = 10_000;

/// Settings that decide how a thread accepts an input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThreadSettings {
    /// The agent that answers.
    pub(crate) agent: AgentId,
    /// The thread's default policy.
    pub(crate) policy: BusyPolicy,
    /// The thread has a user.
    pub(crate) has_user: bool,
    /// A client's instructions are appended to the agent's.
    pub(crate) appends_instructions: bool,
}

/// Settings of threads. The key is the thread, and the agent that the input names.
pub(crate) type SettingsCache = StaleCache<(ThreadId, Option<AgentId>), ThreadSettings>;

/// Agents by their aliases; `None`: no agent of the tenant has the alias.
pub(crate) type AliasCache = StaleCache<(Option<Tenant>, String), Option<AgentId>>;

/// Values that were read a few minutes ago at most.
#[derive(Debug)]
pub(crate) struct StaleCache<K, V> {
    entries: Mutex<HashMap<K, (V, Timestamp)>>,
}

impl<K, V> Default for StaleCache<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> StaleCache<K, V> {
    /// The value, if it was read a few minutes ago at most.
    pub(crate) fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let entries = self.entries();
        let (known, at) = entries.get(key)?;
        (now.since_ms(*at) < STALE_MS).then(|| known.clone())
    }

    /// Stores a value that has just been read.
    pub(crate) fn set(&self, key: K, read: V, now: Timestamp) {
        let mut entries = self.entries();
        if entries.len() >= MOST && !entries.contains_key(&key) {
            entries.retain(|_, (_, at)| now.since_ms(*at) < STALE_MS);
            if entries.len() >= MOST {
                entries.clear();
            }
        }
        entries.insert(key, (read, now));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<K, (V, Timestamp)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_values_last_minutes() {
        let cache = StaleCache::default();
        cache.set("a", 1, Timestamp(0));
        assert_eq!(cache.get(&"a", Timestamp(STALE_MS - 1)), Some(1));
        assert_eq!((cache.get(&"a", Timestamp(STALE_MS)), cache.get(&"b", Timestamp(0))), (None, None));
    }

    #[test]
    fn it_is_bounded() {
        let cache = StaleCache::default();
        for number in 0..3 * MOST {
            cache.set(number, (), Timestamp(0));
        }
        assert!(cache.entries().len() <= MOST);
        assert!(cache.get(&(3 * MOST - 1), Timestamp(0)).is_some());
    }
}
