//! Group commit: while one statement is under way, the next gathers what has become ready.

use std::sync::Arc;
use std::time::Duration;

use model::{Mark, Message, MessageKey, PartitionId, Seq, TurnId};
use partition::Commit;
use partition::bisect::CommitParts;
use runtime::{Backoff, spawn_named};
use store::{CommitError, CommitWriter, Committed, Disposition, Store, StoreError, StreamGap, Submission};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::config::WorkerConfig;

/// How often a commit is tried again that meets something damaged in the store, before it is taken apart: what lies there becomes a
/// dead letter or a failed turn, and everything else goes on.
const TRIES_OF_DAMAGE: u32 = 4;
/// How long a commit waits for others while partitions are busy: what a statement costs beside its turns is as much as some ten of them.
const GATHER_TIMEOUT: Duration = Duration::from_millis(1);

/// What became of a commit.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// Durable, but for what could not be stored, with what the store said of it: messages, which have become dead letters,
    /// and turns, which have failed. `commits`: how many the partition has had with it. `turns`: messages of the turns that were written, where
    /// the commit was written whole.
    Applied {
        commits: u64,
        unstorable: Vec<(MessageKey, String)>,
        refused: Vec<(TurnId, String)>,
        turns: Vec<Vec<Message>>,
    },
    /// Durable, but the store knew more of a queue than its owner.
    Stale,
    /// The lease is gone or the store has gone back in time; nothing was written.
    Fenced,
    /// Unknown.
    Unknown,
}

/// What a commit was decided on.
#[derive(Debug)]
pub(crate) struct Terms {
    /// How many commits the partition has had.
    pub(crate) commits: u64,
    /// The checkpoint of the last one.
    pub(crate) checkpoint: Seq,
    /// The stream, and the last entry read of it.
    pub(crate) incarnation: Arc<str>,
    pub(crate) read: Option<Mark>,
    /// What the stream jumped over.
    pub(crate) gone: Vec<StreamGap>,
}

impl Terms {
    fn submission<'a>(&'a self, commit: &'a Commit) -> Submission<'a> {
        let Self { commits, incarnation, read, gone, .. } = self;
        Submission { commit, commits: *commits, incarnation, read: *read, gone }
    }
}

#[derive(Debug)]
struct CommitRequest {
    commit: Commit,
    terms: Terms,
    settled: oneshot::Sender<CommitOutcome>,
}

/// The committers of a worker, one per writing connection; a partition always has the same one.
#[derive(Debug)]
pub(crate) struct Committers {
    queues: Vec<mpsc::Sender<CommitRequest>>,
}

impl Committers {
    pub(crate) fn start(store: &Store, config: &WorkerConfig) -> Result<Self, StoreError> {
        let start = |_| {
            let (sender, queue) = mpsc::channel(usize::from(config.partitions.get()));
            let committer = Committer {
                writer: store.writer(&config.worker_id)?,
                most_turns: config.limits.commit_turns,
                most_bytes: config.limits.commit_bytes,
            };
            spawn_named("committer", committer.run(queue));
            Ok(sender)
        };
        Ok(Self { queues: (0..config.writers.max(1)).map(start).collect::<Result<_, StoreError>>()? })
    }

    /// Hands a commit over. The receiver ends without a value only when the process is stopping.
    pub(crate) async fn submit(&self, commit: Commit, terms: Terms) -> oneshot::Receiver<CommitOutcome> {
        let (settled, receiver) = oneshot::channel();
        let PartitionId(partition) = commit.partition;
        let queue = &self.queues[usize::from(partition) % self.queues.len()];
        let _ = queue.send(CommitRequest { commit, terms, settled }).await;
        receiver
    }
}

/// Makes groups of what waits.
struct GroupQueue<T> {
    queue: mpsc::Receiver<T>,
    /// How many were in the last group.
    last: usize,
}

impl<T> GroupQueue<T> {
    /// The next group; `None` when the process is stopping. Partitions take turns where one waits while another's commit is under way: those
    /// that were answered just now are waited for, so that all share a statement. Nothing is waited for where nothing waits.
    async fn next(&mut self, has_room: impl Fn(&[T]) -> bool) -> Option<Vec<T>> {
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
            let (deadline, most) = (Instant::now() + GATHER_TIMEOUT, group.len() + self.last);
            while group.len() < most
                && has_room(&group)
                && let Ok(Some(next)) = timeout_at(deadline, self.queue.recv()).await
            {
                group.push(next);
            }
        }
        self.last = group.len();
        Some(group)
    }
}

struct Committer {
    writer: CommitWriter,
    most_turns: usize,
    most_bytes: usize,
}

