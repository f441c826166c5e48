//! One message that has begun and not ended: what was shown of it, and what came too early.

use std::collections::BTreeMap;
use std::sync::Arc;

use adapters::{Native, Seen};
use bytes::Bytes;
use model::{Chunk, ChunkKind, MessageId, Role, Timestamp};
use wire::out::End;

/// Chunks beyond a hole that are kept: how far, and how many bytes. What is not kept is asked for again.
const AHEAD_IDS: u32 = 1_024;
const AHEAD_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Open {
    pub(super) attempt: u32,
    pub(super) role: Role,
    /// How it ended, while text is still missing.
    pub(super) end: Option<End>,
    /// Ask the owner when nothing was heard until then.
    pub(super) audit_at: Timestamp,
    /// Ask the owner for what is missing: when, and from which chunk on.
    repair: Option<(Timestamp, u32)>,
    /// The owner was asked since something was last heard.
    pub(super) was_asked: bool,
    /// The owner does not have it: ask the store.
    pub(super) look_up: bool,
    /// Nothing of it was heard; a viewer waits for it.
    pub(super) is_expected: bool,
    seen: Seen,
    final_shown: bool,
    /// Chunks below this id are known to exist.
    exists: u32,
    log: Option<Vec<Shown>>,
    log_bytes: usize,
    ahead: BTreeMap<u32, Arc<Chunk>>,
    ahead_bytes: usize,
}

/// An event that was sent, and where its reader stands after it.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) data: Bytes,
    pub(super) seen: Seen,
}

impl Open {
    pub(super) fn new(attempt: u32, role: Role, audit_at: Timestamp) -> Self {
        Self {
            attempt,
            role,
            end: None,
            audit_at,
            repair: None,
            was_asked: false,
            look_up: false,
            is_expected: false,
            seen: Seen { attempt, ..Seen::default() },
            final_shown: false,
            exists: 0,
            log: Some(Vec::new()),
            log_bytes: 0,
            ahead: BTreeMap::new(),
            ahead_bytes: 0,
        }
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen
    }

    pub(super) fn final_shown(&self) -> bool {
        self.final_shown
    }

    /// What was shown from chunk 0 on; `None` when it was let go.
    pub(super) fn log(&self) -> Option<&[Shown]> {
        self.log.as_deref()
    }

    pub(super) fn log_bytes(&self) -> usize {
        self.log_bytes
    }

    /// Lets the log go; says how many bytes that were.
    pub(super) fn drop_log(&mut self) -> usize {
        self.log = None;
        std::mem::take(&mut self.log_bytes)
    }

    /// A chunk is known to exist beyond the next one.
    pub(super) fn has_hole(&self) -> bool {
        self.exists > self.seen.next
    }

    pub(super) fn heard(&mut self, audit_at: Timestamp) {
        (self.audit_at, self.was_asked, self.look_up, self.is_expected) = (audit_at, false, false, false);
    }

    /// Notes a hole that has opened or moved; one that stays keeps its time.
    pub(super) fn watch_hole(&mut self, now: Timestamp) {
        let next = self.seen.next;
        match self.repair {
            _ if !self.has_hole() => self.repair = None,
            Some((_, from)) if from == next => {}
            _ => self.repair = Some((now, next)),
        }
    }

    /// The owner is asked now; a hole that stays is asked for again at `again_at`.
    pub(super) fn asked(&mut self, audit_at: Timestamp, again_at: Timestamp) {
        (self.was_asked, self.audit_at) = (true, audit_at);
        self.repair = self.has_hole().then_some((again_at, self.seen.next));
    }

    /// Is it time to ask the owner?
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        now >= self.audit_at || self.repair.is_some_and(|(at, _)| now >= at)
    }

    /// Chunks below `next` are known to exist.
    pub(super) fn know(&mut self, next: u32) {
        self.exists = self.exists.max(next);
    }

    /// Keeps a chunk unless it was shown or is too far ahead.
    pub(super) fn insert(&mut self, chunk: Arc<Chunk>) {
        self.know(chunk.id + 1);
        let next = self.seen.next;
        let fits =
            self.ahead_bytes + chunk.size() <= AHEAD_BYTES && chunk.id < next.saturating_add(AHEAD_IDS);
        if chunk.id < next || (chunk.id > next && !fits) || self.ahead.contains_key(&chunk.id) {
            return;
        }
        self.ahead_bytes += chunk.size();
        self.ahead.insert(chunk.id, chunk);
    }

    /// The chunk that is next, if it is here.
    pub(super) fn next_chunk(&mut self) -> Option<Arc<Chunk>> {
        let chunk = self.ahead.remove(&self.seen.next)?;
        self.ahead_bytes -= chunk.size();
        Some(chunk)
    }

    /// Shows the next chunk. An `error` chunk takes its number only: the message's end says what it says, once.
    pub(super) fn show(&mut self, native: &mut Native, message: &MessageId, chunk: &Chunk) -> Option<Bytes> {
        self.seen.advance(chunk);
        self.final_shown |= chunk.is_final;
        if chunk.kind == ChunkKind::Error {
            native.skip(message, self.attempt, chunk);
            return None;
        }
        let event = native.chunk(message, self.attempt, self.role, chunk);
        if let Some(log) = &mut self.log {
            self.log_bytes += event.len();
            log.push(Shown { data: event.data(), seen: self.seen });
        }
        Some(event.bytes())
    }
}
