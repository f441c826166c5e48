//! Moves entries between streams while the number of partitions is changed.
//!
//! Entry points: [`Bus::close_streams`] shuts publishers out. After that, entries enter a stream
//! only through [`Bus::append_moved`]. [`Bus::open_streams`] opens the streams again.
//!
//! Invariant: the n-th entry moved into a stream has the n-th sequence after its old end. Each
//! entry is stored with that sequence or not at all ("expected last sequence"). So the stream shows
//! how far a move has come, and an interrupted move continues there.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{DeleteStreamErrorKind, PublishError};
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures_util::StreamExt;
use model::{PartitionCount, PartitionId, Seq};
use runtime::Backoff;
use tokio::time::Instant;
use wire::subject;

use crate::connection::Bus;
use crate::error::{BusError, Disposition};
use crate::publish::refused;
use crate::reader::RawEntry;
use crate::stream::{StreamKind, StreamOptions, StreamOwner};

/// A move fails after this time without progress.
const APPEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of entries without an ack.
const WINDOW: usize = 512;
/// Maximum bytes of the header with the expected sequence.
const EXPECTATION_BYTES: usize = 96;
/// How long a probe message of this process may take to return.
const ECHO_TIMEOUT: Duration = Duration::from_secs(3);
/// Prefix of headers for the server. They describe the stream of the original entry, so they are
/// not copied.
const SERVER_HEADERS: &str = "nats-";

/// An entry that is moved into the stream of another partition, or to the end of its own.
#[derive(Debug, Clone)]
pub struct MovedEntry {
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
}

impl MovedEntry {
    /// The entry in the form in which it is stored under `subject`: with its payload and all
    /// headers of its publisher.
    pub fn new(entry: RawEntry, subject: String) -> Self {
        let mut headers = HeaderMap::new();
        for (name, values) in entry.headers.iter().flat_map(HeaderMap::iter) {
            if !AsRef::<str>::as_ref(name).to_ascii_lowercase().starts_with(SERVER_HEADERS) {
                values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
            }
        }
        if let (None, Some(content_type)) = (&entry.headers, &entry.content_type) {
            headers.insert("Content-Type", content_type.as_str());
        }
        Self { subject, headers, payload: entry.payload }
    }

    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The subject under which the entry is stored.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(|value| name.len() + value.as_str().len() + 4).sum::<usize>()
        });
        self.payload.len() + headers.sum::<usize>()
    }
}

impl Bus {
    /// The configuration of a partition's stream.
    ///
    /// # Errors
    /// The errors of [`Self::stream_state`].
    pub async fn stream_options(&self, partition: PartitionId) -> Result<StreamOptions, BusError> {
        let config = self.stream_info(partition).await?.config;
        Ok(StreamOptions {
            replicas: config.num_replicas,
            max_bytes: config.max_bytes,
            max_message_bytes: config.max_message_size,
            owner: StreamOwner::Unmarked,
        })
    }

    /// Creates the streams of these partitions, or updates them to `options`, so that publishers
    /// can use them.
    ///
    /// # Errors
    /// The errors of [`Self::ensure_streams`].
    pub async fn open_streams(
        &self,
        partitions: impl Iterator<Item = PartitionId> + Clone,
        options: &StreamOptions,
    ) -> Result<(), BusError> {
        self.ensure_all(partitions.map(StreamKind::Partition), options).await
    }

    /// Creates missing streams, and closes the streams of all partitions to publishers. These get
    /// an error from then on.
    ///
    /// # Errors
    /// The errors of [`Self::ensure_streams`].
    pub async fn close_streams(
        &self,
        count: PartitionCount,
        options: &StreamOptions,
    ) -> Result<(), BusError> {
        self.ensure_all(count.all().map(StreamKind::Moving), options).await
    }

