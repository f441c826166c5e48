//! The machine: see the crate's documentation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{Chunk, LiveFrame, MessageEnd, MessageId, MessageOutcome, Position, ThreadId, Timestamp};
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageHeader, Native, StreamError, cursor};
use wire::query::{SnapshotReply, SnapshotRequest};

use crate::ended::{self, StorePage, StoreRead};
use crate::open::FeedMessage;
use crate::subscription::FeedEvent;

/// Pause after a query without a reply: first, and at most.
const ASK_PAUSE_MS: (i64, i64) = (250, 2_000);
/// Pause before an owner that is not current, or does not name what was shown, is asked again.
const AGAIN_MS: i64 = 2_000;
/// A message that so many answers of a current owner in a row do not name is lost: one that was frozen may believe for a moment that it is
/// the owner still.
pub(crate) const ABSENT: u32 = 2;
/// Pause after the store could not be read.
const READ_PAUSE_MS: i64 = 500;
/// Frames that wait for an answer or for the store: at most so many bytes. Beyond it they are dropped, and a new cut is asked for.
const PENDING_BYTES: usize = 1 << 20;

/// What a feed counted since it was last asked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FeedCounts {
    /// Times when frames were missing and an owner's cut made up for them.
    pub gaps_filled: u64,
    /// Chunks that were already shown, or of a lower attempt or epoch.
    pub filtered: u64,
    /// Messages that were not shown while they came, because as many as can be were open.
    pub left_out: u64,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Feed {
    thread: ThreadId,
    pub(crate) native: Native,
    pub(crate) open: BTreeMap<MessageId, FeedMessage>,
    /// The last frame that is in, by epoch and number; `None` before the first cut.
    mark: Option<(u64, u64)>,
    /// Owners of lower epochs are owners no more.
    least_epoch: u64,
    /// Ends up to here have been shown, or are older than the feed; `None` until it is known where it begins.
    pub(crate) through: Option<Position>,
    /// Ends up to here are known to exist.
    target: Position,
    /// The owner has changed, and the next page of the store says whether the last end that was shown still exists: a store that has gone back
    /// in time has another owner, and lacks ends.
    is_unsure: bool,
    /// An answer whose text is shown once the ends that it includes are shown.
    reply: Option<SnapshotReply>,
    /// Frames that wait for an answer or for the store.
    pending: BTreeMap<(u64, u64), LiveFrame>,
    pending_bytes: usize,
    /// What comes next is missing: nothing is shown before an answer says how the thread stands.
    is_blocked: bool,
    pub(crate) asks: SnapshotRequests,
    reads: StoreReads,
    /// More messages are open than are shown.
    pub(crate) left_out: bool,
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
    /// How many answers have come.
    pub(crate) answered: u64,
    /// How many of the last ones came from one owner that has read all there is.
    pub(crate) current: u32,
}

#[derive(Debug, Default)]
struct StoreReads {
    under_way: bool,
    /// The one that is under way was begun before the owner changed: the store may have gone back since.
    is_stale: bool,
    not_before: Timestamp,
}

impl SnapshotRequests {
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }
}

