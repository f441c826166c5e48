//! The feed of one thread; see the crate's documentation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{
    Chunk, KnownMessage, LiveFrame, MessageEnd, MessageId, MessageOutcome, OpenInput, Position, ThreadId,
    Timestamp,
};
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageHeader, Native, StreamError, cursor};
use wire::query::{SnapshotReply, SnapshotRequest};

use crate::ended::{self, StorePage, StoreRead};
use crate::open::FeedMessage;
use crate::subscription::FeedEvent;

/// Pause after a query without a reply: first and maximum.
const ASK_PAUSE_MS: (i64, i64) = (250, 2_000);
/// Pause before another query to an owner that is not current or did not list a shown message.
const AGAIN_MS: i64 = 2_000;
/// A message is lost if this many consecutive replies of a current owner do not list it. One reply
/// is not enough: an owner that was frozen may briefly believe that it still owns the partition.
pub(crate) const ABSENT: u32 = 2;
/// Pause after a failed read from the store.
const READ_PAUSE_MS: i64 = 500;
/// Maximum bytes of frames that wait for a reply or for the store. Beyond it frames are dropped and
/// a new cut is requested.
const PENDING_BYTES: usize = 1 << 20;

/// Counts since the last call of [`Feed::take_counts`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FeedCounts {
    /// Number of times that an owner's cut replaced missing frames.
    pub gaps_filled: u64,
    /// Chunks that were already shown, or of a lower attempt or epoch.
    pub filtered: u64,
    /// Messages that were not shown while in progress, because too many were open.
    pub left_out: u64,
}

/// Merges one thread's cuts, frames and ends into one sequence of events; see the crate's
/// documentation.
#[derive(Debug)]
pub struct Feed {
    thread: ThreadId,
    pub(crate) native: Native,
    pub(crate) open: BTreeMap<MessageId, FeedMessage>,
    /// Epoch and number of the last merged frame; `None` before the first cut.
    mark: Option<(u64, u64)>,
    /// Lowest epoch of a current owner; owners of lower epochs are former ones.
    least_epoch: u64,
    /// Ends up to here have been shown or precede the feed; `None` until its start is known.
    pub(crate) through: Option<Position>,
    /// Ends up to here are known to exist.
    target: Position,
    /// The owner has changed, so the next page of the store must report whether the last shown end
    /// still exists. A store that has gone back in time has another owner and lacks ends.
    is_unsure: bool,
    /// A reply whose open text is shown after the ends that it includes.
    reply: Option<SnapshotReply>,
    /// Frames that wait for a reply or for the store.
    pending: BTreeMap<(u64, u64), LiveFrame>,
    pending_bytes: usize,
    /// The next frame is missing: nothing is shown before a reply with the state of the thread.
    is_blocked: bool,
    pub(crate) asks: SnapshotRequests,
    reads: StoreReads,
    /// More messages are open than are shown.
    pub(crate) left_out: bool,
    /// Number of messages opened so far.
    opened: u64,
    events: VecDeque<FeedEvent>,
    log_budget: usize,
    log_bytes: usize,
    counts: FeedCounts,
}

#[derive(Debug, Default)]
pub(crate) struct SnapshotRequests {
    pub(crate) wanted: bool,
    under_way: bool,
    pub(crate) not_before: Timestamp,
    pause_ms: i64,
    /// Number of replies so far.
    pub(crate) answered: u64,
    /// Number of consecutive replies, up to the last one, from one owner that has read its whole
    /// stream.
    pub(crate) current: u32,
}

#[derive(Debug, Default)]
struct StoreReads {
    under_way: bool,
    /// The current read began before the owner changed: the store may have gone back in time since.
    is_stale: bool,
    not_before: Timestamp,
}

impl SnapshotRequests {
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }
}

impl Feed {
    /// A feed that does not know the state of its thread yet. `log_budget`: bytes of open text kept
    /// for subscribers that join late.
    pub fn new(thread: ThreadId, log_budget: usize) -> Self {
        Self {
            native: Native::new(thread.clone(), Cursor::at(Position::from_stored(0))),
            thread,
            open: BTreeMap::new(),
            mark: None,
            least_epoch: 0,
            through: None,
            target: Position::from_stored(0),
            is_unsure: false,
            reply: None,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            is_blocked: true,
            asks: SnapshotRequests { wanted: true, ..SnapshotRequests::default() },
            reads: StoreReads::default(),
            left_out: false,
            opened: 0,
            events: VecDeque::new(),
            log_budget,
            log_bytes: 0,
            counts: FeedCounts::default(),
        }
    }

