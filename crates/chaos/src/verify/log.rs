//! The log that NATS has at the end of a run. All other data is compared with it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_nats::{
    HeaderMap,
    jetstream::{self, consumer},
};
use futures_util::StreamExt;
use model::{Frame, MessageKey, PartitionCount, PartitionId};
use simulation::checker::{Publish, Published};
use wire::DecodeLimits;

/// Maximum bytes of a chunk: the binary's default.
const CHUNK_BYTES: usize = 64 << 10;
/// Entries per request.
const BATCH: usize = 1_000;
/// Maximum number of times that a stream is read if its end cannot be reached.
const READ_TRIES: usize = 5;
/// Maximum time for the stream to deliver an entry that it has.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Reads every partition's stream from its first entry to its last. The fleet must keep its log;
/// see [`super::KEEP_LOG`].
///
/// # Errors
/// A stream cannot be read, or an entry between its first and its last one is missing.
pub async fn read_log(context: &jetstream::Context, partitions: PartitionCount) -> Result<Vec<Publish>> {
    let mut log = Vec::new();
    for partition in partitions.all() {
        let limits = DecodeLimits { chunk_bytes: CHUNK_BYTES, partitions };
        let (before, mut tries) = (log.len(), 0);
        // If the machine is busy with processes that have just ended, a cluster occasionally loses
        // a consumer.
        while let Err(error) = read_stream(context, partition, &limits, &mut log).await {
            tries += 1;
            if tries == READ_TRIES {
                return Err(error).with_context(|| format!("reading the stream of partition {partition}"));
            }
            log.truncate(before);
        }
    }
    Ok(log)
}

async fn read_stream(
    context: &jetstream::Context,
    partition: PartitionId,
    limits: &DecodeLimits,
    log: &mut Vec<Publish>,
) -> Result<()> {
    let mut stream = context.get_stream(wire::subject::stream_name(partition)).await?;
    let state = stream.info().await?.state.clone();
    if state.messages == 0 {
        return Ok(());
    }
    let config = consumer::pull::Config {
        ack_policy: consumer::AckPolicy::None,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: Duration::from_secs(30),
        ..consumer::pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let mut messages = consumer.stream().max_messages_per_batch(BATCH).messages().await?;
    for expected in state.first_sequence..=state.last_sequence {
        let next = tokio::time::timeout(READ_TIMEOUT, messages.next()).await;
        let message = next.with_context(|| format!("no entry {expected}"))?.context("the end")??;
        let info = message.info().map_err(anyhow::Error::from_boxed)?;
        ensure!(info.stream_sequence == expected, "entry {} instead of {expected}", info.stream_sequence);
        let at_ms = i64::try_from(info.published.unix_timestamp_nanos() / 1_000_000)?;
        let bodies = bodies(partition, &message, limits);
        log.extend(bodies.into_iter().map(|body| Publish { partition, seq: expected, at_ms, body }));
    }
    Ok(())
}

fn bodies(partition: PartitionId, message: &async_nats::Message, limits: &DecodeLimits) -> Vec<Published> {
    let content_type = message.headers.as_ref().and_then(content_type);
    let payload = &message.payload;
    match wire::decode_entry(partition, &message.subject, content_type, payload, limits) {
        Ok(wire::Decoded::Frame(frame)) => chunks(frame),
        Ok(wire::Decoded::Command(_)) => Vec::new(),
        Err(_) => vec![Published::Garbage(payload.clone())],
    }
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get("Content-Type").map(|value| value.as_str())
}

/// Converts the chunks of one entry to the checker's types.
pub(super) fn chunks(frame: Frame) -> Vec<Published> {
    let Frame { thread, chunks, token: _ } = frame;
    let published = |arrival: model::IncomingChunk| Published::Chunk {
        key: MessageKey { thread: thread.clone(), message: arrival.message },
        attempt: arrival.attempt,
        chunk: arrival.chunk,
    };
    chunks.into_iter().map(published).collect()
}
