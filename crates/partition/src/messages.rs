//! The open messages of a partition, by key, by thread and by slot.

use hashbrown::{Equivalent, HashMap};
use model::{MessageId, MessageKey, ThreadId, Timestamp};

use crate::look_ups::LookUps;
use crate::open::OpenMessage;

/// Index of an open message; stable while it is open.
pub(crate) type Slot = u32;

type Hasher = foldhash::fast::FixedState;

/// Borrowed key, so that a look-up per chunk clones nothing.
#[derive(Hash)]
struct KeyRef<'a> {
    thread: &'a ThreadId,
    message: &'a MessageId,
}

impl Equivalent<MessageKey> for KeyRef<'_> {
    fn equivalent(&self, key: &MessageKey) -> bool {
        *self.message == key.message && *self.thread == key.thread
    }
}

/// Slab of open messages with two indices. [`Messages::account`] updates the sums over these
/// messages.
#[derive(Debug)]
pub(crate) struct Messages {
    slots: Vec<Option<Box<OpenMessage>>>,
    free: Vec<Slot>,
    by_key: HashMap<MessageKey, Slot, Hasher>,
    by_thread: HashMap<ThreadId, Vec<Slot>, Hasher>,
    pub(crate) chunks: usize,
    pub(crate) bytes: usize,
    /// Messages with chunks to publish.
    pub(crate) touched: Vec<Slot>,
    pub(crate) look_ups: LookUps,
    /// Time of the last check for gaps.
    pub(crate) ticked_at: Timestamp,
    /// Time of the last check for stalls.
    pub(crate) swept_at: Timestamp,
}

impl Messages {
    pub(crate) fn new(hash_seed: u64, now: Timestamp) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::with_hasher(Hasher::with_seed(hash_seed)),
            by_thread: HashMap::with_hasher(Hasher::with_seed(hash_seed)),
            chunks: 0,
            bytes: 0,
            touched: Vec::new(),
            look_ups: LookUps::new(hash_seed),
            ticked_at: now,
            swept_at: now,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn find(&self, thread: &ThreadId, message: &MessageId) -> Option<Slot> {
        self.by_key.get(&KeyRef { thread, message }).copied()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut OpenMessage> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&OpenMessage> {
        self.slots.get(slot as usize)?.as_deref()
    }

    pub(crate) fn insert(&mut self, open: OpenMessage) -> Slot {
        let key = open.key.clone();
        self.chunks += open.received();
        self.bytes += open.bytes();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as Slot
        });
        self.slots[slot as usize] = Some(Box::new(open));
        self.by_thread.entry(key.thread.clone()).or_default().push(slot);
        self.by_key.insert(key, slot);
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<OpenMessage> {
        let open = *self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.by_key.remove(&open.key);
        if let Some(slots) = self.by_thread.get_mut(&open.key.thread) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.by_thread.remove(&open.key.thread);
            }
        }
        self.chunks -= open.received();
        self.bytes -= open.bytes();
        Some(open)
    }

    /// Changes a message and updates the sums.
    pub(crate) fn account<R>(&mut self, slot: Slot, change: impl FnOnce(&mut OpenMessage) -> R) -> Option<R> {
        let open = self.slots.get_mut(slot as usize)?.as_deref_mut()?;
        let before = (open.received(), open.bytes());
        let result = change(open);
        self.chunks = self.chunks + open.received() - before.0;
        self.bytes = self.bytes + open.bytes() - before.1;
        Some(result)
    }

    /// The messages of a thread, oldest first.
    pub(crate) fn of_thread(&self, thread: &ThreadId) -> impl Iterator<Item = &OpenMessage> {
        self.by_thread.get(thread).into_iter().flatten().filter_map(|slot| self.get(*slot))
    }

    pub(crate) fn slots_of_thread(&self, thread: &ThreadId) -> impl Iterator<Item = Slot> {
        self.by_thread.get(thread).into_iter().flatten().copied()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        0..self.slots.len() as Slot
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenMessage> {
        self.slots.iter().filter_map(|slot| slot.as_deref())
    }
}