impl Committer {
    async fn run(self, queue: mpsc::Receiver<CommitRequest>) {
        let mut queue = GroupQueue { queue, last: 0 };
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
        let mut damaged = 0;
        loop {
            // A session that was dropped meanwhile has lost its partition.
            group.retain(|request| !request.settled.is_closed());
            if group.is_empty() {
                return;
            }
            match self.try_commit(&group).await {
                Ok(outcomes) => {
                    for (request, outcome) in group.into_iter().zip(outcomes) {
                        let commits = request.terms.commits + 1;
                        let turns = request.commit.turns.into_iter().map(|write| write.messages);
                        let turns = turns.filter(|messages| !messages.is_empty()).collect();
                        let _ = request.settled.send(settled(outcome, commits, turns));
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
                    Disposition::Data | Disposition::Damaged if group.len() > 1 => {
                        for request in group {
                            Box::pin(self.settle(vec![request])).await;
                        }
                        return;
                    }
                    Disposition::Data | Disposition::Damaged => {
                        if let Some(request) = group.pop() {
                            self.isolate(request, error).await;
                        }
                        return;
                    }
                    Disposition::Retry => tracing::debug!(%error, "a commit is tried again"),
                    Disposition::Fatal => tracing::error!(%error, "a commit is refused and is tried again"),
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

    /// Finds what the store refuses, part by part, and writes what stands for it; see [`partition::bisect`].
    async fn isolate(&self, request: CommitRequest, error: CommitError) {
        tracing::warn!(%error, partition = %request.commit.partition, "looking for what the store refuses");
        let CommitRequest { commit, mut terms, settled } = request;
        // Named with the checkpoint that passes it.
        let gone = std::mem::take(&mut terms.gone);
        let mut parts = CommitParts::of(commit);
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
        terms.gone = gone;
        let outcome = match self.commit_alone(parts.rest(), &terms).await {
            Ok(CommitOutcome::Applied { commits, .. }) => {
                let (unstorable, refused) = (parts.unstorable, parts.refused);
                CommitOutcome::Applied { commits, unstorable, refused, turns: Vec::new() }
            }
            Ok(other) => other,
            Err(detail) => {
                // What is left was checked before it came here: raw bytes, numbers, checked chunks, checked commands.
                tracing::error!(
                    detail,
                    "the store refuses a commit without messages; the partition is rebuilt"
                );
                CommitOutcome::Unknown
            }
        };
        let _ = settled.send(outcome);
    }

    /// `Err` is what the store said of data that it refuses.
    async fn commit_alone(&self, commit: &Commit, terms: &Terms) -> Result<CommitOutcome, String> {
        let mut backoff = backoff();
        let mut damaged = 0;
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
                Disposition::Retry | Disposition::Fatal => {}
            }
            backoff.wait().await;
        }
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
}

fn settled(outcome: Committed, commits: u64, turns: Vec<Vec<Message>>) -> CommitOutcome {
    match outcome {
        Committed::Applied => {
            CommitOutcome::Applied { commits, unstorable: Vec::new(), refused: Vec::new(), turns }
        }
        Committed::Stale => CommitOutcome::Stale,
        Committed::Fenced => CommitOutcome::Fenced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> (mpsc::Sender<u32>, GroupQueue<u32>) {
        let (sender, queue) = mpsc::channel(9);
        (sender, GroupQueue { queue, last: 0 })
    }

    #[tokio::test(start_paused = true)]
    async fn busy_partitions_share_a_statement() {
        let (sender, mut queue) = queue();
        let began = Instant::now();
        for partition in [1, 2] {
            sender.send(partition).await.unwrap();
            assert_eq!(queue.next(|_| true).await, Some(vec![partition]));
            // Where nothing came before, or nothing comes again, this is all that is waited.
        }
        assert!(began.elapsed() <= 2 * GATHER_TIMEOUT);
        // Partition 3 waits while the statement of 2 is under way; 2 comes again when it is answered.
        sender.send(3).await.unwrap();
        let (group, ()) = tokio::join!(queue.next(|_| true), async { sender.send(2).await.unwrap() });
        assert_eq!((group, queue.last), (Some(vec![3, 2]), 2));
        let before = Instant::now();
        sender.send(1).await.unwrap();
        let (group, ()) = tokio::join!(queue.next(|group| group.len() < 2), async {
            for partition in [2, 3] {
                sender.send(partition).await.unwrap();
            }
        });
        assert_eq!((group, before.elapsed()), (Some(vec![1, 2]), Duration::ZERO), "there is no more room");
        assert_eq!(queue.next(|_| true).await, Some(vec![3]));
        assert!((GATHER_TIMEOUT..=2 * GATHER_TIMEOUT).contains(&before.elapsed()), "{:?}", before.elapsed());
        drop(sender);
        assert_eq!(queue.next(|_| true).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_alone_waits_for_nothing() {
        let (sender, mut queue) = queue();
        let began = Instant::now();
        for _ in 0..5 {
            let (group, ()) = tokio::join!(queue.next(|_| true), async {
                tokio::task::yield_now().await;
                sender.send(1).await.unwrap();
            });
            assert_eq!(group, Some(vec![1]));
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