impl Feed {
    /// A feed that does not know yet how its thread stands. `log_budget`: bytes of open text that are kept for viewers who join late.
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
            events: VecDeque::new(),
            log_budget,
            log_bytes: 0,
            counts: FeedCounts::default(),
        }
    }

    /// The next event for every viewer.
    pub fn next_event(&mut self) -> Option<FeedEvent> {
        self.events.pop_front()
    }

    /// What happened since the last call, for metrics.
    pub fn take_counts(&mut self) -> FeedCounts {
        std::mem::take(&mut self.counts)
    }

    /// Where a viewer stands who got every event.
    pub fn cursor(&self) -> &Cursor {
        self.native.cursor()
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.thread
    }

    /// The epoch of the owner whose cut it goes on from; `None` before the first cut.
    pub fn epoch(&self) -> Option<u64> {
        self.mark.map(|(epoch, _)| epoch)
    }

    /// It knows how its thread stands.
    pub fn has_begun(&self) -> bool {
        self.through.is_some()
    }

    /// When [`Feed::poll_snapshot_request`] or [`Feed::poll_store_read`] has something, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let ask = self.may_ask().then_some(self.asks.not_before);
        let read = self.read().filter(|_| !self.reads.under_way).map(|_| self.reads.not_before);
        ask.into_iter().chain(read).min()
    }

    /// While an answer waits for the store a second one would be of no use.
    fn may_ask(&self) -> bool {
        self.asks.wanted && !self.asks.under_way && self.reply.is_none()
    }

    /// A frame of an owner.
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

    /// An owner has sent frames of this thread up to this one.
    pub fn on_sent(&mut self, epoch: u64, number: u64) {
        self.asks.wanted |= self.mark.is_none_or(|mark| mark < (epoch, number));
    }

    /// The partition has an owner of this epoch. A query that is under way may have gone to the one before, which will never answer: another is
    /// sent at once.
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

    /// Something may have been missed: the connection was lost, the owner changed, a queue overflowed.
    pub fn on_resync(&mut self) {
        self.asks.wanted = true;
    }

    /// An owner's answer.
    pub fn on_reply(&mut self, reply: SnapshotReply, now: Timestamp) {
        let (cut, known) = (reply.cut, self.mark);
        let mark = (cut.epoch, cut.number);
        // Of an owner that is one no more.
        if mark.0 < self.least_epoch.max(known.map_or(0, |(epoch, _)| epoch)) {
            return self.on_snapshot_failed(now);
        }
        (self.asks.under_way, self.asks.pause_ms) = (false, 0);
        self.asks.answered += 1;
        let is_same_owner = known.is_some_and(|(epoch, _)| epoch == cut.epoch);
        let before = if is_same_owner { self.asks.current } else { 0 };
        self.asks.current = if cut.is_current { before.saturating_add(1) } else { 0 };
        // Nothing was missing, and frames have overtaken the answer.
        if known.is_some_and(|known| mark < known) {
            return;
        }
        (self.mark, self.is_blocked) = (Some(mark), false);
        if known.is_some() && !is_same_owner && self.through.is_some() {
            // Nothing has ended between the two; what an earlier owner knew of counts no more.
            (self.through, self.is_unsure) = (Some(self.native.cursor().base()), true);
            self.reads.is_stale = self.reads.under_way;
            self.target = cut.committed;
        }
        self.pending = self.pending.split_off(&(mark.0, mark.1 + 1));
        self.pending_bytes = self.pending.values().map(size).sum();
        // Frames that are not missing have shown the ends that were in them.
        if known != Some(mark) {
            self.counts.gaps_filled += u64::from(known.is_some());
            self.target = self.target.max(cut.committed);
        }
        self.reply = Some(reply);
        self.advance(now);
    }

    /// What was shown does not exist any more: the store has gone back in time and lost ends, the stream has lost what was open, or a task was
    /// dropped with its answer. Every viewer is sent a restart: it drops what came after this end, and all that is open, which is requested from its
    /// beginning.
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

    /// The query to send now, if any; answer with [`Feed::on_reply`] or [`Feed::on_snapshot_failed`]. It takes the place of one that is still under
    /// way.
    pub fn poll_snapshot_request(&mut self, now: Timestamp) -> Option<SnapshotRequest> {
        if !self.may_ask() || now < self.asks.not_before {
            return None;
        }
        (self.asks.wanted, self.asks.under_way) = (false, true);
        let known =
            |(message, open): (&MessageId, &FeedMessage)| (message.clone(), open.seen().attempt, open.next());
        let known = self.open.iter().map(known).collect();
        Some(SnapshotRequest { thread: self.thread.clone(), known, max_messages: cursor::MAX_OPEN as u32 })
    }

    /// What to read from the store now, if anything; answer with [`Feed::on_last`], [`Feed::on_page`] or [`Feed::on_read_failed`].
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

    /// The answer to [`StoreRead::Last`]: where the feed begins; 0 when nothing of the thread has ended.
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
            self.let_go(&ended.header.message);
            // It was asked about as open; an owner that still looks it up does not know better.
            if let Some(reply) = &mut self.reply {
                reply.open.retain(|open| open.message != ended.header.message);
            }
        }
        self.through = Some(page.through.max(page.after));
        self.advance(now);
    }

    /// The store could not be read.
    pub fn on_read_failed(&mut self, now: Timestamp) {
        self.reads = StoreReads { under_way: false, is_stale: false, not_before: now.plus_ms(READ_PAUSE_MS) };
    }

    /// Everything that is known so far has been shown.
    pub(crate) fn is_settled(&self) -> bool {
        self.reply.is_none() && !self.is_blocked && self.has_all_ends()
    }

    /// What the store has of this owner's cut has been shown.
    fn has_all_ends(&self) -> bool {
        !self.is_unsure && self.through.is_some_and(|through| through >= self.target)
    }

    /// Goes on as far as it can: ends that an answer knows of, then its text, then frames.
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

    /// The open text of a cut whose ends have been shown.
    fn show_open(&mut self, reply: SnapshotReply, now: Timestamp) {
        let named: BTreeSet<MessageId> = reply.open.iter().map(|open| open.message.clone()).collect();
        if self.has_lost(&named, reply.cut.is_current, now) {
            return self.begin_anew(self.native.cursor().base());
        }
        let mut is_short = false;
        for text in reply.open {
            let header = MessageHeader::new(text.message, text.attempt, text.role, text.batch_type);
            self.merge(header, &text.chunks, true);
            is_short |= !text.chunks.is_empty();
        }
        self.left_out = reply.left_out;
        // An answer that is cut off and holds nothing new would come again for ever.
        if reply.more && is_short {
            self.block();
        }
    }

    /// Whether more messages are open than are shown: see [`cursor::MAX_OPEN`].
    pub fn leaves_out(&self) -> bool {
        self.left_out
    }

    /// Something is missing: query the owner, and show nothing before its reply.
    fn block(&mut self) {
        (self.is_blocked, self.asks.wanted) = (true, true);
    }

    /// Whether something that was shown is neither committed nor open in an owner that has read everything: then it does not exist any more.
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
            self.let_go(&message);
        }
        has_lost
    }

    fn apply(&mut self, frame: LiveFrame) {
        let LiveFrame { message, attempt, role, batch_type, chunks, terminal, .. } = frame;
        let header = MessageHeader::new(message, attempt, role, batch_type);
        match terminal {
            Some(end) => self.end(header, &end),
            None => self.merge(header, &chunks, false),
        }
    }

    /// Shows chunks with consecutive ids. `may_begin`: from the first on, or from what the message has; else a message that is not known is one
    /// that was left out, unless it begins here.
    fn merge(&mut self, header: MessageHeader, chunks: &[Arc<Chunk>], may_begin: bool) {
        let message = header.message.clone();
        let Some(open) = self.open.get_mut(&message) else {
            let begins = may_begin || chunks.first().is_none_or(|chunk| chunk.id == 0);
            if !begins || self.open.len() >= cursor::MAX_OPEN {
                self.counts.left_out += u64::from(!self.left_out);
                self.left_out = true;
                return;
            }
            self.open.insert(message.clone(), FeedMessage::new(header));
            return self.show(&message, chunks);
        };
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
            *open = FeedMessage::new(header);
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
                // An owner that took over shows from the beginning what it reads again: it cannot be beyond. If it is, query the owner.
                std::cmp::Ordering::Greater => (self.is_blocked, self.asks.wanted) = (true, true),
            }
        }
        self.log_bytes = self.log_bytes + open.log_bytes() - before;
        if self.log_bytes > self.log_budget {
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
        let event = match &end.outcome {
            MessageOutcome::Failed(failure) => {
                ended::failed_event(&mut self.native, &header, end.position, StreamError::from(failure))
            }
            MessageOutcome::Complete if has_all => {
                ended::complete_event(&mut self.native, &header, end.position, false, &end.report)
            }
            MessageOutcome::Stopped if has_all => {
                ended::complete_event(&mut self.native, &header, end.position, true, &end.report)
            }
            // It was left out: the store has it.
            MessageOutcome::Complete | MessageOutcome::Stopped => {
                self.target = self.target.max(end.position);
                return;
            }
        };
        (self.through, self.target) = (Some(end.position), self.target.max(end.position));
        self.let_go(&header.message);
        self.events.push_back(event);
    }

    /// A message is not open any more; those that were left out may have room now.
    fn let_go(&mut self, message: &MessageId) -> Option<FeedMessage> {
        let open = self.open.remove(message)?;
        self.log_bytes -= open.log_bytes();
        self.native.remove(message);
        if self.left_out {
            self.block();
        }
        Some(open)
    }
}

/// Bytes that a frame takes while it waits.
fn size(frame: &LiveFrame) -> usize {
    frame.chunks.iter().map(|chunk| chunk.size() + 64).sum::<usize>() + 256
}
