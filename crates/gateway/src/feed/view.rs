//! What the store says about a thread, and how it enters a feed: ends that were missed, text that cannot be had
//! elsewhere, and viewers who join with a cursor.

use std::collections::HashMap;

use adapters::{Cursor, FailureNote, Native, Seen};
use bytes::Bytes;
use model::{Chunk, ChunkKind, MessageId, Metadata, Position, Role, Timestamp};

use super::{AUDIT_MS, Event, Feed, GRACE_MS, Open, ROUTINE_MS, STORE_PAUSE_MS};

/// A committed message.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// Its id.
    pub message: MessageId,
    /// Where it stands.
    pub position: Position,
    /// The attempt that produced it.
    pub attempt: u32,
    /// Who speaks.
    pub role: Role,
    /// Its whole text.
    pub content: String,
    /// The final chunk's metadata.
    pub metadata: Metadata,
}

/// What the store knows of a message that was asked for by its id.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// Committed.
    Complete(Committed),
    /// Given up.
    Failed(FailureNote),
}

/// What to read from the store; answer with [`Feed::on_view`] or [`Feed::on_store_failed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRead {
    /// Committed messages after this position, from the oldest on.
    pub after: Position,
    /// And these by their ids.
    pub keys: Vec<MessageId>,
}

/// What the store said.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Messages after this position were read.
    pub after: Position,
    /// The messages, in the order of their positions.
    pub committed: Vec<Committed>,
    /// False when there are more than were read.
    pub is_whole: bool,
    /// The keys that the store knows.
    pub known: HashMap<MessageId, Known>,
    /// The keys that were asked for.
    pub keys: Vec<MessageId>,
}

/// What comes of a viewer's wish to join.
#[derive(Debug, Clone, PartialEq)]
pub enum Join {
    /// It gets these bytes first; from then on it stands where the feed stands.
    Joined(Vec<Bytes>),
    /// Not with this view: read the store again.
    ReadAgain,
    /// The viewer has seen more than the feed or the store know by now. Try again later.
    Ahead,
    /// The text of an open message was let go.
    OverBudget,
}

impl Feed {
    /// What to read from the store now, if anything.
    pub fn want_store(&mut self, now: Timestamp) -> Option<StoreRead> {
        if self.reads.under_way || now < self.reads.not_before {
            return None;
        }
        if self.reads.force_at.is_some_and(|at| now >= at) {
            self.reads.verify = Some(true);
        } else if now >= self.reads.routine_at {
            self.verify(false);
        }
        let keys: Vec<_> =
            self.open.iter().filter(|(_, open)| open.look_up).map(|(message, _)| message.clone()).collect();
        if keys.is_empty() && self.reads.verify.is_none() {
            return None;
        }
        self.reads.under_way = true;
        self.reads.routine_at = now.plus_ms(ROUTINE_MS);
        Some(StoreRead { after: self.verified, keys })
    }

    /// The store could not be read.
    pub fn on_store_failed(&mut self, now: Timestamp) {
        (self.reads.under_way, self.reads.not_before) = (false, now.plus_ms(STORE_PAUSE_MS));
    }

    /// The answer to [`Feed::want_store`].
    pub fn on_view(&mut self, view: &View, now: Timestamp) {
        self.reads.under_way = false;
        let forced = self.reads.verify == Some(true);
        (self.reads.verify, self.reads.force_at, self.unverified) = (None, None, 0);
        self.settle(view, forced, now);
    }

