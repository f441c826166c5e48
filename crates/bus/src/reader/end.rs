//! Detects where the stream ends: another server may have entries that the reader's server lacks.
//!
//! A consumer reads from its own server's replica. Such a replica may be cut off from the other
//! servers, or may not have caught up with them yet. It then delivers no more entries, as if all
//! had been delivered. Only the stream's leader knows the end, and only while a majority of the
//! replicas follows it. So the leader is asked once a second while no entry seems to be unread.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::{PartitionId, Seq};
use tokio::time::Instant;

use crate::connection::Bus;
use crate::error::BusError;
use crate::stream::StreamState;

/// Interval of requests.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader may fail to answer before this is reported: an election takes up to nine
/// seconds, but mostly less.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(5);

/// The known end of a stream.
pub(super) struct KnownEnd {
    /// A moment, and the last entry that was stored at that moment.
    known: (Instant, Seq),
    /// The oldest known end that the reader has not reached.
    not_reached: Option<(Instant, Seq)>,
    /// False if the stream has one replica, so that it ends where its reader reads.
    is_replicated: bool,
    asking: Option<(Instant, BoxFuture<'static, Result<StreamState, BusError>>)>,
    ask_at: Instant,
    /// The time since which there has been no valid answer.
    failing_since: Option<Instant>,
}

impl KnownEnd {
    /// Derives the end from the state of a stream that was requested at `asked_at`.
    pub(super) fn new(stream: &StreamState, asked_at: Instant) -> Self {
        Self {
            known: (asked_at, last_entry(stream)),
            not_reached: None,
            is_replicated: stream.replicas > 1,
            asking: None,
            ask_at: asked_at + ASK_INTERVAL,
            failing_since: None,
        }
    }

    /// Asks the leader when a request is due, and returns when it has answered. Cancel-safe.
    pub(super) async fn ask(&mut self, bus: &Bus, partition: PartitionId) {
        if !self.is_replicated {
            return std::future::pending().await;
        }
        if self.asking.is_none() {
            tokio::time::sleep_until(self.ask_at).await;
        }
        let (asked_at, asking) = self.asking.get_or_insert_with(|| {
            let bus = bus.clone();
            (Instant::now(), async move { bus.stream_state(partition).await }.boxed())
        });
        let (asked_at, answer) = (*asked_at, asking.await);
        (self.asking, self.ask_at) = (None, Instant::now().max(asked_at + ASK_INTERVAL));
        match answer {
            Ok(stream) => {
                (self.known, self.failing_since) = ((asked_at, last_entry(&stream)), None);
            }
            Err(error) => {
                self.failing_since.get_or_insert(asked_at);
                tracing::debug!(%partition, %error, "the end of the stream is not known");
            }
        }
    }

    /// The latest time at which a reader at `position` had read all entries, if its server has no
    /// more; `None`: not known.
    pub(super) fn reached_at(&self, position: Seq) -> Option<Instant> {
        match self.is_replicated {
            false => Some(Instant::now()),
            true => (position >= self.known.1).then_some(self.known.0),
        }
    }

    /// How long the leader has been known to have entries beyond `position`, and the last of these
    /// entries.
    pub(super) fn behind(&mut self, position: Seq) -> Option<(Duration, Seq)> {
        if self.not_reached.is_none_or(|(_, end)| position >= end) {
            self.not_reached = (self.is_replicated && position < self.known.1).then_some(self.known);
        }
        self.not_reached.map(|(asked_at, end)| (asked_at.elapsed(), end))
    }

    /// True if no leader with a majority has answered for too long.
    pub(super) fn is_lost(&self) -> bool {
        self.failing_since.is_some_and(|since| since.elapsed() > UNKNOWN_LIMIT)
    }
}

/// The last entry of the stream; zero for an empty stream, whose last entry was purged.
fn last_entry(stream: &StreamState) -> Seq {
    if stream.messages == 0 { Seq(0) } else { stream.last_seq }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(last_seq: u64, replicas: usize) -> StreamState {
        StreamState {
            first_seq: Seq(1),
            last_seq: Seq(last_seq),
            incarnation: "same".to_owned(),
            bytes: 100 * last_seq,
            max_bytes: None,
            messages: last_seq,
            created_at: model::Timestamp(0),
            replicas,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_behind_from_when_the_leader_had_more() {
        let mut end = KnownEnd::new(&stream(10, 3), Instant::now());
        assert_eq!(end.behind(Seq(10)), None);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(end.behind(Seq(9)), Some((Duration::from_secs(5), Seq(10))));
        // A later answer does not reset the time.
        end.known = (Instant::now(), Seq(12));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(end.behind(Seq(9)), Some((Duration::from_secs(6), Seq(10))));
        assert_eq!(end.behind(Seq(11)), Some((Duration::from_secs(1), Seq(12))), "it has gone on");
        assert_eq!(end.behind(Seq(12)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_with_one_replica_is_never_behind() {
        let mut end = KnownEnd::new(&stream(10, 1), Instant::now());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(end.behind(Seq(3)), None);
    }
}
