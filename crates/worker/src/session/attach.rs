//! Starting a session: the partition as the store has it, and its stream as it is.

use std::time::Duration;

use bus::Reader;
use model::Seq;
use partition::Partition;
use runtime::{Backoff, Condition};
use store::Grant;

use super::{Session, now};
use crate::Context;
use crate::asks::Asks;
use crate::errands::{Beyond, Errands};
use crate::feed::Feed;
use crate::lease::Lease;
use crate::meter::Meter;
use crate::purge::Purge;
use crate::retaining::Retaining;

/// Loads the partition and opens its stream, for as long as it takes. `None` when the lease is gone.
pub(super) async fn attach<'a>(
    context: &'a Context,
    grant: &Grant,
    lease: Lease,
    readable: &'a Condition,
) -> Option<Session<'a>> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut said = false;
    loop {
        let error = match try_attach(context, grant, lease.clone(), readable).await {
            Ok(session) => {
                readable.met();
                return session;
            }
            Err(error) => error,
        };
        readable.unmet(error.to_string());
        match std::mem::replace(&mut said, true) {
            false => {
                tracing::warn!(partition = %grant.partition, %error, "a partition cannot start yet and keeps trying");
            }
            true => tracing::debug!(partition = %grant.partition, %error, "still waiting"),
        }
        backoff.wait().await;
    }
}

async fn try_attach<'a>(
    context: &'a Context,
    grant: &Grant,
    lease: Lease,
    readable: &'a Condition,
) -> Result<Option<Session<'a>>, Box<dyn std::error::Error + Send + Sync>> {
    let (config, partition) = (&context.config, grant.partition);
    let stream = context.bus.stream_state(partition).await?;
    let checkpoint = place(grant, &stream);
    if checkpoint != grant.checkpoint || grant.incarnation.as_deref() != Some(stream.incarnation.as_str()) {
        let rebased =
            context.store.rebase(&config.worker_id, partition, grant.epoch, checkpoint, &stream.incarnation);
        if !rebased.await? {
            return Ok(None);
        }
    }
    let takeover =
        partition::Takeover { checkpoint, ..context.store.load(grant, config.limits.queue_window).await? };
    let questions = context.bus.serve_asks(partition).await?;
    let reader = Reader::open(&context.bus, partition, grant.epoch, checkpoint.next()).await?;
    let limits = wire::DecodeLimits { chunk_bytes: config.chunk_bytes, partitions: config.partitions };
    let after = takeover.outbox.last().map(|batch| batch.id);
    let beyond = Beyond { partition, after, count: takeover.outbox_beyond };
    let (epoch, stragglers) = (grant.epoch, takeover.stragglers.len());
    tracing::info!(%partition, epoch, %checkpoint, stragglers, "partition taken");
    Ok(Some(Session {
        context,
        lease,
        readable,
        epoch,
        machine: Partition::new(takeover, config.limits, rand::random(), now(context)),
        feed: Feed::start(reader, partition, limits),
        errands: Errands::start(context, beyond),
        questions,
        asks: Asks::default(),
        meter: Meter::new(partition.to_string()),
        purge: Purge::new(partition, config.purge_tail),
        share: context.budget.share(),
        incarnation: stream.incarnation.as_str().into(),
        in_flight: None,
        applied: checkpoint,
        rounds: 0,
        retaining: Retaining::new(partition, config.retention_every),
    }))
}

/// The checkpoint for the stream as it is. A stream that was made anew or that lost its end is never skipped over:
/// it is read from where it may hold something new, and what is read twice meets its unique key.
fn place(grant: &Grant, stream: &bus::StreamState) -> Seq {
    let partition = grant.partition;
    let renewed = grant.incarnation.as_ref().is_some_and(|known| *known != stream.incarnation);
    if renewed {
        tracing::error!(%partition, "the stream was made anew: reading it from its beginning");
        metrics::counter!("antiphon_worker_stream_incidents_total").increment(1);
        return stream.first_seq.before();
    }
    if stream.last_seq < grant.checkpoint {
        let (last, checkpoint) = (stream.last_seq, grant.checkpoint);
        tracing::error!(%partition, %last, %checkpoint, "the stream has lost its end: reading on from what is left");
        metrics::counter!("antiphon_worker_stream_incidents_total").increment(1);
        return stream.last_seq;
    }
    grant.checkpoint
}
