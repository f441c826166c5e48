//! Recent items by key, forgotten in the order in which they were added.
//!
//! Keys are exact and stored once: the table holds places in the queue instead of keys. Digests in
//! place of keys would be smaller, but a collision would drop new input.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use model::MessageKey;

use crate::types::CommandKey;

/// Approximate bytes of an entry in addition to itself and the text of its ids: a place in the
/// table, and reference counts.
const OVERHEAD: usize = 64;
/// Memory is released only above this number of entries.
const SMALL: usize = 64;

/// Key of a remembered item.
pub(crate) trait RecentKey: Eq + Hash {
    /// Bytes of the text of its ids.
    fn text_bytes(&self) -> usize;
}

impl RecentKey for MessageKey {
    fn text_bytes(&self) -> usize {
        self.thread.as_str().len() + self.message.as_str().len()
    }
}

impl RecentKey for CommandKey {
    fn text_bytes(&self) -> usize {
        match self {
            Self::Turn(thread, turn, _) => thread.as_str().len() + turn.as_str().len(),
            Self::Task(agent, task, origin) => {
                let origin = origin.as_ref().map_or(0, |origin| origin.as_str().len());
                agent.as_str().len() + task.as_str().len() + origin
            }
            Self::Control(agent, control, task) => {
                let task = task.as_ref().map_or(0, |task| task.as_str().len());
                agent.as_str().len() + control.as_str().len() + task
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    hasher: foldhash::fast::FixedState,
    /// Numbers of entries by key; the first of `entries` has the number `forgotten`.
    numbers: HashTable<u64>,
    entries: VecDeque<(K, V)>,
    forgotten: u64,
    bytes: usize,
}

impl<K: RecentKey, V> Recent<K, V> {
    pub(crate) fn new(hash_seed: u64) -> Self {
        let hasher = foldhash::fast::FixedState::with_seed(hash_seed);
        Self { hasher, numbers: HashTable::new(), entries: VecDeque::new(), forgotten: 0, bytes: 0 }
    }

    /// Remembers a value; an existing key keeps its value.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        let Self { hasher, numbers, entries, forgotten, bytes } = self;
        let hash = hasher.hash_one(&key);
        let first = *forgotten;
        let key_of = |number: u64| entries.get((number - first) as usize).map(|(key, _)| key);
        if numbers.find(hash, |number| key_of(*number) == Some(&key)).is_some() {
            return;
        }
        let hash_of = |number: &u64| key_of(*number).map_or(0, |key| hasher.hash_one(key));
        numbers.insert_unique(hash, first + entries.len() as u64, hash_of);
        *bytes += Self::size(&key);
        entries.push_back((key, value));
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let entry = |number: u64| self.entries.get((number - self.forgotten) as usize);
        let is_it = |number: &u64| entry(*number).is_some_and(|(other, _)| other == key);
        let number = self.numbers.find(self.hasher.hash_one(key), is_it)?;
        entry(*number).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let Self { hasher, numbers, entries, forgotten, .. } = self;
        let first = *forgotten;
        let is_it =
            |number: &u64| entries.get((number - first) as usize).is_some_and(|(other, _)| other == key);
        let number = numbers.find(hasher.hash_one(key), is_it)?;
        entries.get_mut((number - first) as usize).map(|(_, value)| value)
    }

    /// The oldest value.
    pub(crate) fn first(&self) -> Option<&V> {
        self.entries.front().map(|(_, value)| value)
    }

    pub(crate) fn forget_first(&mut self) {
        let Some((key, _)) = self.entries.pop_front() else { return };
        let number = self.forgotten;
        self.forgotten += 1;
        if let Ok(entry) = self.numbers.find_entry(self.hasher.hash_one(&key), |other| *other == number) {
            entry.remove();
        }
        self.bytes -= Self::size(&key);
        self.give_back();
    }

    /// Forgets the oldest entries until at most this many bytes are taken.
    pub(crate) fn keep_within(&mut self, bytes: usize) {
        while self.bytes > bytes {
            self.forget_first();
        }
    }

    /// Number of remembered entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of entries after the last one for which `is_before` holds; it must hold for a prefix.
    pub(crate) fn count_after(&self, is_before: impl Fn(&V) -> bool) -> usize {
        self.entries.len() - self.entries.partition_point(|(_, value)| is_before(value))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn size(key: &K) -> usize {
        size_of::<(K, V)>() + key.text_bytes() + OVERHEAD
    }

    /// Releases the memory that a burst took.
    fn give_back(&mut self) {
        let room = (self.entries.len() * 2).max(SMALL);
        if self.entries.capacity() > room * 2 {
            self.entries.shrink_to(room);
            let Self { hasher, numbers, entries, forgotten, .. } = self;
            numbers.shrink_to(room, |number| {
                entries.get((*number - *forgotten) as usize).map_or(0, |(key, _)| hasher.hash_one(key))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{MessageId, ThreadId};

    use super::*;

    fn key(number: usize) -> MessageKey {
        let message = MessageId::parse(&format!("m{number:04}")).unwrap();
        MessageKey { thread: ThreadId::parse("t").unwrap(), message }
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_nothing_else() {
        let mut recent = Recent::new(7);
        for number in 0..1_000 {
            recent.insert(key(number), number);
            recent.insert(key(number), 0);
        }
        let each = recent.bytes() / 1_000;
        recent.keep_within(each * 10);
        assert_eq!((recent.bytes(), recent.first()), (each * 10, Some(&990)));
        let known: Vec<usize> = (0..1_100).filter(|number| recent.get(&key(*number)).is_some()).collect();
        assert_eq!(known, (990..1_000).collect::<Vec<_>>());
        assert!((990..1_000).all(|number| recent.get(&key(number)) == Some(&number)));
        assert!(recent.entries.capacity() <= 4 * SMALL, "{}", recent.entries.capacity());
        assert!(recent.numbers.capacity() <= 8 * SMALL, "{}", recent.numbers.capacity());
        recent.keep_within(0);
        assert_eq!((recent.bytes(), recent.first(), recent.numbers.len()), (0, None, 0));
        recent.forget_first();
        recent.insert(key(3), 4);
        assert_eq!(recent.get(&key(3)), Some(&4));
    }

    #[test]
    fn ids_count_by_their_length() {
        let long = MessageKey { message: MessageId::parse(&"m".repeat(105)).unwrap(), ..key(0) };
        let mut recent = Recent::new(7);
        recent.insert(key(0), ());
        let short = recent.bytes();
        recent.insert(long, ());
        assert_eq!(recent.bytes(), 2 * short + 100);
    }
}
