//! Group commit: while one statement runs, the next one collects the commits that become ready.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Mark, Message, MessageKey, PartitionId, Seq, TurnId};
use partition::Commit;
use partition::isolate::CommitParts;
use runtime::{Backoff, spawn_named};
use store::{CommitError, CommitWriter, Committed, Disposition, Store, StoreError, StreamGap, Submission};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::config::WorkerConfig;
use crate::refusals::{Refusals, RefusedItem, RefusedOperation, TRIES_OF_DAMAGE, note_item};

/// Number of retries of a single commit that takes too long, before it is written part by part.
const TRIES_OF_SLOW: u32 = 2;
/// Time that a commit waits for commits of other partitions; tokio's timer extends it to up to 2
/// ms. An empty statement costs as much as about ten turns, so joining commits pays.
const GATHER_TIMEOUT: Duration = Duration::from_millis(1);

/// Result of a commit.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// The commit is durable, except for items that the store refused, each with the store's error:
    /// messages became dead letters, and turns failed. `commits`: number of the partition's commits
    /// including this one. `messages`: messages that the commit added to threads; empty if it was
    /// written part by part.
    Applied {
        commits: u64,
        unstorable: Vec<(MessageKey, String)>,
        refused: Vec<(TurnId, String)>,
        messages: Vec<Message>,
    },
    /// Durable, but the store knew a later head of one of its queues than the owner.
    Stale,
    /// The lease is gone or the store has gone back in time; nothing was written.
    Fenced,
    /// The result is not known.
    Unknown,
}

/// State that a commit was based on when it was decided.
#[derive(Debug)]
pub(crate) struct CommitPrecondition {
    /// Number of the partition's commits before this one.
    pub(crate) commits: u64,
    /// Number of saves acknowledged by the store.
    pub(crate) saves: u64,
    /// Checkpoint of the last commit.
    pub(crate) checkpoint: Seq,
    /// Incarnation of the stream; `read` is the last entry read from it.
    pub(crate) incarnation: Arc<str>,
    pub(crate) read: Option<Mark>,
    /// Sequences that the stream skipped.
    pub(crate) gone: Vec<StreamGap>,
}

impl CommitPrecondition {
    fn submission<'a>(&'a self, commit: &'a Commit) -> Submission<'a> {
        let Self { commits, saves, incarnation, read, gone, .. } = self;
        Submission { commit, commits: *commits, saves: *saves, incarnation, read: *read, gone }
    }
}

#[derive(Debug)]
struct CommitRequest {
    commit: Commit,
    terms: CommitPrecondition,
    settled: oneshot::Sender<CommitOutcome>,
}

/// The committers of a worker, one per writing connection; a partition always uses the same one.
#[derive(Debug)]
pub(crate) struct Committers {
    queues: Vec<mpsc::Sender<CommitRequest>>,
    refused: RefusedCommits,
}

impl Committers {
    pub(crate) fn start(
        store: &Store,
        config: &WorkerConfig,
        refusals: &Refusals,
    ) -> Result<Self, StoreError> {
        let refused_commits = RefusedCommits::default();
        let start = |_| {
            let (sender, queue) = mpsc::channel(usize::from(config.partitions.get()));
            let committer = Committer {
                writer: store.writer(&config.worker_id)?,
                most_turns: config.limits.commit_turns,
                most_bytes: config.limits.commit_bytes,
                refusals: refusals.clone(),
                refused: refused_commits.clone(),
            };
            spawn_named("committer", committer.run(queue));
            Ok(sender)
        };
        let queues = (0..config.writers.max(1)).map(start).collect::<Result<_, StoreError>>()?;
        Ok(Self { queues, refused: refused_commits })
    }

    /// Forgets refused commits of a partition that the worker has given up; its next owner will
    /// notice them itself.
    pub(crate) fn forget(&self, partition: PartitionId) {
        self.refused.lock().remove(&partition);
    }

