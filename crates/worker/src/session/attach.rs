//! Starts a session from the stored state of the partition and the state of its stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bus::{BusError, ExpectedStream, PartitionReader, StreamState};
use model::{PartitionId, Seq};
use partition::{Compared, Found, Incident, Kept, Partition, StreamPlace, place};
use runtime::{Backoff, Condition};
use store::{Applied, Grant, StoreError};

use super::reader_task::EntryReader;
use super::report;
use super::state::{LastRead, PartitionSession, now};
use super::turn_log::TurnLog;
use super::turn_traces::TurnTraces;
use crate::background::{BackgroundTasks, OutboxBacklog};
use crate::context::Context;
use crate::lease::Lease;
use crate::metrics::WorkerMetrics;
use crate::purge::Purge;
use crate::queries::PendingQueries;
use crate::retention::RetentionSweep;

/// Loads the partition and opens its stream, retrying until it succeeds. `None` if the lease is
/// gone or the store has gone back in time. `last_read` is the last entry read under an earlier
/// grant.
pub(super) async fn attach<'a>(
    context: &'a Context,
    grant: &Grant,
    lease: Lease,
    last_read: LastRead,
    readable: &'a Condition,
) -> Option<PartitionSession<'a>> {
    // Each try continues with the grant that the previous one has updated.
    let mut grant = grant.clone();
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut said = false;
    loop {
        let error = match try_attach(context, &mut grant, lease.clone(), &last_read, readable).await {
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
    grant: &mut Grant,
    lease: Lease,
    last_read: &LastRead,
    readable: &'a Condition,
) -> Result<Option<PartitionSession<'a>>, Box<dyn std::error::Error + Send + Sync>> {
    let (config, partition) = (&context.config, grant.partition);
    // The partition count may have changed while this process was paused, and keys would then
    // belong to other partitions. It cannot change after the grant.
    context.store.check_partition_count(config.partitions).await?;
    let (place, stream) = find_place(context, grant, last_read).await?;
    let incarnation = stream.incarnation.as_str();
    let is_as_kept = place.incidents.is_empty() && grant.incarnation.as_deref() == Some(incarnation);
    if !is_as_kept {
        let Some(rebased) = context.store.rebase(&config.worker_id, grant, &place, incarnation).await? else {
            return Ok(None);
        };
        place.incidents.iter().for_each(|incident| say(partition, incident, place.checkpoint));
        *grant = rebased;
    }
    let mut applied = Applied::from(&*grant);
    lease.confirmed.set(Some(applied));
    applied.saves = context.store.saves(partition).await?;
    let takeover = match context.store.load(grant, config.limits.queue_window).await {
        Ok(takeover) => takeover,
        Err(StoreError::NotOwner) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let query_server = context.bus.serve_queries(partition).await?;
    let same = ExpectedStream { incarnation: Some(incarnation.to_owned()), read: place.read };
    let reader =
        PartitionReader::open(&context.bus, partition, grant.epoch, place.checkpoint.next(), same).await?;
    let limits = wire::DecodeLimits { chunk_bytes: config.chunk_bytes, partitions: config.partitions };
    let after = takeover.outbox.last().map(|batch| batch.id);
    let backlog = OutboxBacklog { partition, after, count: takeover.outbox_beyond };
    let mut machine_limits = config.limits;
    if let Some(max_bytes) = stream.max_bytes {
        // A full stream refuses publishers, so open entries must be saved long before that.
        machine_limits.replay_bytes = machine_limits.replay_bytes.min(max_bytes / 4);
    }
    machine_limits.frame_bytes = machine_limits.frame_bytes.min(context.bus.page_bytes());
    machine_limits.reports_chunks = report::shows_chunks();
    let (epoch, spilled_messages) = (grant.epoch, takeover.spilled_messages.len());
    tracing::info!(%partition, epoch, checkpoint = %place.checkpoint, spilled_messages, "partition taken");
    if let Err(error) = context.live.announce_owner(partition, epoch).await {
        tracing::debug!(%partition, %error, "gateways find out by themselves that the partition has an owner");
    }
    Ok(Some(PartitionSession {
        context,
        lease,
        readable,
        applied,
        token_keys: None,
        machine: Partition::new(takeover, machine_limits, rand::random(), now(context)),
        reader: EntryReader::start(reader, partition, incarnation.into(), limits),
        background: BackgroundTasks::start(context, applied, incarnation.into(), backlog),
        frame_bytes: config.limits.frame_bytes,
        query_server,
        queries: PendingQueries::default(),
        metrics: WorkerMetrics::new(partition.to_string(), Arc::clone(&context.gauges)),
        purge: Purge::new(partition, config.stream_retain),
        reservation: context.open_messages.reservation(),
        incarnation: incarnation.into(),
        read: place.read,
        reached: place.checkpoint,
        gone: Vec::new(),
        in_flight: None,
        rounds: 0,
        retention: RetentionSweep::new(partition, config.retention_every),
        conflicts: VecDeque::new(),
        traces: TurnTraces::new(),
        turn_log: TurnLog::default(),
    }))
}

/// Finds where to resume reading, from the stream's state and from what the store and this worker
/// know of the stream.
async fn find_place(
    context: &Context,
    grant: &Grant,
    last_read: &LastRead,
) -> Result<(StreamPlace, StreamState), BusError> {
    let ours = last_read.as_ref().filter(|(of, _)| grant.incarnation.as_deref() == Some(&**of));
    let ours = ours.map(|(_, mark)| *mark).filter(|mark| grant.read != Some(*mark));
    let kept = Kept { checkpoint: grant.checkpoint, incarnation: grant.incarnation.as_deref() };
    // Read the entries before the stream's state: entries purged in between are below the first
    // sequence that the stream then reports.
    let mut marks = Vec::new();
    for read in grant.read.into_iter().chain(ours) {
        marks.push(Compared { read, found: context.bus.stored_at_ns(grant.partition, read.seq).await? });
    }
    let stream = context.bus.stream_state(grant.partition).await?;
    let found = Found { incarnation: &stream.incarnation, first: stream.first_seq, last: stream.last_seq };
    Ok((place(&kept, &found, &marks), stream))
}

fn say(partition: PartitionId, incident: &Incident, checkpoint: Seq) {
    let Incident { kind, incarnation, first, last } = incident;
    let (kind, last) = (kind.name(), last.map(|last| last.0));
    tracing::error!(%partition, kind, incarnation, %first, last, read_after = %checkpoint,
        "the stream is not what was read of it: see `antiphon incidents list`");
    metrics::counter!(crate::metrics::INCIDENTS, "kind" => kind).increment(1);
}
