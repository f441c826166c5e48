//! The open calls of a thread, which can be found by id, by tool, or by the tool's family.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A call without a result.
#[derive(Debug)]
pub(super) struct OpenCall {
    /// Index of its message in the thread.
    pub(super) message: usize,
    /// Index of the call in the message.
    pub(super) call: usize,
    pub(super) id: String,
    pub(super) name: String,
}

/// The key by which a result finds its call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum CallKey {
    Id(String),
    Name(String),
    /// The name up to its first dot: `web` of `web.run`.
    Family(String),
}

impl CallKey {
    /// The family of a tool.
    pub(super) fn family(name: &str) -> Self {
        Self::Family(name.split('.').next().unwrap_or_default().to_owned())
    }
}

/// The open calls, in order. No operation scans all of them.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    calls: BTreeMap<u64, OpenCall>,
    numbers: HashMap<CallKey, BTreeSet<u64>>,
    next: u64,
}

impl OpenCalls {
    pub(super) fn open(&mut self, call: OpenCall) {
        let number = self.next;
        self.next += 1;
        for key in keys(&call) {
            self.numbers.entry(key).or_default().insert(number);
        }
        self.calls.insert(number, call);
    }

    /// Closes the newest call with this id, because a later turn may reuse ids.
    pub(super) fn close_id(&mut self, id: &str) {
        let numbers = self.numbers.get(&CallKey::Id(id.to_owned()));
        if let Some(number) = numbers.and_then(|numbers| numbers.last().copied()) {
            self.close(number);
        }
    }

    /// Closes the first call with this key, and returns its id. Without a key, closes the first
    /// call of all.
    pub(super) fn close_first(&mut self, key: Option<&CallKey>) -> Option<String> {
        let number = match key {
            Some(key) => self.numbers.get(key)?.first().copied(),
            None => self.calls.keys().next().copied(),
        };
        self.close(number?).map(|call| call.id)
    }

    /// Indices of the open calls, by message.
    pub(super) fn by_message(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut places: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for call in self.calls.values() {
            places.entry(call.message).or_default().insert(call.call);
        }
        places
    }

    fn close(&mut self, number: u64) -> Option<OpenCall> {
        let call = self.calls.remove(&number)?;
        for key in keys(&call) {
            if let Some(numbers) = self.numbers.get_mut(&key) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.numbers.remove(&key);
                }
            }
        }
        Some(call)
    }
}

fn keys(call: &OpenCall) -> [CallKey; 3] {
    [CallKey::Id(call.id.clone()), CallKey::Name(call.name.clone()), CallKey::family(&call.name)]
}