    /// Deletes the stream of a partition with its contents. Does nothing if it does not exist.
    ///
    /// # Errors
    /// The servers do not answer, or refuse.
    pub async fn delete_stream(&self, partition: PartitionId) -> Result<(), BusError> {
        let Err(error) = self.shared.api.delete_stream(subject::stream_name(partition)).await else {
            return Ok(());
        };
        match error.kind() {
            DeleteStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                Ok(())
            }
            DeleteStreamErrorKind::JetStream(error) => Err(BusError::api(&error)),
            _ => Err(BusError::Unexpected(error.to_string())),
        }
    }

    /// Stores the entries in a closed stream, in this order, from the sequence after `after` on.
    /// Each is stored exactly once, even with elections and restarts.
    ///
    /// # Errors
    /// Nothing was stored for a minute, a server refuses an entry, or another publisher writes into
    /// the stream.
    pub async fn append_moved(
        &self,
        partition: PartitionId,
        entries: &[MovedEntry],
        after: Seq,
    ) -> Result<(), BusError> {
        let (mut left, mut last) = (entries, after);
        let (mut backoff, mut give_up_at) = (Backoff::default(), Instant::now() + APPEND_TIMEOUT);
        while !left.is_empty() {
            let Err(error) = self.append_windows(left, last).await else { return Ok(()) };
            let is_behind = matches!(&error, BusError::JetStream { code, .. } if *code == ErrorCode::STREAM_WRONG_LAST_SEQUENCE.0);
            if !is_behind && error.disposition() != Disposition::Retry || Instant::now() > give_up_at {
                return Err(error);
            }
            tokio::time::sleep(backoff.next_delay()).await;
            // Acks may have been lost, so the state of the stream shows how many entries are
            // stored.
            let Ok(state) = self.stream_state(partition).await else { continue };
            let stored = usize::try_from(state.last_seq.0.saturating_sub(last.0)).unwrap_or(usize::MAX);
            if stored > 0 {
                let name = subject::stream_name(partition);
                let foreign = || BusError::Unexpected(format!("something else writes into {name}"));
                left = left.get(stored..).ok_or_else(foreign)?;
                (last, give_up_at) = (state.last_seq, Instant::now() + APPEND_TIMEOUT);
            }
        }
        Ok(())
    }

    /// Appends one window after the other. An entry without room for another header is sent alone,
    /// after all earlier entries are stored.
    async fn append_windows(&self, entries: &[MovedEntry], after: Seq) -> Result<(), BusError> {
        let most = self.max_payload().saturating_sub(EXPECTATION_BYTES);
        let (mut left, mut last) = (entries, after);
        while let Some(first) = left.first() {
            let room = left.iter().take(WINDOW).take_while(|entry| entry.size() <= most).count();
            let expects = room > 0;
            let (window, rest) = left.split_at(room.max(1));
            tracing::trace!(subject = first.subject, after = last.0, entries = window.len(), "appending");
            self.append_window(window, last, expects).await?;
            (left, last) = (rest, Seq(last.0 + window.len() as u64));
        }
        Ok(())
    }

    async fn append_window(&self, window: &[MovedEntry], after: Seq, expects: bool) -> Result<(), BusError> {
        if !self.shared.publishing.is_connected() {
            return Err(BusError::Away);
        }
        let mut acks = Vec::with_capacity(window.len());
        for (entry, last) in window.iter().zip(after.0..) {
            let mut message =
                PublishMessage::build().payload(entry.payload.clone()).headers(entry.headers.clone());
            if expects {
                message = message.expected_last_sequence(last);
            }
            let sent = self.shared.store.send_publish(subject::moving(&entry.subject), message).await;
            acks.push(sent.map_err(|error: PublishError| refused(&error, &entry.subject))?);
        }
        for (entry, ack) in window.iter().zip(acks) {
            ack.await.map_err(|error| refused(&error, &entry.subject))?;
        }
        Ok(())
    }

    /// The partition to which the account of the servers maps `<kind>.<key>`; `None`: the account
    /// has no such mapping. Streams do not store the probe, because it expects a stream that does
    /// not exist.
    ///
    /// # Errors
    /// The probe did not return: the user is not allowed to publish or subscribe to these subjects,
    /// or the servers do not answer.
    pub async fn mapped_partition(&self, kind: &str, key: &str) -> Result<Option<PartitionId>, BusError> {
        let client = self.listening().await?.client;
        let (plain, mapped) = (format!("{kind}.{key}"), format!("{kind}.*.{key}"));
        let heard = (client.subscribe(plain.clone()).await?, client.subscribe(mapped).await?);
        let mut heard = futures_util::stream::select(heard.0, heard.1);
        let mut headers = HeaderMap::new();
        headers.insert(async_nats::header::NATS_EXPECTED_STREAM, "none");
        client.publish_with_headers(plain, headers, Bytes::new()).await?;
        let echo = tokio::time::timeout(ECHO_TIMEOUT, heard.next()).await;
        let echo = echo.ok().flatten().ok_or(BusError::Timeout("a message of our own"))?;
        let partition = echo.subject.split('.').nth(1).filter(|_| echo.subject.split('.').count() == 3);
        Ok(partition.and_then(|number| number.parse().ok()).map(PartitionId))
    }
}
