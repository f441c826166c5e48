//! Caches the ends of threads: the messages in the context of the last turn that started here, and
//! the messages committed here since. The next turn of a thread then reads only what the cache
//! lacks: messages written by others, and continued batches.
//!
//! Every cached end is verified: in the statement that starts a turn, the store compares the
//! thread's version with the cached one. The cache is dropped with its session, so a new owner
//! starts empty.

use std::collections::HashMap;
use std::sync::Arc;

use batches::context::LastMessages;
use batches::{Item, SharedItem};
use hashlink::LinkedHashMap;
use metrics::{counter, gauge};
use model::{Message, ThreadId, Timestamp};
use store::{StartContext, ThreadVersion};

use crate::metrics::{THREAD_CACHE_BYTES, THREAD_READS};
use crate::thread_cache_limit::ThreadCacheLimit;

/// Minimum number of cached messages per thread, if they fit; the first query reads this number.
pub(super) const LEAST_MESSAGES: usize = 64;
/// One thread may use at most an eighth of all bytes: 8 MiB by default.
const PARTS: usize = 8;
/// Bytes of a thread and of a message in addition to their texts.
const THREAD_BYTES: usize = 256;
const MESSAGE_BYTES: usize = 320;

/// The end of a thread at one of its versions.
#[derive(Debug, Clone)]
pub(super) struct ThreadEnd {
    version: ThreadVersion,
    /// Sorted newest first.
    newest: Vec<RememberedItem>,
    /// True if the thread has no other messages.
    is_all: bool,
}

/// A message with its size in bytes, which is computed once: a turn adds two messages to dozens of
/// cached ones.
#[derive(Debug, Clone)]
struct RememberedItem {
    item: SharedItem,
    bytes: usize,
}

impl RememberedItem {
    /// Counts the message's size twice: as stored, and as encoded for turn requests.
    fn new(item: &SharedItem) -> Self {
        let size = usize::try_from(item.bytes()).unwrap_or(usize::MAX);
        Self { item: item.clone(), bytes: size.saturating_mul(2).saturating_add(MESSAGE_BYTES) }
    }
}

impl ThreadEnd {
    pub(super) fn version(&self) -> ThreadVersion {
        self.version
    }

    fn bytes(&self) -> usize {
        self.newest.iter().map(|item| item.bytes).sum::<usize>() + THREAD_BYTES
    }
}

/// Adds the cached messages to those read, unless the store reports a different version.
pub(super) fn complete(found: &mut StartContext, known: Option<&ThreadEnd>) {
    let reads = match (known, found.goes_on) {
        (Some(_), true) if found.messages.newest.is_empty() => "none",
        (Some(_), true) => "new",
        _ => "all",
    };
    counter!(THREAD_READS, "messages" => reads).increment(1);
    if let (Some(known), true) = (known, found.goes_on) {
        let newest = known.newest.iter().map(|known| known.item.clone()).collect();
        found.messages.extend(LastMessages { newest, is_all: known.is_all });
    }
}

/// Cache of one session; the thread whose last turn started longest ago is forgotten first.
#[derive(Debug)]
pub(super) struct ThreadCache {
    threads: LinkedHashMap<ThreadId, (Arc<ThreadEnd>, usize)>,
    bytes: usize,
    limit: Arc<ThreadCacheLimit>,
}

impl ThreadCache {
    pub(super) fn new(limit: Arc<ThreadCacheLimit>) -> Self {
        Self { threads: LinkedHashMap::new(), bytes: 0, limit }
    }

    pub(super) fn get(&self, thread: &ThreadId) -> Option<Arc<ThreadEnd>> {
        self.threads.get(thread).map(|(end, _)| Arc::clone(end))
    }

    /// Caches the messages with which a turn of the thread started.
    pub(super) fn insert(&mut self, thread: &ThreadId, found: &StartContext) {
        let before = self.forget(thread);
        let Some(version) = found.version else { return };
        let mut known = before.iter().flat_map(|end| &end.newest).peekable();
        let mut room = self.limit.max_bytes() / PARTS;
        let remembered = |item: &SharedItem| {
            let remembered = match known.next_if(|known| known.item.is_shared_with(item)) {
                Some(known) => known.clone(),
                None => RememberedItem::new(item),
            };
            room = room.checked_sub(remembered.bytes)?;
            Some(remembered)
        };
        let newest: Vec<_> = found.messages.newest.iter().map_while(remembered).collect();
        let is_all = found.messages.is_all && newest.len() == found.messages.newest.len();
        if newest.is_empty() {
            // Not even the last message fits.
            return;
        }
        let end = ThreadEnd { version, newest, is_all };
        let bytes = end.bytes();
        let used = self.limit.take(bytes);
        self.bytes += bytes;
        self.threads.insert(thread.clone(), (Arc::new(end), bytes));
        self.make_room(used);
    }