    /// Takes what the store says as true. `forced`: committed messages of which nothing was heard are shown at once;
    /// else they are given time to arrive by themselves.
    pub fn settle(&mut self, view: &View, forced: bool, now: Timestamp) {
        let is_new = |committed: &&Committed| committed.position > self.verified;
        let (mut verified, mut waiting) = (self.verified, false);
        for committed in view.committed.iter().filter(is_new).cloned().collect::<Vec<_>>() {
            let is_ended = self.ended.contains(&committed.message);
            let is_wanted = self.open.get(&committed.message).is_some_and(|open| open.look_up);
            if !is_ended && (forced || is_wanted) {
                self.complete_from(&committed);
            }
            waiting |= !is_ended && !forced && !is_wanted;
            self.tip = self.tip.max(committed.position);
            if !waiting {
                verified = committed.position;
            }
        }
        for message in &view.keys {
            match view.known.get(message) {
                // A viewer brings it whose gateway was told before us. Nobody has seen any of it here, and what is still
                // on its way must not reach that viewer again.
                Some(Known::Failed(_)) if !self.open.contains_key(message) => {
                    self.let_go(message);
                    self.native.bury(message);
                }
                _ if !self.open.contains_key(message) => {}
                Some(Known::Complete(committed)) => self.complete_from(committed),
                Some(Known::Failed(failure)) => self.fail(message, failure),
                None => self.wait_on(message, now),
            }
        }
        // A view that began above what is verified proves nothing about the part between.
        if view.after <= self.verified && verified > self.verified {
            self.verified = verified;
            self.native.advance(verified);
        }
        if waiting {
            self.reads.force_at = Some(now.plus_ms(GRACE_MS));
        }
        if !view.is_whole {
            self.verify(forced);
        }
    }

    fn wait_on(&mut self, message: &MessageId, now: Timestamp) {
        if let Some(open) = self.open.get_mut(message) {
            (open.look_up, open.audit_at) = (false, now.plus_ms(AUDIT_MS));
        }
    }

    /// Shows what is missing of a committed message, and its end.
    fn complete_from(&mut self, committed: &Committed) {
        let message = &committed.message;
        let open = self.open.get(message);
        if committed.position <= self.verified && open.is_none_or(|open| open.seen().next == 0) {
            // Older than the feed, and nobody has seen any of it here: it is history.
            if open.is_some_and(|open| open.is_expected) {
                self.events.push_back(Event::Missed(message.clone()));
            }
            return self.let_go(message);
        }
        self.counts.holes_repaired +=
            u64::from(open.is_some_and(|open| open.has_hole() || open.end.is_some()));
        let shown = open.map(|open| (open.seen(), open.final_shown()));
        self.events.extend(rest_of(&mut self.native, committed, shown).into_iter().map(Event::Part));
        self.complete(message, committed.position);
    }

    /// Lets a viewer in. `view` must have been settled before; a viewer without a cursor needs none, and gets what is
    /// open from its first chunk on.
    pub fn join(&self, cursor: Option<&Cursor>, view: Option<&View>) -> Join {
        let Some(cursor) = cursor else { return self.join_late() };
        let Some(view) = view else { return Join::ReadAgain };
        let is_enough = view.is_whole && view.after <= cursor.base().min(self.verified);
        let last = view.committed.last().map_or(view.after, |committed| committed.position);
        let mut names = cursor.open().map(|(message, _)| message).chain(cursor.ended());
        if !is_enough
            || last < self.tip
            || last > self.verified
            || names.any(|message| !view.keys.contains(message))
        {
            return Join::ReadAgain;
        }
        let mut native = Native::new(self.thread.clone(), cursor.clone());
        let mut out = catch_up(&mut native, view);
        // What the client has as ended must have ended here, or it would be shown its end again.
        if cursor.ended().any(|message| self.open.contains_key(message)) {
            return Join::Ahead;
        }
        let unknown: Vec<_> =
            native.cursor().open().filter(|(message, _)| !self.open.contains_key(*message)).collect();
        // Of a message that has not begun a viewer has nothing that could be ahead.
        let is_ahead =
            |(message, seen): &(&MessageId, Seen)| *seen != Seen::default() || self.ended.contains(message);
        if unknown.iter().any(is_ahead) {
            return Join::Ahead;
        }
        let not_begun: Vec<_> = unknown.into_iter().map(|(message, _)| message.clone()).collect();
        not_begun.iter().for_each(|message| native.forget(message));
        for (message, open) in &self.open {
            match join_open(&mut native, message, open) {
                Ok(events) => out.extend(events),
                Err(refused) => return refused,
            }
        }
        Join::Joined(out)
    }

