//! Ownership of partitions: registration, fair shares, leases.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use model::PartitionId;
use partition::IncidentKind;
use runtime::{Backoff, Heartbeat, retry_until};
use store::{Applied, Disposition, Grant, LiveWorkers, Reclaimed, Renewed, StoreError};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::error::WorkerError;
use crate::lease::{ConfirmedState, Lease, LeaseRenewal};
use crate::session::{self, SessionEnd};

/// Interval of the search for free partitions: a hand-over takes little longer than this.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which this worker renews its registration. The other workers are read in every
/// round; otherwise a worker that has just left would count until the next renewal.
const REGISTRATION_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that a clean stop waits for sessions to drain.
const DRAIN: Duration = Duration::from_secs(10);

/// Holds the worker's share of the partitions until `stop`, then gives all of them back.
pub(crate) async fn run(context: Context, stop: CancellationToken) -> Result<(), WorkerError> {
    let mut ownership = Ownership::new(context);
    let mut look = interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            ended = ownership.sessions.join_next(), if !ownership.sessions.is_empty() => match ended {
                Some(Ok((partition, confirmed))) => ownership.ended(partition, &confirmed),
                Some(Err(_)) => return Err(WorkerError::Ended("a partition's session")),
                None => {}
            },
            _ = look.tick() => tokio::select! {
                () = stop.cancelled() => break,
                looked = ownership.look() => looked?,
            },
        }
    }
    ownership.drain().await;
    Ok(())
}

struct Ownership {
    context: Context,
    renewals: LeaseRenewal,
    sessions: JoinSet<(PartitionId, ConfirmedState)>,
    held: BTreeMap<PartitionId, Lease>,
    registered_at: Option<Instant>,
    renewed_at: Instant,
    heartbeat: Heartbeat,
    away: bool,
}

impl Ownership {
    fn new(context: Context) -> Self {
        context.health.set_ready("postgres", false);
        context.health.set_ready("nats", context.bus.is_connected());
        Self {
            heartbeat: context.health.register_loop("leases"),
            context,
            renewals: LeaseRenewal::new(),
            sessions: JoinSet::new(),
            held: BTreeMap::new(),
            registered_at: None,
            renewed_at: Instant::now(),
            away: false,
        }
    }

