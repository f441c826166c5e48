//! Walks through a thread from its beginning in pages. Memory use is bounded, whatever the length
//! of the thread.

use std::collections::VecDeque;

use batches::Item;
use model::{Position, ThreadId};
use store::{IndexedMessage, Store, StoreError};

/// Messages whose index rows are read at once.
const PAGE: u32 = 2_000;
/// Approximate maximum size of the batches of a page. A single batch may be larger.
const PAGE_BYTES: u64 = 8 << 20;
/// Maximum number of batches of a page.
const PAGE_BATCHES: usize = 200;

/// A contiguous part of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Batches that begin in this part.
    pub starts: Vec<Position>,
    /// Batches without a first message that occur in this part.
    pub headless: Vec<Position>,
    /// Messages that are apart from their batch and not marked: readers of the batch do not find
    /// them.
    pub unmarked: Vec<IndexedMessage>,
    /// Number of messages in this part.
    pub messages: u64,
}

/// Pages from the beginning of a thread up to a position.
#[derive(Debug)]
pub struct BatchPages<'a> {
    store: &'a Store,
    thread: &'a ThreadId,
    through: Position,
    /// Position of the last index row that was read.
    after: Option<Position>,
    is_read: bool,
    places: VecDeque<IndexedMessage>,
    /// The current batch, while its messages have followed each other without a gap since its
    /// beginning.
    together: Option<Position>,
    /// Position of the preceding message.
    before: Option<Position>,
}

impl<'a> BatchPages<'a> {
    /// Starts after `after`, or at the beginning of the thread.
    pub fn new(store: &'a Store, thread: &'a ThreadId, through: Position, after: Option<Position>) -> Self {
        let places = VecDeque::new();
        Self { store, thread, through, after, is_read: false, places, together: None, before: None }
    }

    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Page>, StoreError> {
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
        // A batch without its first message is still found, unless another message is in the place
        // of the first one.
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

/// All messages of these batches up to a position. Batches in `scattered` are searched in the whole
/// thread.
pub async fn read(
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
