//! A message that many contexts share, with cached derived values.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde_json::value::RawValue;

use crate::{Item, TokenCounter, tokens};

/// An immutable message. Clones share it and its derived values, because every turn of a thread
/// uses the same messages.
#[derive(Clone)]
pub struct SharedItem(Arc<Shared>);

struct Shared {
    item: Item,
    /// The name of a counter, and its count.
    tokens: OnceLock<(&'static str, u64)>,
    json: OnceLock<Option<Box<RawValue>>>,
}

impl SharedItem {
    /// Tokens in a context, see [`tokens::of_item`]. They are counted once, unless the counter
    /// changes.
    pub fn tokens(&self, counter: &dyn TokenCounter) -> u64 {
        let count = || tokens::of_item(self, counter);
        match self.0.tokens.get_or_init(|| (counter.name(), count())) {
            (name, tokens) if *name == counter.name() => *tokens,
            _ => count(),
        }
    }

    /// The cached result of the first `encode`. It is valid for later calls because the whole
    /// program uses one form of messages.
    pub fn json(&self, encode: impl FnOnce(&Item) -> Option<Box<RawValue>>) -> Option<&RawValue> {
        self.0.json.get_or_init(|| encode(self)).as_deref()
    }

    /// True if both share one allocation.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<Item> for SharedItem {
    fn from(item: Item) -> Self {
        Self(Arc::new(Shared { item, tokens: OnceLock::new(), json: OnceLock::new() }))
    }
}

impl Deref for SharedItem {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.0.item
    }
}

impl Borrow<Item> for SharedItem {
    fn borrow(&self) -> &Item {
        self
    }
}

impl PartialEq for SharedItem {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for SharedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.item.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::EstimatingCounter;
    use crate::testing::item;

    struct Bytes(std::sync::atomic::AtomicU64);

    impl TokenCounter for Bytes {
        fn name(&self) -> &'static str {
            "bytes"
        }

        fn count(&self, text: &str) -> u64 {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            text.len() as u64
        }
    }

    #[test]
    fn tokens_are_counted_once_by_each_counter() {
        let mut long = item("1.0u");
        long.content = "x".repeat(320);
        let (shared, bytes) = (SharedItem::from(long), Bytes(0.into()));
        let again = shared.clone();
        assert_eq!([shared.tokens(&bytes), again.tokens(&bytes)], [324, 324]);
        assert_eq!(bytes.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(again.tokens(&EstimatingCounter), 104, "another counter counts for itself");
        assert_eq!(shared.tokens(&bytes), 324);
    }

    #[test]
    fn json_is_encoded_once_for_all_clones() {
        let (shared, encoded) = (SharedItem::from(item("1.0u")), Cell::new(0));
        let encode = |item: &Item| {
            encoded.set(encoded.get() + 1);
            serde_json::value::to_raw_value(&item.content).ok()
        };
        let again = shared.clone();
        let texts = [&shared, &again, &shared].map(|of| of.json(encode).unwrap().get());
        let text = format!("{:?}", shared.content);
        assert_eq!((texts, encoded.get()), ([text.as_str(); 3], 1));
        let other = SharedItem::from(Item::clone(&shared));
        assert!(shared == other && !shared.is_shared_with(&other) && shared.is_shared_with(&again));
    }
}