    /// One round. Only errors that waiting does not cure are returned.
    async fn look(&mut self) -> Result<(), WorkerError> {
        self.heartbeat.beat();
        self.context.health.set_ready("nats", self.context.bus.is_connected());
        let (renewals, part) = (self.renewals.clone(), self.context.config.lease / 3);
        let looked = {
            let mut look = pin!(self.try_look());
            loop {
                tokio::select! {
                    looked = &mut look => break looked,
                    // An unanswered statement takes longer to fail than the time during which
                    // sessions may publish.
                    () = sleep(part) => renewals.unanswered(Instant::now(), part * 3),
                }
            }
        };
        match looked {
            Ok(()) => {
                if std::mem::take(&mut self.away) {
                    tracing::info!("Postgres is back");
                }
                self.context.health.set_ready("postgres", true);
                self.context.health.set_started();
                Ok(())
            }
            Err(error) if !matches!(error.disposition(), Disposition::Retry | Disposition::Unknown) => {
                Err(error.into())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.away, true) {
                    tracing::warn!(%error, "Postgres is away: streaming goes on, commits wait");
                }
                self.context.health.set_ready("postgres", false);
                metrics::gauge!(crate::metrics::UNOWNED_PARTITIONS).set(f64::NAN);
                self.renewals.unanswered(Instant::now(), self.context.config.lease);
                Ok(())
            }
        }
    }

    async fn try_look(&mut self) -> Result<(), StoreError> {
        self.renew_if_due().await?;
        self.heartbeat.beat();
        let share = self.fleet().await?.share(self.context.config.partitions);
        let staying = self.held.values().filter(|lease| !lease.drain.is_cancelled()).count();
        if staying < share {
            self.acquire(share - staying).await?;
        } else {
            self.hand_back(staying - share);
        }
        Ok(())
    }

    async fn renew_if_due(&mut self) -> Result<(), StoreError> {
        let lease = self.context.config.lease;
        if self.renewed_at.elapsed() < lease / 3 {
            return Ok(());
        }
        let asked: Vec<Applied> = self.held.values().filter_map(|lease| lease.confirmed.get()).collect();
        let sent = Instant::now();
        let renewed = self.context.store.renew(&self.context.config.worker_id, lease, &asked).await;
        self.renewed_at = Instant::now();
        if let Ok(still) = &renewed {
            for applied in &asked {
                if still.iter().all(|renewed| renewed.partition != applied.partition) {
                    self.doubt(applied);
                }
            }
            self.show_incidents(still);
        }
        // If Postgres is unavailable, no worker can take a partition either: sessions continue
        // streaming. If it is unavailable only to this worker, another owner streams the same
        // chunks under the same ids, and our commits are fenced.
        self.renewals.renewed(sent, lease);
        renewed?;
        self.context.token_keys.set(self.context.store.token_keys().await?);
        // Each worker reports the number for the whole fleet: the metrics of an owner may be
        // missing even though the owner works.
        let unowned = self.context.store.unowned_partitions().await?;
        metrics::gauge!(crate::metrics::UNOWNED_PARTITIONS).set(unowned as f64);
        Ok(())
    }

    /// Notifies the session whose lease the store did not renew, unless the session has a new
    /// lease.
    fn doubt(&self, applied: &Applied) {
        let lease = self.held.get(&applied.partition);
        let is_same = |lease: &&Lease| lease.confirmed.get().is_some_and(|now| now.epoch == applied.epoch);
        if let Some(lease) = lease.filter(is_same) {
            lease.doubt.notify_one();
        }
    }

    /// Readiness reports losses until an operator has acknowledged them.
    fn show_incidents(&self, renewed: &[Renewed]) {
        let open: Vec<&Renewed> = renewed.iter().filter(|renewed| renewed.incidents > 0).collect();
        let count: u64 = open.iter().map(|renewed| renewed.incidents).sum();
        metrics::gauge!(crate::metrics::OPEN_INCIDENTS).set(count as f64);
        let partitions =
            open.iter().map(|renewed| renewed.partition.to_string()).collect::<Vec<_>>().join(", ");
        let fault = (count > 0).then(|| {
            format!("{count} not acknowledged, of partition {partitions}: `antiphon incidents list`")
        });
        self.context.health.set_fault("incidents", fault);
    }

    async fn fleet(&mut self) -> Result<LiveWorkers, StoreError> {
        let config = &self.context.config;
        if self.registered_at.is_some_and(|at| at.elapsed() < REGISTRATION_INTERVAL) {
            return self.context.store.live_workers(&config.worker_id).await;
        }
        let fleet = self.context.store.heartbeat(&config.worker_id, config.lease).await?;
        self.registered_at = Some(Instant::now());
        Ok(fleet)
    }

    async fn acquire(&mut self, most: usize) -> Result<(), StoreError> {
        let config = &self.context.config;
        let sent = Instant::now();
        let grants = self.context.store.acquire(&config.worker_id, config.lease, most).await?;
        if !grants.is_empty() {
            self.renewals.renewed(sent, config.lease);
        }
        for grant in grants {
            // This grant has fenced a session of ours that may still be draining here.
            let lease = self.renewals.lease();
            lease.confirmed.set(Some(Applied::from(&grant)));
            if let Some(old) = self.held.insert(grant.partition, lease.clone()) {
                old.lost.cancel();
            }
            self.sessions.spawn(hold(self.context.clone(), grant, lease));
        }
        metrics::gauge!(crate::metrics::PARTITIONS).set(self.held.len() as f64);
        Ok(())
    }

    /// Removes a partition whose session has ended, unless a newer session of the partition has
    /// replaced it.
    fn ended(&mut self, partition: PartitionId, confirmed: &ConfirmedState) {
        if self.held.get(&partition).is_some_and(|lease| lease.confirmed.is(confirmed)) {
            self.held.remove(&partition);
        }
        metrics::gauge!(crate::metrics::PARTITIONS).set(self.held.len() as f64);
    }

    fn hand_back(&self, excess: usize) {
        let staying = self.held.iter().filter(|(_, lease)| !lease.drain.is_cancelled());
        for (partition, lease) in staying.take(excess) {
            tracing::info!(%partition, "handing the partition to another worker");
            lease.drain.cancel();
        }
    }

    async fn drain(&mut self) {
        self.held.values().for_each(|lease| lease.drain.cancel());
        let all = async { while self.sessions.join_next().await.is_some() {} };
        let drained = timeout(DRAIN, all).await.is_ok();
        let _ =
            timeout(Duration::from_secs(2), self.context.store.deregister(&self.context.config.worker_id))
                .await;
        metrics::gauge!(crate::metrics::PARTITIONS).set(0.0);
        match drained {
            true => tracing::info!("drained"),
            false => tracing::warn!(
                "the drain took too long; what was not committed is read again by its next owner"
            ),
        }
    }
}

