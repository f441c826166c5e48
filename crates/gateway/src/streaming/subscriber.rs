//! One client of a feed: its subscription, and how it joins the feed task.

use bytes::Bytes;
use feed::{BadCursor, StreamPart, Subscription};
use http_server::error::ErrorCode;
use model::MessageId;
use protocols::Cursor;
use tokio::sync::{oneshot, watch};

use crate::metrics;
use crate::streaming::send_queue::SendQueue;

#[derive(Debug)]
pub(crate) enum FeedCommand {
    /// Adds a subscriber. Boxed, because every feed's channel has room for some dozens from the
    /// start.
    Join(Box<Subscriber>),
    /// An encoded frame of the thread.
    Frame(Bytes),
    /// The owner of this epoch has sent frames of the thread up to this number.
    Sent(u64, u64),
    /// Facts have been remembered since this answer.
    Remembered(MessageId),
}

/// A client that wants events.
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// Delivers its events.
    pub(crate) send_queue: SendQueue,
    /// The subscriber gets the events strictly after this cursor; `None`: the open messages and all
    /// later events.
    pub(crate) cursor: Option<Cursor>,
    /// The part of the thread that it wants.
    pub(crate) subscription: Subscription,
    /// Resolved when the subscriber has joined (it misses nothing that ends from then on), or its
    /// cursor is refused.
    pub(crate) verdict: Option<oneshot::Sender<Result<(), BadCursor>>>,
}

impl Subscriber {
    /// True when the stream ends with one message.
    pub(crate) fn has_end(&self) -> bool {
        self.subscription.until().is_some()
    }

    /// Admits the subscriber and sends it this first.
    pub(crate) fn begin(&mut self, first: Option<StreamPart>) {
        metrics::events(first.is_some().into());
        self.send_queue.push_first(first);
        self.accept();
    }

    /// Reports that the subscriber has joined; the receiver may be gone.
    pub(crate) fn accept(&mut self) {
        self.verdict.take().map(|verdict| verdict.send(Ok(())));
    }
}

/// What a gateway knows of a partition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartitionSignal {
    /// Rises when something may have been missed.
    pub(crate) resyncs: u64,
    /// The highest epoch of its owners; 0 before the first.
    pub(crate) epoch: u64,
}

impl PartitionSignal {
    /// Records that the partition has, or had, an owner of this epoch.
    pub(crate) fn owned(of_partition: &watch::Sender<Self>, epoch: u64) {
        of_partition.send_if_modified(|signal| {
            let is_new = signal.epoch < epoch;
            signal.epoch = signal.epoch.max(epoch);
            is_new
        });
    }
}

/// Why a subscriber is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubscribeError {
    #[error("{}", ErrorCode::TooManySubscribers.meaning())]
    TooManySubscribers,
    #[error("{}", ErrorCode::TooManyFeeds.meaning())]
    TooManyFeeds,
    #[error("{}", ErrorCode::Draining.meaning())]
    Draining,
}

impl SubscribeError {
    pub(crate) fn code(self) -> ErrorCode {
        match self {
            Self::TooManySubscribers => ErrorCode::TooManySubscribers,
            Self::TooManyFeeds => ErrorCode::TooManyFeeds,
            Self::Draining => ErrorCode::Draining,
        }
    }
}

/// Resolves when a subscriber has joined or its cursor is refused.
pub(crate) type JoinReceiver = oneshot::Receiver<Result<(), BadCursor>>;
