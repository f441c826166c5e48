//! The last values of a partition by key: data of active turns for traces and the log.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Maximum number of values; beyond it the oldest are forgotten.
const MOST_REMEMBERED: usize = 4_096;

/// The last values by key.
pub(super) struct Remembered<K, V> {
    /// Values with their insertion numbers.
    values: HashMap<K, (u64, V)>,
    /// Keys in insertion order, including those already taken.
    order: VecDeque<(u64, K)>,
    last: u64,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new(), last: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Remembered<K, V> {
    pub(super) fn set(&mut self, key: K, value: V) {
        if let Some((_, known)) = self.values.get_mut(&key) {
            *known = value;
            return;
        }
        self.last += 1;
        self.values.insert(key.clone(), (self.last, value));
        self.order.push_back((self.last, key));
        if self.order.len() > MOST_REMEMBERED
            && let Some((number, oldest)) = self.order.pop_front()
            // A key that was taken may have been set again meanwhile.
            && self.values.get(&oldest).is_some_and(|(last, _)| *last == number)
        {
            self.values.remove(&oldest);
        }
    }

    pub(super) fn of(&self, key: &K) -> Option<&V> {
        self.values.get(key).map(|(_, value)| value)
    }

    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(key).map(|(_, value)| value)
    }

    pub(super) fn take(&mut self, key: &K) -> Option<V> {
        self.values.remove(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut remembered = Remembered::default();
        for key in 0..MOST_REMEMBERED + 2 {
            remembered.set(key, key);
        }
        assert_eq!((remembered.of(&0), remembered.of(&1)), (None, None));
        assert_eq!(remembered.take(&2), Some(2));
        assert_eq!((remembered.take(&2), remembered.values.len()), (None, MOST_REMEMBERED - 1));
        remembered.set(5, 50);
        assert_eq!((remembered.of(&5), remembered.order.len()), (Some(&50), MOST_REMEMBERED));
    }

    #[test]
    fn what_comes_again_after_it_was_taken_counts_from_then() {
        let mut remembered = Remembered::default();
        remembered.set(0, 1);
        assert_eq!(remembered.take(&0), Some(1));
        remembered.set(0, 2);
        for key in 1..MOST_REMEMBERED {
            remembered.set(key, key);
        }
        assert_eq!(remembered.of(&0), Some(&2), "one has gone: that of its first coming");
        remembered.set(MOST_REMEMBERED, 0);
        assert_eq!(remembered.of(&0), None);
    }
}
