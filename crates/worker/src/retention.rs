//! Retention: deletes batches that their agents' rules do not keep, each as a whole, a few at a
//! time.
//!
//! The owner of a partition applies retention to the threads of its buckets. Correctness does not
//! depend on that: two owners at once delete the same batches.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::time::Duration;

use batches::RetentionRules;
use batches::retention::{BatchAssembler, BatchSize, Limit, RetentionEvaluator};
use metrics::counter;
use model::{AgentId, Bucket, PartitionCount, PartitionId, Position, ThreadId, Timestamp};
use partition::Partition;
use runtime::spawn_named;
use store::{RetainedThread, Store, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::refusals::{RefusedItem, note_item, parts_unless_away};

/// Threads per query.
const THREADS: u32 = 500;
/// Messages per query.
const PLACES: u32 = 2_000;
/// Messages deleted per transaction, unless a single batch has more.
const MESSAGES: u64 = 500;
/// Pause after each transaction, to give priority to the transactions of turns.
const PAUSE: Duration = Duration::from_millis(20);

/// Schedules the retention rounds of one partition.
#[derive(Debug)]
pub(crate) struct RetentionSweep {
    partition: PartitionId,
    every: Duration,
    next: Instant,
    under_way: Option<JoinHandle<()>>,
}

impl RetentionSweep {
    /// Spreads the rounds of partitions that were acquired at the same time.
    pub(crate) fn new(partition: PartitionId, every: Duration) -> Self {
        let next = Instant::now() + every.mul_f64(rand::random_range(0.0..1.0));
        Self { partition, every, next, under_way: None }
    }

    /// Starts a round if it is due and the previous one has ended. To be called every second.
    pub(crate) fn tick(&mut self, context: &Context, machine: &Partition, lost: &CancellationToken) {
        let is_busy = self.under_way.as_ref().is_some_and(|round| !round.is_finished());
        if is_busy || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + self.every;
        let round = RetentionRound {
            store: context.store.clone(),
            partition: self.partition,
            partitions: context.config.partitions,
            active: machine.continued().map(|(thread, batch)| (thread.clone(), batch)).collect(),
        };
        let lost = lost.clone();
        self.under_way = Some(spawn_named("retention", async move {
            tokio::select! {
                () = round.run() => {}
                () = lost.cancelled() => {}
            }
        }));
    }
}

/// A round over the threads of one partition.
struct RetentionRound {
    store: Store,
    partition: PartitionId,
    partitions: PartitionCount,
    /// Batches that active turns continue.
    active: HashSet<(ThreadId, Position)>,
}

impl RetentionRound {
    /// The next round makes up for failures.
    async fn run(self) {
        if let Err(error) = self.all().await {
            tracing::debug!(partition = %self.partition, %error, "a round of retention was not finished");
        }
    }

    async fn all(&self) -> Result<(), StoreError> {
        let Some(now) = self.store.retention_time().await? else { return Ok(()) };
        let buckets = (0..model::BUCKETS).map(Bucket::from_number);
        for bucket in buckets.filter(|bucket| bucket.partition(self.partitions) == self.partition) {
            // If the threads of a bucket cannot be listed, other buckets must not be delayed; the
            // same holds for threads.
            let came = self.bucket(bucket, now).await;
            alone(&bucket.get(), came)?;
        }
        Ok(())
    }

    async fn bucket(&self, bucket: Bucket, now: Timestamp) -> Result<(), StoreError> {
        let mut after = String::new();
        loop {
            let page = self.store.retained_threads(bucket, &after, THREADS).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.thread.as_str().to_owned();
            let agents: HashSet<&AgentId> = page.iter().map(|thread| &thread.agent).collect();
            let agents: Vec<AgentId> = agents.into_iter().cloned().collect();
            let mut rules: HashMap<AgentId, RetentionRules> = HashMap::new();
            for (part, read) in parts_unless_away(&agents, |part| self.store.retention_rules(part)).await? {
                let agent = part.first().map(AgentId::to_string).unwrap_or_default();
                rules.extend(alone(&agent, read)?.into_iter().flatten());
            }
            for thread in &page {
                if let Some(rules) = rules.get(&thread.agent) {
                    let came = self.look_at(thread, rules, now).await;
                    alone(&thread.thread, came)?;
                }
            }
        }
    }

    async fn look_at(
        &self,
        thread: &RetainedThread,
        rules: &RetentionRules,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        match self.may_be_due(thread, rules).await? {
            true => self.thread(thread, RetentionEvaluator::new(*rules, now)).await,
            false => Ok(()),
        }
    }

    /// True if the whole thread needs a check.
    async fn may_be_due(&self, thread: &RetainedThread, rules: &RetentionRules) -> Result<bool, StoreError> {
        if rules.max_bytes.is_some() || rules.max_batches.is_some_and(|most| thread.messages > most) {
            return Ok(true);
        }
        let Some(most) = rules.max_age_ms else { return Ok(false) };
        Ok(self.store.oldest_ms(&thread.thread).await?.is_some_and(|oldest| oldest > most))
    }

    async fn thread(
        &self,
        kept: &RetainedThread,
        mut evaluator: RetentionEvaluator,
    ) -> Result<(), StoreError> {
        let (mut assembler, mut before) = (BatchAssembler::default(), Position::MAX);
        let mut due: Vec<(BatchSize, Limit)> = Vec::new();
        loop {
            let places = self.store.retention_index(&kept.thread, before, PLACES).await?;
            let is_last = places.len() < PLACES as usize;
            before = places.last().map_or(before, |place| place.position);
            let mut whole: Vec<BatchSize> =
                places.into_iter().flat_map(|place| assembler.push(place)).collect();
            if is_last {
                whole.extend(std::mem::take(&mut assembler).finish());
            }
            for batch in whole {
                let is_active = self.active.contains(&(kept.thread.clone(), batch.id));
                due.extend(evaluator.evaluate(&batch, is_active).map(|limit| (batch, limit)));
            }
            while !due.is_empty() {
                let some: Vec<_> = due.drain(..fitting(&due)).collect();
                if !self.retire(kept, &some).await? {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// False if the thread has continued: the next round sees its new state.
    async fn retire(&self, kept: &RetainedThread, due: &[(BatchSize, Limit)]) -> Result<bool, StoreError> {
        let batches: Vec<BatchSize> = due.iter().map(|(batch, _)| *batch).collect();
        let Some(messages) = self.store.delete_batches(&kept.thread, kept.head, &batches).await? else {
            return Ok(false);
        };
        for (_, limit) in due {
            counter!(crate::metrics::RETENTION_DELETED_BATCHES, "limit" => limit.code()).increment(1);
        }
        tracing::info!(thread = %kept.thread, agent = %kept.agent, batches = due.len(), messages, "batches were retired");
        tokio::time::sleep(PAUSE).await;
        Ok(true)
    }
}

/// `None`: the store permanently refuses this item, which fails alone.
fn alone<T>(which: &dyn Display, came: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match came {
        Err(error) if error.refuses_data() => {
            note_item(RefusedItem::Retention, which, &error);
            Ok(None)
        }
        came => came.map(Some),
    }
}

/// Number of leading batches for one transaction: at least one.
fn fitting(due: &[(BatchSize, Limit)]) -> usize {
    let mut messages = 0;
    let fits = |(batch, _): &&(BatchSize, Limit)| {
        messages += batch.messages;
        messages <= MESSAGES
    };
    due.iter().take_while(fits).count().max(1)
}
