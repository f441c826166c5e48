//! Measures how fast a stream could be read at best: the client library alone counts entries,
//! without acknowledgements.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::{self, consumer};
use futures_util::StreamExt;

use crate::{
    backlog::{self, Backlog},
    environment::{ChunkEnvironment, PARTITION},
    usage::{Meter, Used},
};

/// Entries per request.
const BATCH: usize = 2_000;

/// One read of the whole stream.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) rate: f64,
    /// Processor time; `own` is that of the reading client.
    pub(super) used: Used,
}

/// Reads the stream from its beginning to its end.
pub(super) async fn read(environment: &ChunkEnvironment, backlog: &Backlog) -> Result<Reading> {
    let client = async_nats::connect(environment.nats.url()).await?;
    let stream = jetstream::new(client).get_stream(wire::subject::stream_name(PARTITION)).await?;
    let config = consumer::pull::Config {
        ack_policy: consumer::AckPolicy::None,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: Duration::from_secs(30),
        ..consumer::pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let meter = Meter::start(&environment.processes());
    let started = Instant::now();
    let mut messages = consumer.stream().max_messages_per_batch(BATCH).messages().await?;
    let (mut entries, mut bytes) = (0, 0);
    while entries < backlog.entries {
        let message = messages.next().await.context("the stream has ended")??;
        entries += 1;
        bytes += message.payload.len();
    }
    let seconds = started.elapsed().as_secs_f64();
    ensure!(bytes as u64 > backlog.chunks * backlog::CHUNK_BYTES as u64, "the stream lacks payload");
    Ok(Reading { rate: backlog.chunks as f64 / seconds, used: meter.used() })
}
