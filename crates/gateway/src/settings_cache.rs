//! Cache of the settings that decide about inputs: recently used threads accept inputs while
//! Postgres is unavailable.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use model::{AgentId, BusyPolicy, ThreadId, Timestamp};

/// Time an entry is used while Postgres is unavailable, ms; the same as for cached API keys.
const STALE_MS: i64 = 5 * 60_000;
/// Maximum number of entries: threads with the agents named in their inputs.
const MOST: usize = 10_000;

/// Settings that decide how a thread accepts an input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ThreadSettings {
    /// The agent that answers.
    pub(crate) agent: AgentId,
    /// The thread's default policy.
    pub(crate) policy: BusyPolicy,
    /// A client's instructions are appended to the agent's.
    pub(crate) appends_instructions: bool,
    /// Earlier messages in a request that names no thread are ignored.
    pub(crate) ignores_history: bool,
}

/// The thread, and the agent that the input names.
type SettingsKey = (ThreadId, Option<AgentId>);

/// The settings of recently used threads.
#[derive(Debug, Default)]
pub(crate) struct SettingsCache {
    settings: Mutex<HashMap<SettingsKey, (ThreadSettings, Timestamp)>>,
}

impl SettingsCache {
    /// The settings, if they were read a few minutes ago at most.
    pub(crate) fn get(
        &self,
        thread: &ThreadId,
        named: Option<&AgentId>,
        now: Timestamp,
    ) -> Option<ThreadSettings> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, at) = settings.get(&(thread.clone(), named.cloned()))?;
        (now.since_ms(*at) < STALE_MS).then(|| known.clone())
    }

    /// Stores settings that have just been read.
    pub(crate) fn set(
        &self,
        thread: &ThreadId,
        named: Option<&AgentId>,
        read: ThreadSettings,
        now: Timestamp,
    ) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (thread.clone(), named.cloned());
        if settings.len() >= MOST && !settings.contains_key(&key) {
            settings.retain(|_, (_, at)| now.since_ms(*at) < STALE_MS);
            if settings.len() >= MOST {
                settings.clear();
            }
        }
        settings.insert(key, (read, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(number: usize) -> ThreadId {
        ThreadId::parse(&format!("t{number}")).expect("an id")
    }

    fn settings(agent: &str) -> ThreadSettings {
        let agent = AgentId::parse(agent).expect("an id");
        ThreadSettings {
            agent,
            policy: BusyPolicy::default(),
            appends_instructions: false,
            ignores_history: true,
        }
    }

    #[test]
    fn cached_settings_last_minutes_and_belong_to_one_agent() {
        let (settings_cache, other) = (SettingsCache::default(), AgentId::parse("b").expect("an id"));
        settings_cache.set(&thread(1), None, settings("a"), Timestamp(0));
        let get = |named, at| settings_cache.get(&thread(1), named, Timestamp(at));
        assert_eq!(get(None, STALE_MS - 1), Some(settings("a")));
        assert_eq!((get(None, STALE_MS), get(Some(&other), 0)), (None, None));
    }

    #[test]
    fn it_is_bounded() {
        let settings_cache = SettingsCache::default();
        for number in 0..3 * MOST {
            settings_cache.set(&thread(number), None, settings("a"), Timestamp(0));
        }
        assert!(settings_cache.settings.lock().expect("no panic").len() <= MOST);
        assert!(settings_cache.get(&thread(3 * MOST - 1), None, Timestamp(0)).is_some());
    }
}
