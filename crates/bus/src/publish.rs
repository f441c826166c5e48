//! Durable publishing: when a call returns, the message is stored.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use model::Seq;
use runtime::Backoff;
use runtime::traces::TraceContext;
use tokio::time::Instant;

use crate::connection::Bus;
use crate::error::{BusError, Disposition};

/// Where an entry was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishAck {
    pub stream: String,
    /// The sequence in the stream.
    pub seq: Seq,
    /// True if the stream had an entry with this id already. `seq` is then the sequence of that
    /// entry.
    pub is_duplicate: bool,
}

/// A message to publish.
struct Publication<'a> {
    subject: &'a str,
    payload: Bytes,
    content_type: Option<&'a str>,
    id: Option<&'a str>,
    trace: Option<&'a TraceContext>,
    /// The expected last sequence of the subject in the stream; 0: the subject has no entry.
    expected: Option<Seq>,
}

impl Bus {
    /// Publishes into the stream that stores `subject` and waits for the ack. Tries again until
    /// `timeout` has passed: during elections, restarts and while the stream is full.
    ///
    /// A lost ack leads to a second entry, which the reader recognises by the ids in the payload.
    ///
    /// # Errors
    /// The error of the last try, when the timeout has passed or the error must not be retried.
    pub async fn publish_acked(
        &self,
        subject: &str,
        payload: Bytes,
        content_type: Option<&str>,
        timeout: Duration,
    ) -> Result<PublishAck, BusError> {
        let entry = Publication { subject, payload, content_type, id: None, trace: None, expected: None };
        self.publish_until(&entry, timeout).await
    }

    /// Does [`Self::publish_acked`] with an id. Within its duplicate window, the stream drops a
    /// second message with the same id.
    ///
    /// # Errors
    /// The errors of [`Self::publish_acked`].
    pub async fn publish_with_id(
        &self,
        subject: &str,
        payload: Bytes,
        content_type: Option<&str>,
        id: &str,
        timeout: Duration,
    ) -> Result<PublishAck, BusError> {
        let entry = Publication { subject, payload, content_type, id: Some(id), trace: None, expected: None };
        self.publish_until(&entry, timeout).await
    }

    /// Does [`Self::publish_acked`], optionally with an id as in [`Self::publish_with_id`], and
    /// with a trace in the headers.
    ///
    /// # Errors
    /// The errors of [`Self::publish_acked`].
    pub async fn publish_traced(
        &self,
        subject: &str,
        payload: Bytes,
        content_type: Option<&str>,
        id: Option<&str>,
        trace: Option<&TraceContext>,
        timeout: Duration,
    ) -> Result<PublishAck, BusError> {
        let entry = Publication { subject, payload, content_type, id, trace, expected: None };
        self.publish_until(&entry, timeout).await
    }

    /// Replaces the entry with this sequence, which must be the last one of the subject (0: the
    /// subject has none). Returns `None` if another entry has been stored meanwhile.
    ///
    /// If the ack is lost, the entry is stored but the result is still `None`. So the caller reads
    /// the current entry.
    ///
    /// # Errors
    /// The errors of [`Self::publish_acked`].
    pub async fn replace_entry(
        &self,
        subject: &str,
        payload: Bytes,
        replaced: Seq,
        timeout: Duration,
    ) -> Result<Option<Seq>, BusError> {
        let content_type = Some(wire::CONTENT_TYPE_JSON);
        let entry =
            Publication { subject, payload, content_type, id: None, trace: None, expected: Some(replaced) };
        match self.publish_until(&entry, timeout).await {
            Ok(ack) => Ok(Some(ack.seq)),
            // The subject has another last sequence.
            Err(BusError::JetStream { code: 10071 | 10164, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn publish_until(
        &self,
        entry: &Publication<'_>,
        timeout: Duration,
    ) -> Result<PublishAck, BusError> {
        let give_up_at = Instant::now() + timeout;
        let mut backoff = Backoff::default();
        loop {
            let error = match self.publish_once(entry).await {
                Ok(ack) => return Ok(ack),
                Err(error) => error,
            };
            let delay = backoff.next_delay();
            if error.disposition() != Disposition::Retry || Instant::now() + delay > give_up_at {
                return Err(error);
            }
            tokio::time::sleep(delay).await;
        }
    }

    async fn publish_once(&self, entry: &Publication<'_>) -> Result<PublishAck, BusError> {
        // Without a connection each try would be queued, and all tries would be sent on the
        // reconnect.
        if !self.shared.publishing.is_connected() {
            return Err(BusError::Away);
        }
        let mut message = PublishMessage::build().payload(entry.payload.clone());
        if let Some(content_type) = entry.content_type {
            message = message.header("Content-Type", content_type);
        }
        for (name, value) in entry.trace.into_iter().flat_map(TraceContext::headers) {
            message = message.header(name, value.as_str());
        }
        if let Some(id) = entry.id {
            message = message.message_id(id);
        }
        if let Some(expected) = entry.expected {
            message = message.expected_last_subject_sequence(expected.0);
        }
        let sent = self.shared.store.send_publish(entry.subject.to_owned(), message).await;
        let refused = |error: PublishError| refused(&error, entry.subject);
        let ack = sent.map_err(refused)?.await.map_err(refused)?;
        Ok(PublishAck { stream: ack.stream, seq: Seq(ack.sequence), is_duplicate: ack.duplicate })
    }
}

pub(crate) fn refused(error: &PublishError, subject: &str) -> BusError {
    let source =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<jetstream::Error>());
    match (error.kind(), source) {
        (_, Some(source)) => BusError::api(source),
        // The error is the same during an election.
        (PublishErrorKind::StreamNotFound, _) => {
            BusError::NoStream(format!("none stores {subject}, or no leader"))
        }
        (PublishErrorKind::TimedOut, _) => BusError::Timeout("ack of a publish"),
        (PublishErrorKind::MaxPayloadExceeded, _) => BusError::TooLarge(error.to_string()),
        (PublishErrorKind::BrokenPipe, _) => BusError::Away,
        _ => BusError::Unexpected(error.to_string()),
    }
}
