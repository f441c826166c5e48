//! Reads one partition's stream, in order, without acks, from a given sequence on.
//!
//! This is not the client library's ordered consumer. That one restarts at sequence 1 when it is
//! renewed before its first entry, and it detects a dead consumer only after 44 seconds. Here every
//! doubt ends the consumer: a missing delivery, two seconds of silence, a lost connection, or a
//! status of the server. A new consumer then starts after the last entry seen.
//!
//! The reader returns entries in order and each once. It skips missing sequences, and the caller
//! sees the jump.

mod consumer;
mod delivery;
mod end;
mod entry;
mod session;

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::{Mark, PartitionId, Seq};
use runtime::Backoff;
use tokio::time::Instant;

pub use self::consumer::ExpectedStream;
use self::consumer::{OpenConsumer, OpenResult};
use self::end::KnownEnd;
use self::session::{ConsumerSession, RestartReason, SILENCE_LIMIT, SessionEvent};
use crate::connection::Bus;
use crate::error::BusError;
use crate::stream::StreamState;

pub use self::entry::RawEntry;

/// A server that has just started may not know a stream yet. A stream that is still missing after
/// this time does not exist.
const MISSING_STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// If the connections of this many consecutive consumers broke before the first entry, the entry is
/// assumed to break connections.
const BREAKS_ON_ENTRY: u32 = 2;

/// How long a replica may lag behind its leader, in addition to [`ConsumerSession::silence`]. The
/// leader reports a commit within a second.
const REPLICA_BEHIND_LIMIT: Duration = Duration::from_secs(1);

/// Interval at which a finished reader repeats its event, so that a caller that keeps reading does
/// not spin.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// An event that a reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReaderEvent {
    /// The next entries, at least one.
    Entries(Vec<RawEntry>),
    /// True: all entries of the stream have been returned. False: for two seconds and a round trip,
    /// this has been untrue or unknown. Returned on change; a new reader starts with false.
    CaughtUp(bool),
    /// The reason why the stream cannot be read at the moment; `None`: it can be read again.
    /// Returned on change.
    Trouble(Option<String>),
    /// The stream is not the one that was opened. It was deleted, recreated, is shorter than what
    /// was read, or lost its end and was then written to. The reader returns no more entries.
    StreamChanged,
}

/// The reader of one partition.
pub struct PartitionReader {
    bus: Bus,
    partition: PartitionId,
    epoch: u64,
    stream: StreamState,
    /// All entries up to this sequence have been returned.
    position: Seq,
    /// The highest entry ever seen; above `position` after [`Self::restart`].
    highest: Option<Mark>,
    phase: Phase,
    queued: Option<ReaderEvent>,
    caught_up: bool,
    /// The last time at which the reader knew that no entry was unread.
    clear_at: Instant,
    backoff: Backoff,
    restarts: u64,
    breaks: u32,
    missing_since: Option<Instant>,
    /// See [`ReaderEvent::Trouble`].
    trouble: Option<String>,
    /// The value of [`ConsumerSession::silence`] in the last session.
    silence: Duration,
}

enum Phase {
    OpenConsumer(BoxFuture<'static, Result<OpenResult, BusError>>),
    Reading(Box<ConsumerSession>, KnownEnd),
    Changed,
}

impl PartitionReader {
    /// Opens the stream of `partition` for reading from sequence `from` on, as the owner with this
    /// epoch. Consumers of lower epochs are deleted.
    ///
    /// If the stream does not match `same`, or `from` is beyond its end, the reader returns
    /// [`ReaderEvent::StreamChanged`].
    ///
    /// # Errors
    /// The stream does not exist, or the servers do not answer.
    pub async fn open(
        bus: &Bus,
        partition: PartitionId,
        epoch: u64,
        from: Seq,
        same: ExpectedStream,
    ) -> Result<Self, BusError> {
        let highest = same.read;
        let opening = OpenConsumer {
            bus: bus.clone(),
            partition,
            epoch,
            from,
            is_first: true,
            same,
            previous: None,
            delay: Duration::ZERO,
            fetch_one: false,
        };
        let (phase, stream) = match opening.run().await? {
            OpenResult::Session(session, stream, end) => (Phase::Reading(session, end), stream),
            OpenResult::Changed(stream) => (Phase::Changed, stream),
            OpenResult::Fetched(_) => {
                return Err(BusError::Unexpected("an entry that was not requested".to_owned()));
            }
        };
        let mut reader = Self {
            bus: bus.clone(),
            partition,
            epoch,
            stream,
            position: from.before(),
            highest,
            phase,
            queued: None,
            caught_up: false,
            clear_at: Instant::now(),
            backoff: Backoff::default(),
            restarts: 0,
            breaks: 0,
            missing_since: None,
            trouble: None,
            silence: SILENCE_LIMIT,
        };
        if let Phase::Reading(session, _) = &reader.phase {
            reader.silence = session.silence();
        }
        reader.note_clear();
        Ok(reader)
    }