    /// Hands a commit over. The receiver ends without a value only when the process is stopping.
    pub(crate) async fn submit(
        &self,
        commit: Commit,
        terms: CommitPrecondition,
    ) -> oneshot::Receiver<CommitOutcome> {
        let (settled, receiver) = oneshot::channel();
        let PartitionId(partition) = commit.partition;
        let queue = &self.queues[usize::from(partition) % self.queues.len()];
        let _ = queue.send(CommitRequest { commit, terms, settled }).await;
        receiver
    }
}

/// See [`Committer::refused`]; shared by all committers.
#[derive(Debug, Clone, Default)]
struct RefusedCommits(Arc<Mutex<HashMap<PartitionId, RefusedOperation>>>);

impl RefusedCommits {
    fn lock(&self) -> MutexGuard<'_, HashMap<PartitionId, RefusedOperation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Groups waiting commits.
struct GroupQueue {
    queue: mpsc::Receiver<CommitRequest>,
    /// Partitions of the last group.
    last: Vec<PartitionId>,
}

impl GroupQueue {
    /// The next group; `None` when the process is stopping.
    ///
    /// While a statement runs, commits of other partitions queue up. Without a pause, the next
    /// statement would be sent before the partitions of the previous one submit again. So the next
    /// group waits for these partitions, but only if another partition was already waiting.
    async fn next(&mut self, has_room: impl Fn(&[CommitRequest]) -> bool) -> Option<Vec<CommitRequest>> {
        let waiting = self.queue.try_recv().ok();
        let is_busy = waiting.is_some();
        let mut group = match waiting {
            Some(first) => vec![first],
            None => vec![self.queue.recv().await?],
        };
        while has_room(&group)
            && let Ok(next) = self.queue.try_recv()
        {
            group.push(next);
        }
        if is_busy {
            let deadline = Instant::now() + GATHER_TIMEOUT;
            self.last.retain(|partition| group.iter().all(|request| request.commit.partition != *partition));
            while !self.last.is_empty()
                && has_room(&group)
                && let Ok(Some(next)) = timeout_at(deadline, self.queue.recv()).await
            {
                self.last.retain(|partition| next.commit.partition != *partition);
                group.push(next);
            }
        }
        self.last = group.iter().map(|request| request.commit.partition).collect();
        Some(group)
    }
}

struct Committer {
    writer: CommitWriter,
    most_turns: usize,
    most_bytes: usize,
    refusals: Refusals,
    /// Partitions with a refused commit in which no message or turn could fail instead. A partition
    /// is removed when one of its commits is applied.
    refused: RefusedCommits,
}

impl Committer {
    async fn run(self, queue: mpsc::Receiver<CommitRequest>) {
        let mut queue = GroupQueue { queue, last: Vec::new() };
        while let Some(group) = queue.next(|group| self.has_room(group)).await {
            self.settle(group).await;
        }
    }

    fn has_room(&self, group: &[CommitRequest]) -> bool {
        let turns: usize = group.iter().map(|request| request.commit.weight()).sum();
        let bytes: usize = group.iter().map(|request| request.commit.size()).sum();
        turns < self.most_turns && bytes < self.most_bytes
    }