/// Runs sessions of one partition until it is given back or lost.
async fn hold(context: Context, grant: Grant, lease: Lease) -> (PartitionId, ConfirmedState) {
    let partition = grant.partition;
    let readable = context.health.condition(format!("partition {partition}"));
    let (mut grant, mut last_read) = (grant, None);
    loop {
        match session::run(&context, &grant, lease.clone(), &mut last_read, &readable).await {
            SessionEnd::Lost => break,
            SessionEnd::Drained => {
                release(&context, &grant).await;
                break;
            }
            SessionEnd::Rebuild => {
                let known = lease.confirmed.get().unwrap_or_else(|| Applied::from(&grant));
                lease.confirmed.set(None);
                match reclaim(&context, &known, &lease).await {
                    Some(renewed) => grant = renewed,
                    None => break,
                }
                lease.confirmed.set(Some(Applied::from(&grant)));
            }
        }
    }
    context.committers.forget(partition);
    tracing::info!(%partition, epoch = grant.epoch, "partition left");
    (partition, lease.confirmed)
}

async fn release(context: &Context, grant: &Grant) {
    let released = context.store.release(&context.config.worker_id, grant.partition, grant.epoch);
    match timeout(Duration::from_secs(3), released).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => {
            tracing::warn!(partition = %grant.partition, "the lease could not be given back and runs out by itself");
        }
    }
}

/// Raises the partition's epoch for this worker. This waits for a commit with an unknown result,
/// and then fences it. `None` if another worker has the partition.
async fn reclaim(context: &Context, known: &Applied, lease: &Lease) -> Option<Grant> {
    let config = &context.config;
    let reclaimed =
        retry_until(lease.lost.cancelled(), Backoff::default(), "reclaiming a partition", || async {
            context.store.reclaim(&config.worker_id, known, lease.seen_epoch(), config.lease).await
        });
    let Some(reclaimed) = reclaimed.await.ok()? else {
        let (partition, epoch) = (known.partition, known.epoch);
        tracing::warn!(%partition, epoch, "the lease is gone: another worker has the partition");
        metrics::counter!(crate::metrics::LEASES_LOST).increment(1);
        return None;
    };
    say(known, lease.seen_epoch(), &reclaimed);
    Some(reclaimed.grant)
}

fn say(known: &Applied, seen_epoch: u64, Reclaimed { grant, stepped_back }: &Reclaimed) {
    if !stepped_back {
        return;
    }
    let (known_checkpoint, checkpoint) = (known.checkpoint, grant.checkpoint);
    let known_epoch = known.epoch.max(seen_epoch);
    tracing::error!(partition = %known.partition, known = known.commits, found = grant.commits, %known_checkpoint, %checkpoint, known_epoch,
        "Postgres went back in time: the stream is read again from the checkpoint that it has now");
    let kind = IncidentKind::StoreSteppedBack.name();
    metrics::counter!(crate::metrics::INCIDENTS, "kind" => kind).increment(1);
}
