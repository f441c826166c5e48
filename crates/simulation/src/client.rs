//! A gateway and its client in thin form: filters what owners send, repairs holes, learns lost ends from the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Chunk, ChunkKind, MessageId, MessageKey, Outcome, PartitionId, ThreadId};
use partition::{Answer, Ending, Release};

use crate::checker::{Seen, StoredMessage, Transcript};
use crate::store::{Ended, Store};

/// What is sent to gateways.
#[derive(Debug, Clone)]
pub(crate) enum OutFrame {
    Release(Arc<Release>),
    End(Arc<Ending>),
}

/// What a client has of an open message.
#[derive(Debug, Default, Clone, Copy)]
struct Shown {
    attempt: u32,
    next: u32,
    text_len: usize,
    any: bool,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) thread: ThreadId,
    pub(crate) partition: PartitionId,
    pub(crate) is_connected: bool,
    /// Frames for an earlier connection are lost.
    pub(crate) connection: u64,
    pub(crate) is_asking: bool,
    shown: BTreeMap<MessageId, Shown>,
    ended: BTreeSet<MessageId>,
    seen: Vec<Seen>,
    /// How many of the thread's ends in the store it has looked at.
    looked_at: usize,
}

impl Client {
    pub(crate) fn new(thread: ThreadId, partition: PartitionId) -> Self {
        Self {
            thread,
            partition,
            is_connected: false,
            connection: 0,
            is_asking: false,
            shown: BTreeMap::new(),
            ended: BTreeSet::new(),
            seen: Vec::new(),
            looked_at: 0,
        }
    }

    /// Begins anew: what has ended before is history and not shown.
    pub(crate) fn join(&mut self, store: &Store) {
        self.shown.clear();
        self.seen.clear();
        let ended = store.ended.get(&self.thread).map_or(&[][..], Vec::as_slice);
        self.looked_at = ended.len();
        self.ended = ended.iter().map(|(_, key, _)| key.message.clone()).collect();
        self.connect();
    }

    /// Goes on where it was cut, on whatever gateway.
    pub(crate) fn connect(&mut self) {
        self.is_connected = true;
        self.is_asking = false;
        self.connection += 1;
    }

    pub(crate) fn cut(&mut self) {
        self.seen.push(Seen::Cut);
        self.is_connected = false;
        self.connection += 1;
    }

    /// What it saw; afterwards it has seen nothing.
    pub(crate) fn transcript(&mut self, name: usize) -> Transcript {
        self.shown.clear();
        Transcript {
            client: format!("{name}.{}", self.connection),
            thread: self.thread.clone(),
            seen: std::mem::take(&mut self.seen),
            is_connected: self.is_connected,
        }
    }

    /// What it has of open messages, for a question.
    pub(crate) fn have(&self) -> Vec<(MessageId, u32, u32)> {
        self.shown.iter().map(|(id, shown)| (id.clone(), shown.attempt, shown.next)).collect()
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.shown.is_empty()
    }

    /// True when something is lacking before it.
    pub(crate) fn frame(&mut self, frame: &OutFrame) -> bool {
        match frame {
            OutFrame::Release(release) => {
                self.chunks(&release.key.message, release.attempt, &release.chunks, None)
            }
            OutFrame::End(ending) => self.ending(ending),
        }
    }

    /// True when the answer was cut off.
    pub(crate) fn answer(&mut self, answer: &Answer) -> bool {
        for open in &answer.open {
            self.chunks(&open.message, open.attempt, &open.chunks, Some(open.next));
        }
        answer.more
    }

    fn chunks(
        &mut self,
        message: &MessageId,
        attempt: u32,
        chunks: &[Arc<Chunk>],
        next: Option<u32>,
    ) -> bool {
        if self.ended.contains(message) {
            return false;
        }
        let shown = self.shown.entry(message.clone()).or_insert(Shown { attempt, ..Shown::default() });
        if attempt < shown.attempt {
            return false;
        }
        if attempt > shown.attempt {
            if shown.any {
                self.seen.push(Seen::Reset { message: message.clone(), attempt });
            }
            *shown = Shown { attempt, any: shown.any, ..Shown::default() };
        }
        for chunk in chunks {
            if chunk.id > shown.next {
                return true;
            }
            if chunk.id < shown.next {
                continue;
            }
            shown.next += 1;
            shown.any = true;
            if chunk.kind == ChunkKind::Content {
                shown.text_len += chunk.text.len();
            }
            self.seen.push(Seen::Chunk { message: message.clone(), attempt, chunk: Arc::clone(chunk) });
        }
        next.is_some_and(|next| next > shown.next)
    }

    fn ending(&mut self, ending: &Ending) -> bool {
        let message = &ending.key.message;
        if self.ended.contains(message) {
            return false;
        }
        match &ending.outcome {
            Outcome::Failed(_) => {
                self.seen.push(Seen::Failed { message: message.clone() });
                self.close(message);
            }
            Outcome::Complete(position) => {
                let Some(shown) = self.shown.get(message) else { return false };
                if shown.attempt != ending.attempt || shown.next != ending.chunks {
                    return true;
                }
                let position = Some(position.get());
                self.seen.push(Seen::Complete { message: message.clone(), position });
                self.close(message);
            }
        }
        false
    }

    /// Shows the ends that the store has had for a while and that did not come by themselves.
    pub(crate) fn look(&mut self, store: &Store, before: i64) {
        let ended = store.ended.get(&self.thread).map_or(&[][..], Vec::as_slice);
        while let Some((at, key, how)) = ended.get(self.looked_at) {
            if *at > before {
                break;
            }
            self.looked_at += 1;
            self.end(key, *how, store);
        }
    }

    fn end(&mut self, key: &MessageKey, how: Ended, store: &Store) {
        let message = &key.message;
        if self.ended.contains(message) {
            return;
        }
        match how {
            Ended::Letter => self.seen.push(Seen::Failed { message: message.clone() }),
            Ended::Message(index) => {
                let stored = &store.messages[index];
                self.show_stored(message, stored, store.text(stored));
            }
        }
        self.close(message);
    }

    fn show_stored(&mut self, message: &MessageId, stored: &StoredMessage, text: &str) {
        let shown = self.shown.get(message).copied().unwrap_or_default();
        let mut from = shown.text_len;
        if shown.any && shown.attempt != stored.attempt {
            self.seen.push(Seen::Reset { message: message.clone(), attempt: stored.attempt });
            from = 0;
        }
        let text = text.get(from..).unwrap_or_default().to_owned();
        if !text.is_empty() {
            self.seen.push(Seen::Rest { message: message.clone(), text });
        }
        self.seen.push(Seen::Complete { message: message.clone(), position: Some(stored.position) });
    }

    fn close(&mut self, message: &MessageId) {
        self.shown.remove(message);
        self.ended.insert(message.clone());
    }
}
