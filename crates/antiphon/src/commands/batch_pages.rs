//! Walking through a thread from its beginning, with little in memory however long it is.

use std::collections::VecDeque;

use batches::Item;
use model::{Position, ThreadId};
use store::{IndexedMessage, Store, StoreError};

/// Places that are read at once.
const PAGE: u32 = 2_000;
/// What the batches of a page may take together, about; a single one may take more.
const PAGE_BYTES: u64 = 8 << 20;
/// And how many they may be.
const PAGE_BATCHES: usize = 200;

/// A part of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// Batches that begin in it.
    pub(super) starts: Vec<Position>,
    /// Batches without a first message that are met in it.
    pub(super) headless: Vec<Position>,
    /// Messages that stand apart from their batch and are not marked: readers of the batch do not find them.
    pub(super) unmarked: Vec<IndexedMessage>,
    /// How many messages stand in it.
    pub(super) messages: u64,
}

/// From the beginning of a thread up to a position.
#[derive(Debug)]
pub(super) struct BatchPages<'a> {
    store: &'a Store,
    thread: &'a ThreadId,
    through: Position,
    /// The last place that was read.
    after: Option<Position>,
    is_read: bool,
    places: VecDeque<IndexedMessage>,
    /// The batch whose messages have stood beside each other since its beginning.
    together: Option<Position>,
    /// Where the message before stands.
    before: Option<Position>,
}

impl<'a> BatchPages<'a> {
    /// From behind `after`, or from the beginning.
    pub(super) fn new(
        store: &'a Store,
        thread: &'a ThreadId,
        through: Position,
        after: Option<Position>,
    ) -> Self {
        let places = VecDeque::new();
        Self { store, thread, through, after, is_read: false, places, together: None, before: None }
    }

    /// The next part; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Page>, StoreError> {
        let (mut page, mut bytes) = (Page::default(), 0);
        while bytes < PAGE_BYTES && page.starts.len() < PAGE_BATCHES {
            if self.places.is_empty() && !self.is_read {
                let page = self.store.message_index(self.thread, self.after, self.through, PAGE).await?;
                self.is_read = page.len() < PAGE as usize;
                self.after = page.last().map(|place| place.position).or(self.after);
                self.places.extend(page);
            }
            let Some(place) = self.places.pop_front() else { break };
            bytes += place.bytes;
            self.step(place, &mut page);
        }
        Ok((page.messages > 0).then_some(page))
    }

    fn step(&mut self, place: IndexedMessage, page: &mut Page) {
        page.messages += 1;
        let is_first = place.position == place.batch_id;
        // Without its first message a batch is found all the same where nothing stands in that one's stead.
        let is_behind_first = place.is_headless && self.before.is_none_or(|before| before < place.batch_id);
        self.before = Some(place.position);
        if is_first {
            page.starts.push(place.batch_id);
        }
        if is_first || is_behind_first {
            self.together = Some(place.batch_id);
        } else if self.together != Some(place.batch_id) {
            self.together = None;
            if !place.is_out_of_range {
                page.unmarked.push(place);
            }
        }
        if place.is_headless && !page.headless.contains(&place.batch_id) {
            page.headless.push(place.batch_id);
        }
    }
}

/// All messages of these batches up to a position. Those of `scattered` are looked for in the whole thread.
pub(super) async fn read(
    store: &Store,
    thread: &ThreadId,
    starts: &[Position],
    scattered: &[Position],
    through: Position,
) -> Result<Vec<Item>, StoreError> {
    let mut messages = store.batches(thread, starts).await?;
    for batch in scattered {
        messages.extend(store.messages_of_batch(thread, *batch).await?);
    }
    Ok(messages.into_iter().filter(|message| message.position <= through).map(Item::from).collect())
}
