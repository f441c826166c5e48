//! The fence and the checkpoint: the rows of `partitions`.

use super::columns::{bigint, smallint};
use super::rows::{Given, Rows, row};

pub(super) const COMMITS: Rows = CommitRow::ROWS;
/// The rows of the commits that may be applied, locked.
pub(super) const FENCE: &str = include_str!("fence.sql");
pub(super) const CHECKPOINT: &str = include_str!("checkpoint.sql");
/// As [`CHECKPOINT`], for statements with queues of agents.
pub(super) const CHECKPOINT_OF_QUEUES: &str = include_str!("checkpoint_of_queues.sql");

row! {
    /// A commit, and the state on which it was decided.
    struct CommitRow<'a> as commit_rows of commits {
        owner: &'a str,
        partition_id: i16,
        epoch: i64,
        commits: i64,
        checkpoint: i64,
        position_ms: i64,
        read_seq: i64,
        read_at_ns: Option<i64>,
        saves: i64,
    }
}

fn commits(given: Given<'_>) -> impl Iterator<Item = CommitRow<'_>> {
    let (submission, commit) = (given.submission, given.submission.commit);
    std::iter::once(CommitRow {
        owner: given.owner,
        partition_id: smallint(commit.partition.0),
        epoch: bigint(commit.epoch),
        commits: bigint(submission.commits),
        checkpoint: bigint(commit.checkpoint.0),
        position_ms: commit.position_high_water.0,
        read_seq: submission.read.map_or(0, |mark| bigint(mark.seq.0)),
        read_at_ns: submission.read.map(|mark| mark.stored_at_ns),
        saves: bigint(submission.saves),
    })
}