    /// The next event for every subscriber.
    pub fn next_event(&mut self) -> Option<FeedEvent> {
        self.events.pop_front()
    }

    /// The counts since the last call, for metrics.
    pub fn take_counts(&mut self) -> FeedCounts {
        std::mem::take(&mut self.counts)
    }

    /// The cursor of a subscriber that got every event.
    pub fn cursor(&self) -> &Cursor {
        self.native.cursor()
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.thread
    }

    /// The epoch of the owner of the last cut; `None` before the first cut.
    pub fn epoch(&self) -> Option<u64> {
        self.mark.map(|(epoch, _)| epoch)
    }

    /// True if the feed knows the state of its thread.
    pub fn has_begun(&self) -> bool {
        self.through.is_some()
    }

    /// Time at which [`Feed::poll_snapshot_request`] or [`Feed::poll_store_read`] returns
    /// something, if no input arrives earlier.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let ask = self.may_ask().then_some(self.asks.not_before);
        let read = self.read().filter(|_| !self.reads.under_way).map(|_| self.reads.not_before);
        ask.into_iter().chain(read).min()
    }

    /// While a reply waits for the store, a second one would be useless.
    fn may_ask(&self) -> bool {
        self.asks.wanted && !self.asks.under_way && self.reply.is_none()
    }

    /// Takes a frame of an owner.
    pub fn on_frame(&mut self, frame: LiveFrame, now: Timestamp) {
        let number = (frame.number.epoch, frame.number.number);
        if frame.thread != self.thread || self.mark.is_some_and(|mark| number <= mark) {
            self.counts.filtered += frame.chunks.len() as u64;
            return;
        }
        self.on_owner(number.0);
        self.pending_bytes += size(&frame);
        if let Some(twice) = self.pending.insert(number, frame) {
            self.pending_bytes -= size(&twice);
        }
        self.advance(now);
        if self.pending_bytes > PENDING_BYTES {
            self.pending.clear();
            self.pending_bytes = 0;
            self.block();
        }
    }

    /// Notes that an owner has sent frames of this thread up to this number.
    pub fn on_sent(&mut self, epoch: u64, number: u64) {
        self.asks.wanted |= self.mark.is_none_or(|mark| mark < (epoch, number));
    }

    /// Notes that the partition has an owner of this epoch. A query in flight may have gone to the
    /// former owner, which will never reply, so another one is sent at once.
    pub fn on_owner(&mut self, epoch: u64) {
        if epoch <= self.least_epoch {
            return;
        }
        self.least_epoch = epoch;
        if self.mark.is_none_or(|(known, _)| known < epoch) {
            let asks = &mut self.asks;
            (asks.wanted, asks.under_way) = (true, false);
            (asks.not_before, asks.pause_ms) = (Timestamp::default(), 0);
        }
    }

    /// Frames may have been missed: the connection was lost, the owner changed, or a queue
    /// overflowed.
    pub fn on_resync(&mut self) {
        self.asks.wanted = true;
    }

    /// Takes an owner's reply.
    pub fn on_reply(&mut self, reply: SnapshotReply, now: Timestamp) {
        let (cut, known) = (reply.cut, self.mark);
        let mark = (cut.epoch, cut.number);
        // The reply is from a former owner.
        if mark.0 < self.least_epoch.max(known.map_or(0, |(epoch, _)| epoch)) {
            return self.on_snapshot_failed(now);
        }
        (self.asks.under_way, self.asks.pause_ms) = (false, 0);
        self.asks.answered += 1;
        let is_same_owner = known.is_some_and(|(epoch, _)| epoch == cut.epoch);
        let before = if is_same_owner { self.asks.current } else { 0 };
        self.asks.current = if cut.is_current { before.saturating_add(1) } else { 0 };
        // Nothing was missing; frames have overtaken the reply.
        if known.is_some_and(|known| mark < known) {
            return;
        }
        (self.mark, self.is_blocked) = (Some(mark), false);
        if known.is_some() && !is_same_owner && self.through.is_some() {
            // The ends between the two cuts are unknown, and the former owner's report of committed
            // ends is no longer valid.
            (self.through, self.is_unsure) = (Some(self.native.cursor().base()), true);
            self.reads.is_stale = self.reads.under_way;
            self.target = cut.committed;
        }
        self.pending = self.pending.split_off(&(mark.0, mark.1 + 1));
        self.pending_bytes = self.pending.values().map(size).sum();
        // If no frame was missing, the frames have shown their ends.
        if known != Some(mark) {
            self.counts.gaps_filled += u64::from(known.is_some());
            self.target = self.target.max(cut.committed);
        }
        self.reply = Some(reply);
        self.advance(now);
    }

    /// Restarts all subscribers, because shown events do not exist any more. The store has gone
    /// back in time and lost ends, the stream has lost open messages, or a task was dropped with
    /// its answer. Subscribers discard everything after this end and all open messages, which are
    /// requested from their beginning.
    fn begin_anew(&mut self, end: Position) {
        self.open.clear();
        self.log_bytes = 0;
        self.reply = None;
        let bytes = self.native.restart(Cursor::at(end));
        self.events.push_back(FeedEvent { bytes, event: NativeEvent::Restart });
        self.block();
    }

    /// The query was not answered: there is no owner or no connection, or it timed out.
    pub fn on_snapshot_failed(&mut self, now: Timestamp) {
        let asks = &mut self.asks;
        (asks.under_way, asks.wanted) = (false, true);
        asks.pause_ms = (asks.pause_ms * 2).clamp(ASK_PAUSE_MS.0, ASK_PAUSE_MS.1);
        asks.not_before = now.plus_ms(asks.pause_ms);
    }

    /// The query to send now, if any; reply with [`Feed::on_reply`] or
    /// [`Feed::on_snapshot_failed`]. It replaces a query that is still in flight.
    pub fn poll_snapshot_request(&mut self, now: Timestamp) -> Option<SnapshotRequest> {
        if !self.may_ask() || now < self.asks.not_before {
            return None;
        }
        (self.asks.wanted, self.asks.under_way) = (false, true);
        let known = |(message, open): (&MessageId, &FeedMessage)| KnownMessage {
            message: message.clone(),
            attempt: open.seen().attempt,
            next: open.next(),
            has_input: open.has_input(),
        };
        let known = self.open.iter().map(known).collect();
        Some(SnapshotRequest { thread: self.thread.clone(), known, max_messages: cursor::MAX_OPEN as u32 })
    }

    /// The read from the store to start now, if any; reply with [`Feed::on_last`],
    /// [`Feed::on_page`] or [`Feed::on_read_failed`].
    pub fn poll_store_read(&mut self, now: Timestamp) -> Option<StoreRead> {
        if self.reads.under_way || now < self.reads.not_before {
            return None;
        }
        let read = self.read()?;
        self.reads.under_way = true;
        Some(read)
    }

    fn read(&self) -> Option<StoreRead> {
        self.mark?;
        let through = self.target;
        match self.through {
            None => Some(StoreRead::Last(through)),
            Some(after) if after < through || self.is_unsure => {
                Some(StoreRead::Ends { after, through: through.max(after), is_checked: self.is_unsure })
            }
            Some(_) => None,
        }
    }

    /// The answer to [`StoreRead::Last`]: the start of the feed; 0 if nothing of the thread has
    /// ended.
    pub fn on_last(&mut self, last: Position, now: Timestamp) {
        self.reads.under_way = false;
        if self.through.is_none() {
            self.native = Native::new(self.thread.clone(), Cursor::at(last));
            self.through = Some(self.target);
        }
        self.advance(now);
    }

    /// The answer to [`StoreRead::Ends`].
    pub fn on_page(&mut self, page: &StorePage, now: Timestamp) {
        self.reads.under_way = false;
        if std::mem::take(&mut self.reads.is_stale) || self.through != Some(page.after) {
            return;
        }
        if std::mem::take(&mut self.is_unsure)
            && let Some(end) = page.back_to
        {
            self.through = Some(end);
            self.begin_anew(end);
            return self.advance(now);
        }
        for ended in page.ends.iter().filter(|ended| ended.position > page.after) {
            ended::append_end(&mut self.native, ended, &mut self.events);
            self.release(&ended.header.message);
            // The message has ended, so a reply that still lists it as open is outdated.
            if let Some(reply) = &mut self.reply {
                reply.open.retain(|open| open.message != ended.header.message);
            }
        }
        self.through = Some(page.through.max(page.after));
        self.advance(now);
    }

    /// The read from the store failed.
    pub fn on_read_failed(&mut self, now: Timestamp) {
        self.reads = StoreReads { under_way: false, is_stale: false, not_before: now.plus_ms(READ_PAUSE_MS) };
    }

    /// Whether everything known so far has been shown.
    pub(crate) fn is_settled(&self) -> bool {
        self.reply.is_none() && !self.is_blocked && self.has_all_ends()
    }

    /// Whether all stored ends of this owner's cut have been shown.
    fn has_all_ends(&self) -> bool {
        !self.is_unsure && self.through.is_some_and(|through| through >= self.target)
    }

    /// Advances as far as possible: first the ends that a reply includes, then the reply's text,
    /// then frames.
    fn advance(&mut self, now: Timestamp) {
        while self.has_all_ends() {
            if let Some(reply) = self.reply.take() {
                self.show_open(reply, now);
                continue;
            }
            let Some(mark) = self.mark else { return };
            let Some((&number, frame)) = self.pending.first_key_value() else { return };
            if number > mark && (number.0 != mark.0 || frame.number.after > mark.1) {
                return self.block();
            }
            if self.is_blocked {
                return;
            }
            let Some((number, frame)) = self.pending.pop_first() else { return };
            self.pending_bytes -= size(&frame);
            if number > mark {
                self.mark = Some(number);
                self.apply(frame);
            }
        }
    }

    /// Shows the open text of a cut whose ends have been shown.
    fn show_open(&mut self, reply: SnapshotReply, now: Timestamp) {
        let named: BTreeSet<MessageId> = reply.open.iter().map(|open| open.message.clone()).collect();
        if self.has_lost(&named, reply.cut.is_current, now) {
            return self.begin_anew(self.native.cursor().base());
        }
        let mut is_short = false;
        for text in reply.open {
            let header = MessageHeader::new(text.message, text.attempt, text.role, text.batch_type);
            is_short |= !text.chunks.is_empty() || text.input.is_some();
            // The input of the message may be on the next page of the reply. A subscriber that
            // joins before that page must not be shown an input that its cursor names.
            let is_empty = text.chunks.is_empty() && text.input.is_none();
            if reply.more && is_empty && !self.open.contains_key(&header.message) {
                continue;
            }
            if let Some(input) = text.input {
                self.show_input(&header, input);
            }
            self.merge(header, &text.chunks, true);
        }
        self.left_out = reply.left_out;
        // A partial reply without new content must not be requested again, or it would repeat
        // forever.
        if reply.more && is_short {
            self.block();
        }
    }

    /// Whether more messages are open than are shown: see [`cursor::MAX_OPEN`].
    pub fn leaves_out(&self) -> bool {
        self.left_out
    }

    /// Frames are missing: queries the owner and shows nothing before its reply.
    fn block(&mut self) {
        (self.is_blocked, self.asks.wanted) = (true, true);
    }

    /// Whether a shown message is neither committed nor open at an owner that has read its whole
    /// stream. Such a message does not exist any more.
    fn has_lost(&mut self, named: &BTreeSet<MessageId>, is_current: bool, now: Timestamp) -> bool {
        let mut has_lost = false;
        let mut unseen = Vec::new();
        for (message, open) in self.open.iter_mut() {
            let is_absent = !named.contains(message);
            open.absent = if is_absent { open.absent + u32::from(is_current) } else { 0 };
            if !is_absent {
                continue;
            }
            match self.native.cursor().seen(message) {
                Some(_) if open.absent >= ABSENT => has_lost = true,
                Some(_) => (self.asks.wanted, self.asks.not_before) = (true, now.plus_ms(AGAIN_MS)),
                None => unseen.push(message.clone()),
            }
        }
        for message in unseen {
            self.release(&message);
        }
        has_lost
    }

    fn apply(&mut self, frame: LiveFrame) {
        let LiveFrame { message, attempt, role, batch_type, chunks, terminal, input, .. } = frame;
        let header = MessageHeader::new(message, attempt, role, batch_type);
        match (terminal, input) {
            (Some(end), _) => self.end(header, &end),
            (None, Some(input)) => self.show_input(&header, input),
            (None, None) => self.merge(header, &chunks, false),
        }
    }

    /// Makes room for a message that is not open yet; false if it is left out.
    fn begin(&mut self, header: &MessageHeader, may_begin: bool) -> bool {
        if !may_begin || self.open.len() >= cursor::MAX_OPEN {
            self.counts.left_out += u64::from(!self.left_out);
            self.left_out = true;
            return false;
        }
        self.opened += 1;
        self.open.insert(header.message.clone(), FeedMessage::new(header.clone(), self.opened));
        true
    }

    /// Shows an input, as the first event of the answer that it waits for. An answer that has begun
    /// without it was left out, or comes from an owner that did not send inputs.
    fn show_input(&mut self, header: &MessageHeader, input: Arc<OpenInput>) {
        if !self.open.contains_key(&header.message) && !self.begin(header, true) {
            return;
        }
        let Some(open) = self.open.get_mut(&header.message) else { return };
        open.absent = 0;
        let is_known = self.native.cursor().input(&header.message).is_some();
        if !open.has_input() && open.next() == 0 && !is_known {
            let before = open.log_bytes();
            self.events.push_back(open.show_input(&mut self.native, input));
            self.log_bytes = self.log_bytes + open.log_bytes() - before;
            self.keep_within_budget(&header.message);
        }
    }

    /// Shows chunks with consecutive ids. `may_begin`: they start at the first chunk, or continue
    /// the shown ones. Otherwise, an unknown message whose first chunk is missing was left out
    /// before.
    fn merge(&mut self, header: MessageHeader, chunks: &[Arc<Chunk>], may_begin: bool) {
        let message = header.message.clone();
        let begins = may_begin || chunks.first().is_none_or(|chunk| chunk.id == 0);
        let is_new = !self.open.contains_key(&message);
        if is_new && !self.begin(&header, begins) {
            return;
        }
        let Some(open) = self.open.get_mut(&message) else { return };
        let known = open.seen().attempt;
        if header.attempt < known {
            self.counts.filtered += chunks.len() as u64;
            return;
        }
        if header.attempt > known {
            self.log_bytes -= open.log_bytes();
            if self.native.cursor().seen(&message).is_some() {
                let bytes = self.native.reset(&message, header.attempt);
                let event = NativeEvent::Reset { message: message.clone(), attempt: header.attempt };
                self.events.push_back(FeedEvent { bytes, event });
            }
            open.restart(header);
            self.log_bytes += open.log_bytes();
        }
        self.show(&message, chunks);
    }

    fn show(&mut self, message: &MessageId, chunks: &[Arc<Chunk>]) {
        let Some(open) = self.open.get_mut(message) else { return };
        open.absent = 0;
        let before = open.log_bytes();
        for chunk in chunks {
            match chunk.id.cmp(&open.next()) {
                std::cmp::Ordering::Less => self.counts.filtered += 1,
                std::cmp::Ordering::Equal => {
                    self.events.extend(open.show(&mut self.native, chunk));
                }
                // A new owner shows the stream that it reads again from the beginning, so it cannot
                // be ahead. If it seems to be, it is queried.
                std::cmp::Ordering::Greater => (self.is_blocked, self.asks.wanted) = (true, true),
            }
        }
        self.log_bytes = self.log_bytes + open.log_bytes() - before;
        self.keep_within_budget(message);
    }

    /// Drops the log of the message whose events exceed the budget.
    fn keep_within_budget(&mut self, message: &MessageId) {
        if self.log_bytes > self.log_budget
            && let Some(open) = self.open.get_mut(message)
        {
            self.log_bytes -= open.log_bytes();
            open.drop_log();
        }
    }

    fn end(&mut self, header: MessageHeader, end: &MessageEnd) {
        let through = self.through.unwrap_or(end.position);
        if end.position <= through {
            return;
        }
        let open = self.open.get(&header.message);
        let has_all = open.map_or(0, FeedMessage::next) == end.chunks
            && open.is_none_or(|open| open.seen().attempt == header.attempt);
        let events = match &end.outcome {
            MessageOutcome::Failed(failure) => {
                ended::failed_events(&mut self.native, &header, end.position, &StreamError::from(failure))
            }
            MessageOutcome::Complete if has_all => {
                vec![ended::complete_event(&mut self.native, &header, end.position, false, &end.report)]
            }
            MessageOutcome::Stopped if has_all => {
                vec![ended::complete_event(&mut self.native, &header, end.position, true, &end.report)]
            }
            // The message was left out, so it is read from the store.
            MessageOutcome::Complete | MessageOutcome::Stopped => {
                self.target = self.target.max(end.position);
                return;
            }
        };
        (self.through, self.target) = (Some(end.position), self.target.max(end.position));
        self.release(&header.message);
        self.events.extend(events);
    }

    /// Removes a message that is no longer open; messages that were left out may have room now.
    fn release(&mut self, message: &MessageId) -> Option<FeedMessage> {
        let open = self.open.remove(message)?;
        self.log_bytes -= open.log_bytes();
        self.native.remove(message);
        if self.left_out {
            self.block();
        }
        Some(open)
    }
}

/// Bytes of a waiting frame.
fn size(frame: &LiveFrame) -> usize {
    let input = frame.input.as_ref().map_or(0, |input| input.size());
    frame.chunks.iter().map(|chunk| chunk.size() + 64).sum::<usize>() + input + 256
}
