//! `antiphon partitions change`: sets another number of partitions while no worker runs.
//!
//! 1. Begin: the mark is set and all leases are taken, in one transaction.
//! 2. Close: the streams accept nothing more from publishers, and the end of each stream is stored.
//! 3. Move: entries after the checkpoints are appended to the streams of the new number.
//! 4. Apply: the rows are changed to the new number, in one transaction.
//! 5. Open: turn requests are addressed again, surplus streams are deleted, the others accept
//!    entries from publishers again, and the mark is deleted.
//!
//! Each step is idempotent, so an interrupted run can be repeated at any point. Only one run at a
//! time is possible.

use std::time::Duration;

use bus::{Bus, StreamOptions, StreamOwner};
use model::{PartitionCount, PartitionId, Seq};
use partition::{Compared, Found, Kept, place};
use serde_json::{Value, json};
use store::{BeginChange, PartitionChange, PartitionStatus, Store, StreamEnd, StreamLimits};
use tokio::time::{Instant, sleep};
use wire::subject;

use super::moving::{Mover, Source};
use super::requests;
use crate::exit::ExitError;
use crate::mapping;

/// Interval between checks of leases that run out.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(300);
/// Time after the end of its lease for which a worker still counts as running.
const LEASE_MARGIN: Duration = Duration::from_secs(1);
/// After this time the stream contains everything that publishers sent before it was closed.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// After this time a gateway that still runs has noticed the change and ended.
const NOTICE_TIME: Duration = Duration::from_secs(5);

/// Makes or continues the change, and returns a report.
///
/// # Errors
/// Something prevents the change. A failed run can always be repeated.
pub(super) async fn run(store: &Store, bus: &Bus, to: PartitionCount) -> Result<Value, ExitError> {
    let started = Instant::now();
    let Some(_lock) = store.lock_partition_change().await? else {
        return Err(ExitError::Failed("another `antiphon partitions change` is running".to_owned()));
    };
    let installation = store.installation_id().await?;
    let run = ChangeRun { store, bus, installation };
    let change = match start_of_change(store, to).await? {
        ChangeStart::GoOn(change) => change,
        ChangeStart::Begin => run.begin(to).await?,
        ChangeStart::Nothing => return Ok(nothing_to_do(to)),
    };
    let began = Instant::now().checked_sub(Duration::from_millis(change.age_ms.unsigned_abs()));
    let moved = if change.is_moved { 0 } else { run.move_all(&change).await? };
    tokio::time::sleep_until(began.unwrap_or(started) + NOTICE_TIME).await;
    let requests = run.open(&change).await?;
    Ok(json!({
        "from": change.from.get(), "to": change.to.get(), "moved_entries": moved, "readdressed_requests": requests,
        "seconds": started.elapsed().as_secs_f64(),
    }))
}

/// How a change to a number starts.
pub(super) enum ChangeStart {
    /// This change was begun and has not ended.
    GoOn(PartitionChange),
    /// No change is in progress.
    Begin,
    /// The fleet already has this number: a change to it has ended, or it had this number from the
    /// beginning.
    Nothing,
}

/// Whether the change has to begin, has to continue, or was already made. A job that is repeated
/// after its success succeeds again.
///
/// # Errors
/// Another change is in progress.
pub(super) async fn start_of_change(store: &Store, to: PartitionCount) -> Result<ChangeStart, ExitError> {
    match store.partition_change().await? {
        Some(change) if change.to == to => Ok(ChangeStart::GoOn(change)),
        Some(change) => Err(ExitError::Configuration(change.refusal().to_string())),
        None if store.partition_count().await? == Some(to) => Ok(ChangeStart::Nothing),
        None => Ok(ChangeStart::Begin),
    }
}

/// The report for a change that was already made.
pub(super) fn nothing_to_do(to: PartitionCount) -> Value {
    tracing::info!("nothing to do: there are {} partitions already", to.get());
    json!({ "from": to.get(), "to": to.get(), "moved_entries": 0, "readdressed_requests": 0, "seconds": 0.0 })
}

struct ChangeRun<'a> {
    store: &'a Store,
    bus: &'a Bus,
    installation: String,
}