    /// Adds the messages that one commit wrote at time `now`. Assumes that nothing else was written
    /// to their threads; the next turn checks this.
    pub(super) fn extend(&mut self, messages: Vec<Message>, now: Timestamp) {
        let mut of_threads: HashMap<ThreadId, Vec<Message>> = HashMap::new();
        for message in messages {
            if self.threads.contains_key(&message.key.thread) {
                of_threads.entry(message.key.thread.clone()).or_default().push(message);
            }
        }
        for (thread, mut messages) in of_threads {
            messages.sort_by_key(|message| message.placement.position);
            let items = messages.into_iter().map(|message| Item::written(message, now).map(SharedItem::from));
            if let Some(items) = items.collect::<Option<Vec<_>>>() {
                self.add(&thread, &items);
            }
        }
        self.make_room(self.limit.used_bytes());
    }

    /// Adds messages in the order of their positions.
    fn add(&mut self, thread: &ThreadId, items: &[SharedItem]) {
        let Some((end, bytes)) = self.threads.get_mut(thread) else { return };
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return };
        if first.position <= end.version.head {
            return;
        }
        let end = Arc::make_mut(end);
        end.version.head = last.position;
        end.version.messages += items.len() as i64;
        end.newest.splice(..0, items.iter().rev().map(RememberedItem::new));
        let mut size = end.bytes();
        while size > self.limit.max_bytes() / PARTS
            && let Some(oldest) = end.newest.pop()
        {
            (size, end.is_all) = (size - oldest.bytes, false);
        }
        let before = std::mem::replace(bytes, size);
        let is_empty = end.newest.is_empty();
        self.bytes = self.bytes - before + size;
        self.limit.take(size);
        self.limit.give_back(before);
        if is_empty {
            self.forget(thread);
        }
    }

    fn forget(&mut self, thread: &ThreadId) -> Option<Arc<ThreadEnd>> {
        let (end, bytes) = self.threads.remove(thread)?;
        self.give_back(bytes);
        Some(end)
    }

    fn make_room(&mut self, used: usize) {
        let mut over = used.saturating_sub(self.limit.max_bytes());
        while over > 0
            && let Some((_, (_, bytes))) = self.threads.pop_front()
        {
            self.give_back(bytes);
            over = over.saturating_sub(bytes);
        }
        gauge!(THREAD_CACHE_BYTES).set(self.limit.used_bytes() as f64);
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.limit.give_back(bytes);
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use batches::context::input;
    use model::{BatchType, MessageId, MessageKey, Metadata, Placement, Position, Role};

    use super::*;

    fn thread(name: &str) -> ThreadId {
        ThreadId::parse(name).unwrap()
    }

    fn item(position: i64, text: &str) -> SharedItem {
        let id = MessageId::parse(&format!("m{position}")).unwrap();
        let item = input(id, text.to_owned(), Metadata::EMPTY, None, Timestamp(0));
        Item { position: Position::from_stored(position), ..item }.into()
    }

    fn found(positions: impl DoubleEndedIterator<Item = i64>, is_all: bool) -> StartContext {
        let newest: Vec<_> = positions.rev().map(|position| item(position, "text")).collect();
        let head = newest.first().map_or(Position::from_stored(1), |item| item.position);
        let version = ThreadVersion { created_us: 1, revision: 0, head, messages: newest.len() as i64 };
        let messages = LastMessages { newest, is_all };
        StartContext { version: Some(version), messages, ..StartContext::default() }
    }

    fn positions(context: &StartContext) -> Vec<i64> {
        context.messages.newest.iter().map(|item| item.position.get()).collect()
    }

    #[test]
    fn what_is_new_stands_before_what_is_known() {
        let mut cache = ThreadCache::new(Arc::new(ThreadCacheLimit::new(1 << 20)));
        cache.insert(&thread("a"), &found(1..=3, true));
        let known = cache.get(&thread("a"));
        let mut next = StartContext { goes_on: true, ..found(4..=5, false) };
        complete(&mut next, known.as_deref());
        assert_eq!((positions(&next), next.messages.is_all), (vec![5, 4, 3, 2, 1], true));
        let mut other = StartContext { goes_on: false, ..found(4..=5, false) };
        complete(&mut other, known.as_deref());
        assert_eq!((positions(&other), other.messages.is_all), (vec![5, 4], false));
    }

    fn written(position: i64, batch_type: BatchType) -> Message {
        let position = Position::from_stored(position);
        Message {
            key: MessageKey {
                thread: thread("a"),
                message: MessageId::parse(&format!("m{position}")).unwrap(),
            },
            placement: Placement { position, batch_id: position, sequence_num: 0, batch_type },
            role: Role::User,
            content: "text".to_owned(),
            tool_calls: None,
            tool_call_id: None,
            metadata: Metadata::EMPTY,
            token_count: Some(3),
            attempt: 0,
            times: model::MessageTimes::default(),
        }
    }

    #[test]
    fn a_committed_turn_is_added_to_what_is_known() {
        let mut cache = ThreadCache::new(Arc::new(ThreadCacheLimit::new(1 << 20)));
        cache.extend(vec![written(1, BatchType::UserRequest)], Timestamp(5));
        assert!(cache.get(&thread("a")).is_none(), "nothing is known of what came before");
        cache.insert(&thread("a"), &found(1..=3, true));
        let before = cache.get(&thread("a")).unwrap();
        // The messages of a turn, with a gap where another publisher wrote a message.
        let turn = || [6, 4].map(|position| written(position, BatchType::UserRequest)).to_vec();
        cache.extend(turn(), Timestamp(5));
        let after = cache.get(&thread("a")).unwrap();
        let version = ThreadVersion { head: Position::from_stored(6), messages: 5, ..before.version };
        assert_eq!((after.version, after.is_all, before.newest.len()), (version, true, 3));
        let newest: Vec<_> =
            after.newest.iter().map(|it| (it.item.position.get(), it.item.created_at.0)).collect();
        assert_eq!(newest, [(6, 5), (4, 5), (3, 0), (2, 0), (1, 0)]);
        assert_eq!((cache.bytes, cache.limit.used_bytes()), (after.bytes(), after.bytes()));
        // Two commits that cannot be cached: one has lower positions, because the clock of a
        // previous owner was ahead. The other continues a batch, and only the store knows the end
        // of it.
        cache.extend(turn(), Timestamp(5));
        cache.extend(
            vec![written(9, BatchType::UserRequest), written(10, BatchType::Continuation)],
            Timestamp(5),
        );
        assert_eq!(cache.get(&thread("a")).unwrap().version, version);
    }

    #[test]
    fn committed_messages_take_no_more_than_a_threads_part() {
        let mut cache = ThreadCache::new(Arc::new(ThreadCacheLimit::new(PARTS * 2_500)));
        cache.insert(&thread("a"), &found(1..=2, true));
        for position in 3..100 {
            cache.extend(vec![written(position, BatchType::UserRequest)], Timestamp(0));
            assert!(cache.bytes <= 2_500 && cache.limit.used_bytes() == cache.bytes);
        }
        let end = cache.get(&thread("a")).unwrap();
        let newest: Vec<_> = end.newest.iter().map(|it| it.item.position.get()).collect();
        assert_eq!((newest, end.is_all, end.version.messages), (vec![99, 98, 97], false, 99));
        let large = Message { content: "x".repeat(2_000), ..written(100, BatchType::UserRequest) };
        cache.extend(vec![large], Timestamp(0));
        assert!(cache.get(&thread("a")).is_none(), "its last message has no room");
        assert_eq!((cache.bytes, cache.limit.used_bytes()), (0, 0));
    }

    #[test]
    fn a_message_is_measured_once() {
        let mut cache = ThreadCache::new(Arc::new(ThreadCacheLimit::new(1 << 20)));
        cache.insert(&thread("a"), &found(1..=3, true));
        let first = cache.get(&thread("a")).unwrap();
        let mut next = StartContext { goes_on: true, ..found(4..=5, false) };
        complete(&mut next, Some(&first));
        cache.insert(&thread("a"), &next);
        let second = cache.get(&thread("a")).unwrap();
        let pairs = second.newest[2..].iter().zip(&first.newest);
        assert_eq!(pairs.filter(|(second, first)| second.item.is_shared_with(&first.item)).count(), 3);
        let afresh = next.messages.newest.iter().map(|item| RememberedItem::new(item).bytes).sum::<usize>();
        assert_eq!((second.bytes(), cache.bytes), (afresh + THREAD_BYTES, afresh + THREAD_BYTES));
    }

    #[test]
    fn a_thread_takes_no_more_than_its_part() {
        let mut cache = ThreadCache::new(Arc::new(ThreadCacheLimit::new(PARTS * 6_000)));
        cache.insert(&thread("a"), &found(1..=65, true));
        let end = cache.get(&thread("a")).unwrap();
        assert!(!end.is_all && (10..65).contains(&end.newest.len()), "{}", end.newest.len());
        assert_eq!(end.newest[0].item.position.get(), 65);
        assert!((5_000..=6_000 + THREAD_BYTES).contains(&cache.bytes), "{}", cache.bytes);
        cache.insert(&thread("b"), &found(1..=10, true));
        assert!(cache.get(&thread("b")).unwrap().is_all);
    }

    #[test]
    fn the_oldest_threads_go_when_the_worker_has_no_room() {
        // There is room for seven threads.
        let budget = Arc::new(ThreadCacheLimit::new(15_000));
        let (mut one, mut two) =
            (ThreadCache::new(Arc::clone(&budget)), ThreadCache::new(Arc::clone(&budget)));
        for name in ["a", "b", "c", "d", "e", "f", "g", "a", "h", "i"] {
            one.insert(&thread(name), &found(1..=3, true));
            assert!(budget.used_bytes() <= 15_000);
        }
        assert!(one.get(&thread("c")).is_none() && one.get(&thread("d")).is_some());
        assert!(one.get(&thread("a")).is_some(), "it was inserted again");
        two.insert(&thread("x"), &found(1..=3, true));
        assert!(budget.used_bytes() <= 15_000, "the last one has no room");
        drop(one);
        two.insert(&thread("y"), &found(1..=3, true));
        assert!(two.get(&thread("y")).is_some());
        drop(two);
        assert_eq!(budget.used_bytes(), 0);
    }
}
