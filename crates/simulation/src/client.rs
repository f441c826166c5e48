//! A client of one thread: reads the events of whichever gateway it is connected to, and comes back with the last id.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use feed::StreamPart;
use model::{PartitionId, ThreadId};
use protocols::Cursor;

use crate::checker::{SeenEvent, Transcript};
use crate::native_reader;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) thread: ThreadId,
    pub(crate) partition: PartitionId,
    pub(crate) is_connected: bool,
    /// What was sent to an earlier connection is lost.
    pub(crate) connection: u64,
    pub(crate) gateway: usize,
    /// Events that are on their way to it.
    unread: VecDeque<Bytes>,
    pub(crate) is_reading: bool,
    last_id: Option<String>,
    id_before: Option<String>,
    ids: BTreeSet<String>,
    seen: Vec<SeenEvent>,
    since: Option<i64>,
    /// When it began anew.
    pub(crate) begun_at: i64,
    /// A gateway has let it in by what an owner said before the store went back.
    pub(crate) may_be_undone: bool,
}

impl Client {
    pub(crate) fn new(thread: ThreadId, partition: PartitionId) -> Self {
        Self {
            thread,
            partition,
            is_connected: false,
            connection: 0,
            gateway: 0,
            unread: VecDeque::new(),
            is_reading: false,
            last_id: None,
            id_before: None,
            ids: BTreeSet::new(),
            seen: Vec::new(),
            since: None,
            begun_at: 0,
            may_be_undone: false,
        }
    }

    /// Begins anew: what has ended before is history and not shown.
    pub(crate) fn begin(&mut self, now: i64) {
        (self.begun_at, self.may_be_undone) = (now, false);
        self.seen.clear();
        self.ids.clear();
        (self.last_id, self.id_before, self.since) = (None, None, None);
    }

    /// Goes on where it was cut, at whatever gateway.
    pub(crate) fn connect(&mut self, gateway: usize) {
        self.is_connected = true;
        // Before its first event it has nothing to go on from.
        if self.last_id.is_none() {
            self.since = None;
        }
        self.connection += 1;
        self.gateway = gateway;
    }

    pub(crate) fn cut(&mut self) {
        self.seen.push(SeenEvent::Cut);
        self.unread.clear();
        (self.is_connected, self.is_reading) = (false, false);
        self.connection += 1;
    }

    /// Where it goes on.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        self.last_id.as_deref().and_then(|id| Cursor::parse(id).ok())
    }

    /// Where it was before its last event, for a planted bug.
    pub(crate) fn cursor_before(&self) -> Option<Cursor> {
        self.id_before.as_deref().and_then(|id| Cursor::parse(id).ok()).or_else(|| self.cursor())
    }

    /// It has been let in without a cursor by a feed whose ends up to here are history.
    pub(crate) fn joined(&mut self, base: i64) {
        self.since.get_or_insert(base);
    }

    pub(crate) fn send(&mut self, events: Vec<StreamPart>) {
        // An event may come in two parts, its id and what is shared.
        self.unread.extend(events.into_iter().map(StreamPart::into_bytes));
    }

    /// Reads about so many parts, always whole events. True when there is more.
    pub(crate) fn read(&mut self, parts: usize) -> bool {
        let (mut event, mut count) = (Vec::new(), 0);
        while let Some(part) = self.unread.pop_front() {
            event.extend_from_slice(&part);
            count += 1;
            if event.ends_with(b"\n\n") {
                self.take(&event);
                event.clear();
                if count >= parts {
                    break;
                }
            }
        }
        !self.unread.is_empty()
    }

    fn take(&mut self, event: &[u8]) {
        let text = std::str::from_utf8(event).unwrap_or_default();
        for event in text.split_inclusive("\n\n") {
            let read = native_reader::event(event);
            // Of a message that is sent anew, in the attempt that the client has a part of, the places come again.
            if let Some(SeenEvent::Reset { message, .. }) = &read {
                self.ids.retain(|id| !id.contains(message.as_str()));
            }
            if let Some(id) = event.lines().find_map(|line| line.strip_prefix("id: ")) {
                // A restart names the place that the reader goes back to, which may be that of an event it has.
                let is_restart = event.lines().any(|line| line == "event: restart");
                if is_restart {
                    self.forget_from(id);
                }
                if !self.ids.insert(id.to_owned()) && !is_restart {
                    self.seen.push(SeenEvent::RepeatedId { id: id.to_owned() });
                }
                self.id_before = self.last_id.replace(id.to_owned());
            }
            self.seen.extend(read);
        }
    }

    /// The reader goes back to this place, so places from there on come again.
    fn forget_from(&mut self, id: &str) {
        let base = |id: &str| Cursor::parse(id).ok().map(|cursor| cursor.base());
        let back_to = base(id);
        self.ids.retain(|id| base(id) < back_to);
    }

    /// What it saw; afterwards it has seen nothing.
    pub(crate) fn transcript(&mut self, name: usize) -> Transcript {
        Transcript {
            client: format!("{name}.{}", self.connection),
            thread: self.thread.clone(),
            since: self.since,
            seen: std::mem::take(&mut self.seen),
            is_connected: self.is_connected,
        }
    }
}
