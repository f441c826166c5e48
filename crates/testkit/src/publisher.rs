//! A publisher that follows the contract: a window of unacknowledged payloads, and the same payload
//! again until the stream has it. The [`AckLog`] records what was acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_nats::jetstream::{self, context::ContextBuilder, message::PublishMessage};
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use model::{Frame, PartitionCount, ThreadId};
use tokio::time::sleep;

use crate::acked_publishes::AckLog;

/// The encoding of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The JSON of a chunk, or an array of them.
    Json,
    /// The protobuf frame.
    Protobuf,
}

/// The kind of subject that a frame is sent to.
#[derive(Debug, Clone, Copy)]
pub enum Addressing {
    /// `chunks.<p>.<thread>`, computed here.
    Exact(PartitionCount),
    /// `chunks.<thread>`: the account of the server maps it.
    Mapped,
}

#[derive(Debug, Clone)]
pub struct Publication {
    pub frame: Frame,
    pub encoding: Encoding,
}

/// The outcome of [`Publisher::publish`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Delivered {
    pub acked: usize,
    /// Number of times that a payload was sent again.
    pub retries: usize,
}

/// One connection that publishes.
#[derive(Debug, Clone)]
pub struct Publisher {
    context: jetstream::Context,
    addressing: Addressing,
    deadline: Duration,
}

impl Publisher {
    /// Time to wait for an acknowledgement before the payload is sent again.
    pub const ACK_TIMEOUT: Duration = Duration::from_secs(2);
    /// The most payloads in flight.
    pub const WINDOW: usize = 1000;
    /// Limit for one payload; after it the run is given up.
    pub const DEADLINE: Duration = Duration::from_secs(120);

    /// Connects; waits for a server that is unreachable.
    pub async fn connect(url: &str, addressing: Addressing) -> Result<Self> {
        let options = async_nats::ConnectOptions::new()
            .name("testkit publisher")
            .ping_interval(Duration::from_secs(5))
            .client_capacity(16 * 1024)
            .reconnect_delay_callback(|attempts| Duration::from_millis((attempts as u64 * 20).min(250)))
            .retry_on_initial_connect();
        let client = options
            .connect(crate::nats_addresses(url)?)
            .await
            .with_context(|| format!("connecting to {url}"))?;
        let context = ContextBuilder::new()
            .timeout(Self::ACK_TIMEOUT)
            .max_ack_inflight(4 * Self::WINDOW)
            .backpressure_on_inflight(true)
            .build(client);
        Ok(Self { context, addressing, deadline: Self::DEADLINE })
    }

    pub fn context(&self) -> &jetstream::Context {
        &self.context
    }

    /// The subject of a thread's chunks.
    pub fn subject(&self, thread: &ThreadId) -> String {
        match self.addressing {
            Addressing::Exact(count) => wire::subject::partition_chunks(count, thread),
            Addressing::Mapped => wire::subject::chunks(thread),
        }
    }

    /// Publishes everything, in this order unless something must be sent again.
    ///
    /// # Errors
    /// A payload was not acknowledged within [`Publisher::DEADLINE`].
    pub async fn publish(
        &self,
        publications: impl IntoIterator<Item = Publication>,
        ack_log: &AckLog,
    ) -> Result<Delivered> {
        let mut publications = publications.into_iter();
        let mut in_flight = FuturesUnordered::new();
        let mut delivered = Delivered::default();
        loop {
            while in_flight.len() < Self::WINDOW {
                let Some(publication) = publications.next() else { break };
                in_flight.push(self.deliver(publication, ack_log));
            }
            match in_flight.next().await {
                None => return Ok(delivered),
                Some(retries) => {
                    delivered.acked += 1;
                    delivered.retries += retries?;
                }
            }
        }
    }

    /// Publishes one payload unchanged, and returns its stream sequence.
    pub async fn publish_raw(
        &self,
        subject: &str,
        content_type: Option<&str>,
        payload: Bytes,
    ) -> Result<u64> {
        let message = PublishMessage::build().payload(payload);
        let message = match content_type {
            Some(content_type) => message.header("Content-Type", content_type),
            None => message,
        };
        let ack = self.context.send_publish(subject.to_owned(), message).await?.await;
        Ok(ack.with_context(|| format!("publishing to {subject}"))?.sequence)
    }

    async fn deliver(&self, publication: Publication, ack_log: &AckLog) -> Result<usize> {
        let subject = self.subject(&publication.frame.thread);
        let payload = match publication.encoding {
            Encoding::Json => wire::encode_json(&publication.frame),
            Encoding::Protobuf => wire::encode_frame(&publication.frame),
        };
        let started = Instant::now();
        let mut pause = Duration::from_millis(50);
        let mut retries = 0;
        loop {
            match self.publish_raw(&subject, None, payload.clone()).await {
                Ok(seq) => {
                    ack_log.acked(&publication.frame, seq);
                    return Ok(retries);
                }
                Err(error) if started.elapsed() > self.deadline => return Err(error),
                Err(_) => sleep(pause).await,
            }
            retries += 1;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}