    fn join_late(&self) -> Join {
        let mut cursor = self.native.cursor().clone();
        let open: Vec<_> = cursor.open().map(|(message, _)| message.clone()).collect();
        open.iter().for_each(|message| cursor.forget(message));
        let mut native = Native::new(self.thread.clone(), cursor);
        let mut out = Vec::new();
        for (message, open) in &self.open {
            match join_open(&mut native, message, open) {
                Ok(events) => out.extend(events),
                Err(refused) => return refused,
            }
        }
        Join::Joined(out)
    }
}

/// What a viewer with a cursor misses of what the store has: committed messages after its base, and the ends of those
/// that were open for it. The fold's cursor then stands after them.
pub fn catch_up(native: &mut Native, view: &View) -> Vec<Bytes> {
    let mut out = Vec::new();
    let base = native.cursor().base();
    for committed in view.committed.iter().filter(|committed| committed.position > base) {
        out.extend(end_from(native, committed));
        native.advance(committed.position);
    }
    for message in &view.keys {
        let is_open = native.cursor().seen(message).is_some();
        match view.known.get(message) {
            Some(Known::Failed(failure)) if is_open => out.push(native.failed(message, failure).bytes()),
            Some(Known::Complete(committed)) if is_open && view.is_whole => {
                out.extend(end_from(native, committed))
            }
            _ => {}
        }
    }
    out
}

fn end_from(native: &mut Native, committed: &Committed) -> Vec<Bytes> {
    let message = &committed.message;
    if native.cursor().has_ended(message) {
        return Vec::new();
    }
    let seen = native.cursor().seen(message);
    if seen.is_none() && committed.position <= native.cursor().base() {
        return Vec::new();
    }
    let mut out = rest_of(native, committed, seen.map(|seen| (seen, false)));
    out.push(native.complete(message, committed.position).bytes());
    out
}

/// The rest of a committed message as one chunk. `shown`: what its reader has, and whether the final chunk is in it.
fn rest_of(native: &mut Native, committed: &Committed, shown: Option<(Seen, bool)>) -> Vec<Bytes> {
    let Committed { message, attempt, role, content, .. } = committed;
    let mut out = Vec::new();
    let fits = |seen: &Seen| seen.attempt == *attempt && content.is_char_boundary(seen.bytes as usize);
    let (seen, final_shown) = match shown {
        Some((seen, is_final)) if fits(&seen) => (seen, is_final),
        Some((seen, _)) if seen.next > 0 => {
            out.push(native.reset(message, *attempt));
            (Seen::default(), false)
        }
        _ => (Seen::default(), false),
    };
    let rest = &content[seen.bytes as usize..];
    // A reader that has all the text may lack the final chunk's metadata only; without any there is nothing to add.
    if final_shown || (rest.is_empty() && seen.next > 0 && committed.metadata.is_empty()) {
        return out;
    }
    let mut chunk = Chunk::content(seen.next, rest, true);
    chunk.metadata = committed.metadata.clone();
    chunk.kind = if rest.is_empty() { ChunkKind::Metadata } else { ChunkKind::Content };
    out.push(native.compacted(message, *attempt, *role, &chunk).bytes());
    out
}

/// What a viewer misses of an open message, from the log.
fn join_open(native: &mut Native, message: &MessageId, open: &Open) -> Result<Vec<Bytes>, Join> {
    let mut out = Vec::new();
    let seen = match native.cursor().seen(message) {
        Some(seen) if seen.attempt > open.attempt => return Err(Join::Ahead),
        Some(seen) if seen.attempt == open.attempt && seen.next > open.seen().next => {
            return Err(Join::Ahead);
        }
        Some(seen) if seen.attempt == open.attempt => seen,
        Some(seen) if seen.next > 0 => {
            out.push(native.reset(message, open.attempt));
            Seen::default()
        }
        _ => Seen::default(),
    };
    if seen.next == open.seen().next {
        return Ok(out);
    }
    let log = open.log().ok_or(Join::OverBudget)?;
    for shown in log.iter().filter(|shown| shown.seen.next > seen.next) {
        out.extend([native.again(message, shown.seen), shown.data.clone()]);
    }
    Ok(out)
}
