//! Messages that ended lately, so that late duplicates are dropped without asking the store.

use std::collections::VecDeque;

use hashbrown::HashSet;
use model::MessageKey;

/// A bounded exact memory; what falls out is found by a look-up instead.
#[derive(Debug)]
pub(crate) struct Recent {
    capacity: usize,
    keys: HashSet<MessageKey, foldhash::fast::FixedState>,
    order: VecDeque<MessageKey>,
}

impl Recent {
    pub(crate) fn new(capacity: usize, hash_seed: u64) -> Self {
        let hasher = foldhash::fast::FixedState::with_seed(hash_seed);
        Self { capacity, keys: HashSet::with_hasher(hasher), order: VecDeque::new() }
    }

    pub(crate) fn insert(&mut self, key: MessageKey) {
        if !self.keys.insert(key.clone()) {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, key: &MessageKey) -> bool {
        self.keys.contains(key)
    }
}
