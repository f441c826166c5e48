//! Knows which messages have ended, from memory or from look-ups in the store.

use std::collections::BTreeMap;

use model::MessageKey;

use crate::recent::Recent;

#[derive(Debug)]
pub(crate) struct LookUps {
    /// Messages that ended recently.
    pub(crate) ended: Recent<MessageKey, ()>,
    pub(crate) wanted: Vec<MessageKey>,
    /// Number of messages being looked up.
    pub(crate) under_way: usize,
    /// Pending look-ups of messages that were forgotten meanwhile. An answer may be older than the
    /// message's end, so it is ignored for a message that was opened again.
    pub(crate) forgotten: BTreeMap<MessageKey, u32>,
}

impl LookUps {
    pub(crate) fn new(hash_seed: u64) -> Self {
        Self { ended: Recent::new(hash_seed), wanted: Vec::new(), under_way: 0, forgotten: BTreeMap::new() }
    }

    /// Messages to look up now; `None` if there are none.
    pub(crate) fn take(&mut self) -> Option<Vec<MessageKey>> {
        self.under_way += self.wanted.len();
        (!self.wanted.is_empty()).then(|| std::mem::take(&mut self.wanted))
    }

    /// Remembers that the message has ended: duplicates of its chunks that follow soon are dropped
    /// without a look-up. Beyond `most_bytes` the oldest are forgotten.
    pub(crate) fn remember(&mut self, key: MessageKey, most_bytes: usize) {
        self.ended.insert(key, ());
        self.ended.keep_within(most_bytes);
    }

    /// Subtracts one from the pending look-ups of a forgotten message; false if there is none.
    pub(crate) fn is_forgotten(&mut self, key: &MessageKey) -> bool {
        let Some(count) = self.forgotten.get_mut(key) else { return false };
        *count -= 1;
        if *count == 0 {
            self.forgotten.remove(key);
        }
        true
    }
}