    async fn settle(&self, mut group: Vec<CommitRequest>) {
        let mut backoff = backoff();
        let (mut damaged, mut slow, mut refused) = (0, 0, None);
        loop {
            // A session dropped meanwhile has lost its partition.
            group.retain(|request| !request.settled.is_closed());
            if group.is_empty() {
                return;
            }
            match self.try_commit(&group).await {
                Ok(outcomes) => {
                    for (request, outcome) in group.into_iter().zip(outcomes) {
                        self.refused.lock().remove(&request.commit.partition);
                        let commits = request.terms.commits + 1;
                        let of_turns = request.commit.turns.into_iter().flat_map(|write| write.messages);
                        let messages = request.commit.messages.into_iter().chain(of_turns).collect();
                        let _ = request.settled.send(settled(outcome, commits, messages));
                    }
                    return;
                }
                Err(error) => match error.disposition() {
                    Disposition::Unknown => {
                        tracing::warn!(%error, "a commit's outcome is unknown: its partitions are rebuilt from the store");
                        metrics::counter!(crate::metrics::UNKNOWN_COMMITS).increment(1);
                        group
                            .into_iter()
                            .for_each(|request| drop(request.settled.send(CommitOutcome::Unknown)));
                        return;
                    }
                    Disposition::Damaged if damaged < TRIES_OF_DAMAGE => {
                        damaged += 1;
                        metrics::counter!(crate::metrics::DAMAGED_COMMITS).increment(1);
                        tracing::error!(%error, damaged, "something in the store is damaged");
                    }
                    Disposition::TooSlow if group.len() == 1 && slow < TRIES_OF_SLOW => {
                        slow += 1;
                        retried(&error);
                    }
                    Disposition::Data | Disposition::Damaged | Disposition::TooSlow if group.len() > 1 => {
                        retried(&error);
                        for request in group {
                            Box::pin(self.settle(vec![request])).await;
                        }
                        return;
                    }
                    Disposition::Data | Disposition::Damaged | Disposition::TooSlow => {
                        if let Some(request) = group.pop() {
                            self.isolate(request, error).await;
                        }
                        return;
                    }
                    Disposition::Retry => retried(&error),
                    Disposition::Fatal => {
                        refused.get_or_insert_with(|| self.refusals.retrying("committing", &error));
                    }
                },
            }
            backoff.wait().await;
        }
    }

    async fn try_commit(&self, group: &[CommitRequest]) -> Result<Vec<Committed>, CommitError> {
        let submissions: Vec<_> =
            group.iter().map(|request| request.terms.submission(&request.commit)).collect();
        self.writer.commit(&submissions).await
    }

    /// Writes a refused commit part by part to find the items that the store refuses, and writes
    /// fallbacks for these items; see [`partition::isolate`].
    async fn isolate(&self, request: CommitRequest, error: CommitError) {
        tracing::warn!(%error, partition = %request.commit.partition, "a commit is written part by part");
        let CommitRequest { commit, mut terms, settled } = request;
        let partition = commit.partition;
        // The gaps are written with the checkpoint that passes them.
        let gone = std::mem::take(&mut terms.gone);
        let mut parts = CommitParts::of(commit);
        let rest = loop {
            while let Some(part) = parts.next() {
                let alone = Commit { checkpoint: terms.checkpoint, ..parts.alone(&part) };
                match self.commit_alone(&alone, &terms).await {
                    Ok(CommitOutcome::Applied { commits, .. }) => {
                        terms.commits = commits;
                        parts.wrote(part);
                    }
                    Ok(other) => return drop(settled.send(other)),
                    Err(detail) => parts.refuse(part, detail),
                }
            }
            terms.gone.clone_from(&gone);
            let rest = self.commit_alone(parts.rest(), &terms).await;
            if rest.is_ok() || !parts.take_rest_apart() {
                break rest;
            }
            terms.gone.clear();
        };
        for (name, detail) in &parts.dropped {
            note_item(RefusedItem::Write, name, detail);
        }
        let outcome = match rest {
            // The machine's queues still have tasks that are now dead letters, so it must be
            // rebuilt.
            Ok(CommitOutcome::Applied { .. }) if !parts.dropped.is_empty() => {
                self.refused.lock().remove(&partition);
                CommitOutcome::Unknown
            }
            Ok(CommitOutcome::Applied { commits, .. }) => {
                self.refused.lock().remove(&partition);
                let (unstorable, refused) = (parts.unstorable, parts.refused);
                CommitOutcome::Applied { commits, unstorable, refused, messages: Vec::new() }
            }
            Ok(other) => other,
            Err(detail) => {
                // This is not expected, because the rest was validated earlier: raw bytes, numbers,
                // checked chunks, checked commands.
                tracing::error!(
                    detail,
                    "the store refuses a commit without messages; the partition is rebuilt"
                );
                let refused = self.refusals.retrying("committing what is no message", &detail);
                self.refused.lock().insert(partition, refused);
                CommitOutcome::Unknown
            }
        };
        let _ = settled.send(outcome);
    }