impl ChangeRun<'_> {
    /// Checks everything that may prevent the change before it touches anything.
    async fn begin(&self, to: PartitionCount) -> Result<PartitionChange, ExitError> {
        let options = self.bus.stream_options(PartitionId(0)).await?;
        let limits = StreamLimits {
            replicas: u8::try_from(options.replicas).unwrap_or(1),
            max_bytes: options.max_bytes,
            max_message_bytes: options.max_message_bytes,
        };
        self.wait_for_leases().await?;
        if !self.store.incidents(false, 1).await?.is_empty() {
            let why = "there are incidents that are not acknowledged, by partition: see `antiphon incidents list` first";
            return Err(ExitError::Failed(why.to_owned()));
        }
        for status in self.store.partitions_status().await? {
            self.check_stream(&status).await?;
        }
        // The streams are created now to find out whether there is room for them.
        let options =
            StreamOptions { owner: StreamOwner::Installation(self.installation.clone()), ..options };
        self.make_streams(to, &options).await?;
        match self.store.begin_partition_change(to, limits).await? {
            BeginChange::Begun => {}
            BeginChange::Held { partition, owner, .. } => return Err(held(partition, &owner)),
            BeginChange::Refused => {
                return Err(ExitError::Failed("another change was begun meanwhile".to_owned()));
            }
        }
        tracing::info!(to = to.get(), "no worker can take a partition any more");
        let begun = self.store.partition_change().await?;
        begun.ok_or_else(|| ExitError::Failed("another run has made the change meanwhile".to_owned()))
    }

    /// If not all streams can be created, the new ones are deleted: streams without a reader would
    /// keep their room reserved.
    async fn make_streams(&self, to: PartitionCount, options: &StreamOptions) -> Result<(), ExitError> {
        let mut missing = Vec::new();
        for partition in to.all() {
            if self.bus.stream_usage(&subject::stream_name(partition)).await?.is_none() {
                missing.push(partition);
            }
        }
        let Err(error) = self.bus.open_streams(to.all(), options).await else { return Ok(()) };
        for partition in missing {
            if let Err(left) = self.bus.delete_stream(partition).await {
                tracing::warn!(%partition, error = %left, "a stream that was made for the change could not be deleted");
            }
        }
        Err(error.into())
    }

    /// A lease that runs out belongs to a worker that has ended. One that is renewed belongs to a
    /// running worker.
    async fn wait_for_leases(&self) -> Result<(), ExitError> {
        let mut give_up_at = None;
        loop {
            let all = self.store.partitions_status().await?;
            let left = |status: &PartitionStatus| match status.owner {
                Some(_) => status.lease_left_ms.unwrap_or_default().max(0),
                None => 0,
            };
            let Some(last) = all.iter().filter(|status| left(status) > 0).max_by_key(|status| left(status))
            else {
                return Ok(());
            };
            let lease = Duration::from_millis(left(last).unsigned_abs());
            if Instant::now() > *give_up_at.get_or_insert(Instant::now() + lease + LEASE_MARGIN) {
                return Err(held(last.partition, last.owner.as_deref().unwrap_or_default()));
            }
            sleep(LEASE_CHECK_INTERVAL).await;
        }
    }

    /// Fails if the stream has lost something that its owner has not recorded, because the loss
    /// cannot be described after the change.
    async fn check_stream(&self, status: &PartitionStatus) -> Result<(), ExitError> {
        let partition = status.partition;
        let mut marks = Vec::new();
        if let Some(read) = status.read {
            marks.push(Compared { read, found: self.bus.stored_at_ns(partition, read.seq).await? });
        }
        let stream = self.bus.stream_state(partition).await?;
        let kept = Kept { checkpoint: status.checkpoint, incarnation: status.incarnation.as_deref() };
        let found =
            Found { incarnation: &stream.incarnation, first: stream.first_seq, last: stream.last_seq };
        match place(&kept, &found, &marks).incidents.first() {
            None => Ok(()),
            Some(incident) => Err(ExitError::Failed(format!(
                "the stream of partition {partition} is not what was read of it ({}): start the workers, which record what was lost, and \
                 stop them again",
                incident.kind.name()
            ))),
        }
    }

    /// Returns the number of entries that this run moved.
    async fn move_all(&self, change: &PartitionChange) -> Result<u64, ExitError> {
        let ends = match &change.ends {
            Some(ends) => ends.clone(),
            None => self.close(change).await?,
        };
        let mut mover = Mover::new(self.bus, change, &ends).await?;
        // An interrupted run may have left consumers that have read a part of a stream. The higher
        // epoch distinguishes the consumers of this run from them.
        self.store.raise_epochs_of_change().await?;
        for source in self.sources(change, &ends).await? {
            mover.move_source(&source).await?;
            tracing::info!(partition = %source.partition, "moved");
        }
        let moved = mover.finish()?;
        let mut streams = Vec::new();
        for (partition, end) in change.to.all().zip(ends) {
            let incarnation = self.bus.stream_state(partition).await?.incarnation;
            let stored_at_ns = match end {
                Seq(0) => None,
                end => self.bus.stored_at_ns(partition, end).await?,
            };
            streams.push(StreamEnd { partition, end, incarnation, stored_at_ns });
        }
        self.store.apply_partition_change(&streams).await?;
        Ok(moved)
    }

    /// The old streams and the new ones. Publishers that already know the new number may have
    /// written into new streams before they were closed.
    async fn sources(&self, change: &PartitionChange, ends: &[Seq]) -> Result<Vec<Source>, ExitError> {
        let end = |partition: PartitionId| ends.get(usize::from(partition.0)).copied().unwrap_or_default();
        let old = self.store.partitions_status().await?;
        let epoch = old.iter().map(|status| status.epoch).max().unwrap_or_default();
        let old = old.into_iter().map(|status| Source {
            partition: status.partition,
            epoch,
            incarnation: status.incarnation,
            after: status.checkpoint,
            end: end(status.partition),
        });
        let new = (change.from.get()..change.to.get()).map(PartitionId);
        let new = new.map(|partition| Source {
            partition,
            epoch,
            incarnation: None,
            after: Seq(0),
            end: end(partition),
        });
        Ok(old.chain(new).collect())
    }

    async fn close(&self, change: &PartitionChange) -> Result<Vec<Seq>, ExitError> {
        let count = if change.from.get() > change.to.get() { change.from } else { change.to };
        self.bus.close_streams(count, &self.options(change)).await?;
        let mut ends = self.ends(count).await?;
        loop {
            sleep(SETTLE_TIME).await;
            let now = self.ends(count).await?;
            if now == ends {
                break;
            }
            ends = now;
        }
        self.store.set_stream_ends(&ends).await?;
        let change = self.store.partition_change().await?;
        let ends = change.and_then(|change| change.ends);
        ends.ok_or_else(|| ExitError::Failed("another run has made the change meanwhile".to_owned()))
    }

    async fn ends(&self, count: PartitionCount) -> Result<Vec<Seq>, ExitError> {
        let mut ends = Vec::new();
        for partition in count.all() {
            ends.push(self.bus.stream_state(partition).await?.last_seq);
        }
        Ok(ends)
    }

    /// Returns the number of turn requests that were addressed again.
    async fn open(&self, change: &PartitionChange) -> Result<u64, ExitError> {
        match mapping::check(self.bus, change.to).await {
            Ok(None) => {}
            Ok(Some(wrong)) => return Err(ExitError::Failed(format!("{wrong}; then run this again"))),
            Err(error) => tracing::warn!(%error, "the mapping of the NATS account could not be checked"),
        }
        for partition in (change.to.get()..change.from.get()).map(PartitionId) {
            self.bus.delete_stream(partition).await?;
        }
        let requests = requests::readdress(self.bus, change.to).await?;
        self.bus.open_streams(change.to.all(), &self.options(change)).await?;
        self.store.end_partition_change().await?;
        Ok(requests)
    }

    fn options(&self, change: &PartitionChange) -> StreamOptions {
        let StreamLimits { replicas, max_bytes, max_message_bytes } = change.limits;
        let owner = StreamOwner::Installation(self.installation.clone());
        StreamOptions { replicas: replicas.into(), max_bytes, max_message_bytes, owner }
    }
}

fn held(partition: PartitionId, owner: &str) -> ExitError {
    ExitError::Failed(format!(
        "worker {owner} owns partition {partition}: stop all workers, gateways and workflow services first"
    ))
}
