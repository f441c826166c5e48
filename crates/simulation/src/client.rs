//! A client of one thread: it reads events from the gateway it is connected to, and reconnects with
//! its last id.

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
    /// Events sent to an earlier connection are lost.
    pub(crate) connection: u64,
    pub(crate) gateway: usize,
    /// Events in flight to the client.
    unread: VecDeque<Bytes>,
    pub(crate) is_reading: bool,
    last_id: Option<String>,
    id_before: Option<String>,
    ids: BTreeSet<String>,
    seen: Vec<SeenEvent>,
    since: Option<i64>,
    /// When the client last started over without a cursor, ms.
    pub(crate) begun_at: i64,
    /// A gateway let the client join by an owner's report from before the store went back in time.
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

    /// Starts over: messages that have ended by now are history and not shown.
    pub(crate) fn begin(&mut self, now: i64) {
        (self.begun_at, self.may_be_undone) = (now, false);
        self.seen.clear();
        self.ids.clear();
        (self.last_id, self.id_before, self.since) = (None, None, None);
    }

    /// Reconnects to any gateway and continues where the connection was cut.
    pub(crate) fn connect(&mut self, gateway: usize) {
        self.is_connected = true;
        // Before its first event it has no cursor.
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

    /// The cursor of the last event.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        self.last_id.as_deref().and_then(|id| Cursor::parse(id).ok())
    }

    /// The cursor of the event before the last one, for a planted bug.
    pub(crate) fn cursor_before(&self) -> Option<Cursor> {
        self.id_before.as_deref().and_then(|id| Cursor::parse(id).ok()).or_else(|| self.cursor())
    }

    /// A gateway has let the client in without a cursor; `base` is the position up to which ends
    /// are history.
    pub(crate) fn joined(&mut self, base: i64) {
        self.since.get_or_insert(base);
    }

    pub(crate) fn send(&mut self, events: Vec<StreamPart>) {
        // An event may arrive in two parts: its id and the shared rest.
        self.unread.extend(events.into_iter().map(StreamPart::into_bytes));
    }

    /// Reads about `parts` parts, but always whole events. True if there are more.
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
            // If a message is sent again in an attempt of which the client already has a part, its
            // ids repeat.
            if let Some(SeenEvent::Reset { message, .. }) = &read {
                self.ids.retain(|id| !id.contains(message.as_str()));
            }
            if let Some(id) = event.lines().find_map(|line| line.strip_prefix("id: ")) {
                // The id of a restart is the position that the reader goes back to, which may be
                // that of an earlier event.
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

    /// The reader goes back to this position, so ids from there on repeat.
    fn forget_from(&mut self, id: &str) {
        let base = |id: &str| Cursor::parse(id).ok().map(|cursor| cursor.base());
        let back_to = base(id);
        self.ids.retain(|id| base(id) < back_to);
    }

    /// Takes what the client saw; afterwards it has seen nothing.
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