    /// `Err`: the store's error about data that it refuses.
    async fn commit_alone(
        &self,
        commit: &Commit,
        terms: &CommitPrecondition,
    ) -> Result<CommitOutcome, String> {
        let mut backoff = backoff();
        let (mut damaged, mut refused) = (0, None);
        loop {
            let error = match self.writer.commit(&[terms.submission(commit)]).await {
                Ok(outcomes) => {
                    let outcome = outcomes.first().copied();
                    return Ok(
                        outcome.map_or(CommitOutcome::Unknown, |it| settled(it, terms.commits + 1, vec![]))
                    );
                }
                Err(error) => error,
            };
            match error.disposition() {
                Disposition::Damaged if damaged < TRIES_OF_DAMAGE => damaged += 1,
                Disposition::Data | Disposition::Damaged => return Err(error.to_string()),
                Disposition::Unknown => return Ok(CommitOutcome::Unknown),
                Disposition::Retry | Disposition::TooSlow => retried(&error),
                Disposition::Fatal => {
                    refused.get_or_insert_with(|| self.refusals.retrying("committing", &error));
                }
            }
            backoff.wait().await;
        }
    }
}

/// Reports a commit that wrote nothing; a retry may succeed.
fn retried(error: &CommitError) {
    metrics::counter!(crate::metrics::RETRIED_COMMITS).increment(1);
    tracing::warn!(%error, "a commit is tried again");
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
}

fn settled(outcome: Committed, commits: u64, messages: Vec<Message>) -> CommitOutcome {
    match outcome {
        Committed::Applied => {
            CommitOutcome::Applied { commits, unstorable: Vec::new(), refused: Vec::new(), messages }
        }
        Committed::Stale => CommitOutcome::Stale,
        Committed::Fenced => CommitOutcome::Fenced,
    }
}

#[cfg(test)]
mod tests {
    use model::Timestamp;

    use super::*;

    fn request(partition: u16) -> CommitRequest {
        let terms = CommitPrecondition {
            commits: 0,
            saves: 0,
            checkpoint: Seq(0),
            incarnation: Arc::from("1"),
            read: None,
            gone: Vec::new(),
        };
        let commit = Commit::empty(PartitionId(partition), 1, Seq(0), Timestamp(0));
        CommitRequest { commit, terms, settled: oneshot::channel().0 }
    }

    async fn next(queue: &mut GroupQueue, most: usize) -> Option<Vec<u16>> {
        let group = queue.next(|group| group.len() < most).await?;
        Some(group.iter().map(|request| request.commit.partition.0).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn busy_partitions_share_a_statement() {
        let (sender, queue) = mpsc::channel(9);
        let mut queue = GroupQueue { queue, last: Vec::new() };
        let submit = async |partitions: &[u16]| {
            for partition in partitions {
                sender.send(request(*partition)).await.unwrap();
            }
        };
        let began = Instant::now();
        submit(&[2]).await;
        assert_eq!(next(&mut queue, 9).await, Some(vec![2]));
        // Partition 3 submitted a commit while the statement of partition 2 ran, and partition 2
        // submits again as soon as its statement returns.
        submit(&[3]).await;
        let (group, ()) = tokio::join!(next(&mut queue, 9), submit(&[2]));
        assert_eq!(group, Some(vec![3, 2]));
        // There is no more room.
        submit(&[1]).await;
        let (group, ()) = tokio::join!(next(&mut queue, 2), submit(&[2, 3]));
        assert_eq!((group, began.elapsed()), (Some(vec![1, 2]), Duration::ZERO));
        // Partitions 1 and 2 do not submit again.
        assert_eq!(next(&mut queue, 9).await, Some(vec![3]));
        assert!((GATHER_TIMEOUT..=2 * GATHER_TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());
        drop(sender);
        assert_eq!(next(&mut queue, 9).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_alone_waits_for_nothing() {
        let (sender, queue) = mpsc::channel(9);
        let mut queue = GroupQueue { queue, last: Vec::new() };
        let began = Instant::now();
        for _ in 0..5 {
            sender.send(request(1)).await.unwrap();
            assert_eq!(next(&mut queue, 9).await, Some(vec![1]));
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