    /// The state of the stream when it was last opened.
    pub fn stream(&self) -> &StreamState {
        &self.stream
    }

    /// How often the consumer was recreated because of a doubt.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The next event. Up to `max` available entries are returned together. Cancel-safe: no entry
    /// is lost, and if a new consumer is being opened, the next call continues.
    ///
    /// A caller that does not call it pauses the reader: the server sends at most 2,000 entries or
    /// 8 MiB ahead.
    pub async fn next_batch(&mut self, max: usize) -> ReaderEvent {
        loop {
            if let Some(event) = self.queued.take() {
                return event;
            }
            if self.caught_up && self.clear_at.elapsed() > self.silence {
                self.caught_up = false;
                return ReaderEvent::CaughtUp(false);
            }
            if let Some(event) = self.advance(max.max(1)).await {
                return event;
            }
        }
    }

    /// Continues reading at sequence `from`, backwards or forwards.
    pub fn restart(&mut self, from: Seq) {
        let previous = match std::mem::replace(&mut self.phase, Phase::Changed) {
            Phase::Reading(session, _) => Some(session.consumer.clone()),
            Phase::OpenConsumer(_) => None,
            Phase::Changed => return,
        };
        self.position = from.before();
        self.queued = self.caught_up.then_some(ReaderEvent::CaughtUp(false));
        self.caught_up = false;
        self.phase = Phase::OpenConsumer(self.opening(previous, Duration::ZERO));
    }

    /// Deletes the consumer on the server. If a reader is only dropped, its consumer expires there.
    pub async fn close(self) {
        if let Phase::Reading(session, _) = self.phase {
            let stream = wire::subject::stream_name(self.partition);
            let deletion = self.bus.shared.api.delete_consumer_from_stream(&session.consumer, stream);
            let _ = tokio::time::timeout(SILENCE_LIMIT, deletion).await;
        }
    }

    async fn advance(&mut self, max: usize) -> Option<ReaderEvent> {
        match &mut self.phase {
            Phase::Reading(session, end) => {
                let seems_clear = session.is_clear();
                tokio::select! {
                    biased;
                    received = session.receive(max) => match received {
                        Ok(SessionEvent::Entries(entries)) => return Some(self.hand_out(entries)),
                        Ok(SessionEvent::Nothing) => self.note_clear(),
                        Err(doubt) => self.renew(&doubt),
                    },
                    () = end.ask(&self.bus, self.partition), if seems_clear => {
                        self.note_clear();
                        self.leave_replica_behind();
                    }
                }
                self.note_end()
            }
            Phase::OpenConsumer(opening) => {
                let stale = async {
                    match self.caught_up {
                        true => tokio::time::sleep_until(self.clear_at + self.silence).await,
                        false => std::future::pending().await,
                    }
                };
                tokio::select! {
                    opened = opening => self.opened(opened),
                    () = stale => None,
                }
            }
            Phase::Changed => {
                tokio::time::sleep(REPEAT_INTERVAL).await;
                Some(ReaderEvent::StreamChanged)
            }
        }
    }

    fn hand_out(&mut self, entries: Vec<RawEntry>) -> ReaderEvent {
        if let Some(last) = entries.last() {
            self.position = last.seq;
            self.highest = self.highest.filter(|known| known.seq > last.seq).or_else(|| Some(last.mark()));
        }
        self.backoff.reset();
        self.note_clear();
        ReaderEvent::Entries(entries)
    }

    fn note_clear(&mut self) {
        let Phase::Reading(session, end) = &self.phase else { return };
        let reached =
            end.reached_at(self.position).filter(|at| session.is_clear() && at.elapsed() < self.silence);
        let Some(reached_at) = reached else { return };
        self.clear_at = reached_at;
        if !self.caught_up {
            self.caught_up = true;
            self.queued = Some(ReaderEvent::CaughtUp(true));
        }
    }

