//! Queries to partition owners about what waits and why.

use std::time::Duration;

use http_server::error::{ErrorCode, Problem};
use model::{Bucket, Seq, ThreadId, TimerId, TurnId};
use model::{QueryTarget, QueueStatus, WaitReason};
use tokio::time::Instant;

use crate::backend::Backend;

/// A worker that does not own the partition answers at once; an owner may be far away.
const OWNER_QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two checks of how far the owner has read.
const POLL_PAUSE: Duration = Duration::from_millis(50);
/// See [`explain_soon`].
const SOON: Duration = Duration::from_secs(1);

/// The state known to the owner of the bucket; `None` when it does not answer.
pub(crate) async fn explain(context: &Backend, bucket: Bucket, about: &QueryTarget) -> Option<QueueStatus> {
    let query = wire::status::encode_query(about);
    let partition = bucket.partition(context.count);
    context.query_owner(partition, query, OWNER_QUERY_TIMEOUT, wire::status::decode_reply).await
}

/// The owner's state of a thread once the owner has read everything stored at the time of the
/// query. The state thus includes everything that was acknowledged to a client. If the owner dies,
/// this waits for longer than a takeover lasts.
///
/// # Errors
/// No worker owns the thread, its owner does not reach the stored entries in time, or NATS does not
/// answer.
pub(crate) async fn explain_up_to_date(
    context: &Backend,
    thread: &ThreadId,
    about: &QueryTarget,
) -> Result<QueueStatus, Problem> {
    let bucket = thread.bucket();
    let stored = match context.bus.stream_state(bucket.partition(context.count)).await {
        Ok(state) => state.last_seq,
        Err(error) => {
            tracing::debug!(%error, "a stream was not seen");
            return Err(Problem::new(ErrorCode::NatsUnavailable, "NATS does not answer at the moment"));
        }
    };
    let began = Instant::now();
    let timeout = Duration::from_millis(context.limits.owner_timeout_ms);
    loop {
        let detail = match explain(context, bucket, about).await {
            Some(explained) if explained.applied_seq >= stored => return Ok(explained),
            Some(_) => "the thread's owner has not read everything yet",
            None => "no worker owns the thread at the moment",
        };
        if began.elapsed() + POLL_PAUSE > timeout {
            return Err(Problem::new(ErrorCode::PartitionUnavailable, detail));
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

/// Like [`explain_up_to_date`], but waits for at most a second: then the state that the owner knows
/// is returned, or `None` if the owner does not answer.
pub(crate) async fn explain_soon(
    context: &Backend,
    thread: &ThreadId,
    about: &QueryTarget,
) -> Option<QueueStatus> {
    let bucket = thread.bucket();
    let stored = context.bus.stream_state(bucket.partition(context.count)).await;
    let stored = stored.map_or(Seq(0), |state| state.last_seq);
    let began = Instant::now();
    loop {
        let explained = explain(context, bucket, about).await?;
        if explained.applied_seq >= stored || began.elapsed() + POLL_PAUSE > SOON {
            return Some(explained);
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

/// Whether the owner has not read everything yet, and so may not know of a turn.
pub(crate) fn is_catching_up(status: &QueueStatus) -> bool {
    status.reason == Some(WaitReason::CatchingUp)
}

/// Whether the turn is in progress or waits.
pub(crate) fn has_turn(explained: &QueueStatus, turn: &TurnId) -> bool {
    explained.active.as_ref().is_some_and(|active| active.turn == *turn)
        || explained.waiting.iter().any(|waiting| waiting.turn == *turn)
}

/// Turns with people: the one in progress, then the waiting ones in order. Tasks that run in the
/// thread of their agent answer no person, and a follow-up may end with nothing to show to a
/// client.
pub(crate) fn turns_with_people(explained: &QueueStatus) -> impl Iterator<Item = &TurnId> {
    let active = explained.active.iter().map(|active| &active.turn);
    let all = active.chain(explained.waiting.iter().map(|waiting| &waiting.turn));
    all.filter(|turn| turn.is_foreground() && TimerId::of_turn(turn).is_none())
}

/// Whether the owner of a partition answered, as shown to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerStatus {
    Available,
    Unavailable,
}

impl OwnerStatus {
    pub(crate) const ALL: [Self; 2] = [Self::Available, Self::Unavailable];

    /// Derived from the owner's answer.
    pub(crate) fn of<T>(answer: Option<&T>) -> Self {
        if answer.is_some() { Self::Available } else { Self::Unavailable }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Unavailable => "unavailable",
        }
    }
}