    /// Recreates the consumer, which may then be at another replica. A replica may fail to catch up
    /// for minutes (nats-server 2.15 after faults).
    fn leave_replica_behind(&mut self) {
        let Phase::Reading(session, end) = &mut self.phase else { return };
        let behind =
            end.behind(self.position).filter(|(time, _)| *time > REPLICA_BEHIND_LIMIT + self.silence);
        if let Some((_, end)) = behind.filter(|_| session.is_idle()) {
            self.renew(&RestartReason::ReplicaBehind { end });
        }
    }

    /// Returns an event when the end of the stream becomes unknown or known again.
    fn note_end(&mut self) -> Option<ReaderEvent> {
        let Phase::Reading(_, end) = &self.phase else { return None };
        let trouble = end.is_lost().then(|| "no leader that a majority of the replicas follows".to_owned());
        if self.trouble == trouble {
            return None;
        }
        self.trouble = trouble.clone();
        Some(ReaderEvent::Trouble(trouble))
    }

    fn renew(&mut self, doubt: &RestartReason) {
        let Phase::Reading(session, _) = &self.phase else { return };
        let broke = matches!(doubt, RestartReason::Reconnected | RestartReason::Ended);
        self.breaks = match (session.has_delivered(), broke) {
            (false, true) => self.breaks + 1,
            _ => 0,
        };
        let (previous, delivered) = (session.consumer.clone(), session.has_delivered());
        self.restarts += 1;
        crate::metrics::reader_restarted(doubt.name());
        tracing::warn!(partition = %self.partition, %doubt, after = %self.position, "reader makes a new consumer");
        let delay = if delivered { Duration::ZERO } else { self.backoff.next_delay() };
        self.phase = Phase::OpenConsumer(self.opening(Some(previous), delay));
    }

    fn opened(&mut self, opened: Result<OpenResult, BusError>) -> Option<ReaderEvent> {
        match opened {
            Ok(OpenResult::Session(session, stream, end)) => {
                tracing::debug!(partition = %self.partition, consumer = session.consumer, "reader reads");
                self.missing_since = None;
                self.stream = stream;
                self.silence = session.silence();
                self.phase = Phase::Reading(session, end);
                self.note_clear();
                self.trouble.take().map(|_| ReaderEvent::Trouble(None))
            }
            Ok(OpenResult::Changed(stream)) => Some(self.changed(Some(stream))),
            Ok(OpenResult::Fetched(entry)) => {
                tracing::warn!(partition = %self.partition, seq = %entry.seq,
                    "entry with headers that cannot be read, fetched without them");
                self.breaks = 0;
                let event = self.hand_out(vec![entry]);
                self.phase = Phase::OpenConsumer(self.opening(None, Duration::ZERO));
                Some(event)
            }
            Err(error) => self.retry(&error),
        }
    }

    fn retry(&mut self, error: &BusError) -> Option<ReaderEvent> {
        if matches!(error, BusError::NoStream(_)) {
            let since = *self.missing_since.get_or_insert_with(Instant::now);
            if since.elapsed() > MISSING_STREAM_TIMEOUT {
                return Some(self.changed(None));
            }
        }
        tracing::debug!(partition = %self.partition, %error, "reader cannot be opened yet");
        let delay = self.backoff.next_delay();
        self.phase = Phase::OpenConsumer(self.opening(None, delay));
        let trouble = Some(error.to_string());
        if self.trouble == trouble {
            return None;
        }
        self.trouble = trouble.clone();
        Some(ReaderEvent::Trouble(trouble))
    }

    fn changed(&mut self, stream: Option<StreamState>) -> ReaderEvent {
        tracing::error!(partition = %self.partition, was = self.stream.incarnation, read = ?self.highest,
            is = ?stream, "the stream is not the one that was read");
        self.phase = Phase::Changed;
        ReaderEvent::StreamChanged
    }

    fn opening(
        &self,
        previous: Option<String>,
        delay: Duration,
    ) -> BoxFuture<'static, Result<OpenResult, BusError>> {
        let same = ExpectedStream { incarnation: Some(self.stream.incarnation.clone()), read: self.highest };
        let opening = OpenConsumer {
            bus: self.bus.clone(),
            partition: self.partition,
            epoch: self.epoch,
            from: self.position.next(),
            is_first: false,
            same,
            previous,
            delay,
            fetch_one: self.breaks >= BREAKS_ON_ENTRY,
        };
        opening.run().boxed()
    }
}
