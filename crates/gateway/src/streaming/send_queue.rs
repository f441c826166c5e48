//! The path from a feed to one subscriber: a bounded queue of shared bytes, and the response body
//! that empties it.
//!
//! A slow subscriber is cut without affecting others: its queue is freed at once and its connection
//! is dropped without the end of the body, so that no client takes a partial stream for the whole.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::metrics::Counter;
use bytes::Bytes;
use feed::{FeedEvent, StreamPart};
use http_body::Frame;
use http_server::auth::quota::TenantStreamPermit;
use protocols::native;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::metrics::AbortReason;

/// Small events are joined up to this size, so that a burst is one write.
const WRITE_BYTES: usize = 16 * 1024;
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Time for the last event to reach the socket before the connection is cut.
const LAST_EVENT: Duration = Duration::from_millis(100);

/// The feed's side of the queue. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SendQueue {
    shared: Arc<SharedQueue>,
}

#[derive(Debug)]
struct SharedQueue {
    queue: Mutex<Queue>,
    drained: Notify,
    /// Notified when the client has gone.
    departures: OnceLock<Arc<Notify>>,
    connection: CancellationToken,
    max_lag: usize,
}

#[derive(Debug, Default)]
struct Queue {
    parts: VecDeque<StreamPart>,
    /// Bytes in `parts` that count as lag. What a subscriber gets when it joins does not count: it
    /// is shared with the feed.
    lag: usize,
    /// Number of leading parts that do not count as lag.
    free: usize,
    state: QueueState,
    waker: Option<Waker>,
    /// A task waits until the queue is empty. This is rare, and without such a task no notification
    /// is needed.
    is_awaited: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum QueueState {
    #[default]
    Open,
    /// Accepts nothing more and closes when it is empty. The stream ends cleanly if the subscriber
    /// wanted one message and has its end. Otherwise, it is cut after its last event, once that
    /// event has had time to leave.
    Closing { is_clean: bool },
    /// Cut, or the client is gone.
    Closed,
}

impl SendQueue {
    /// Creates a queue and its body. `connection` is cancelled when the subscriber is cut.
    pub(crate) fn new(connection: CancellationToken, max_lag: usize) -> (Self, SendQueueBody) {
        let queue = Mutex::new(Queue::default());
        let shared = Arc::new(SharedQueue {
            queue,
            drained: Notify::new(),
            departures: OnceLock::new(),
            connection,
            max_lag,
        });
        metrics::subscribers(1.0);
        let heartbeat = Box::pin(tokio::time::sleep(HEARTBEAT_EVERY));
        let now = Instant::now();
        let body = SendQueueBody {
            shared: Arc::clone(&shared),
            _permits: None,
            heartbeat,
            is_leaving: false,
            written_at: now,
            bytes: metrics::bytes(),
            early_departure: None,
            uncounted: 0,
            counted_at: now,
        };
        (Self { shared }, body)
    }

    /// Queues what the subscriber gets before it has caught up with the feed; it does not count as
    /// lag.
    pub(crate) fn push_first(&self, parts: impl IntoIterator<Item = StreamPart>) {
        let mut queue = self.shared.lock();
        if queue.state != QueueState::Open {
            return;
        }
        let before = queue.parts.len();
        queue.parts.extend(parts);
        queue.free += queue.parts.len() - before;
        queue.wake();
    }

    /// Queues live events. False when the subscriber is gone, or is cut because of its lag.
    pub(crate) fn push(&self, events: &[StreamPart]) -> bool {
        let mut queue = self.shared.lock();
        if queue.state != QueueState::Open {
            return false;
        }
        for event in events {
            let size = event.bytes().len();
            if queue.lag > 0 && queue.lag + size > self.shared.max_lag {
                drop(queue);
                self.abort(AbortReason::Lag);
                return false;
            }
            queue.lag += size;
            queue.parts.push_back(event.clone());
        }
        queue.wake();
        true
    }

    /// Cuts the connection without an end.
    pub(crate) fn abort(&self, reason: AbortReason) {
        let mut queue = self.shared.lock();
        if queue.state == QueueState::Open {
            metrics::subscriber_aborted(reason);
            queue.close();
            self.shared.connection.cancel();
        }
    }

    /// Sends a last event, then cuts the connection. The client may miss the end of a message, and
    /// such a stream must never end cleanly.
    pub(crate) fn end_with(&self, event: StreamPart) {
        let mut queue = self.shared.lock();
        if queue.state == QueueState::Open {
            queue.parts.push_back(event);
            queue.state = QueueState::Closing { is_clean: false };
            queue.wake();
        }
    }

    /// Ends the stream cleanly after the queued events.
    pub(crate) fn finish(&self) {
        let mut queue = self.shared.lock();
        if queue.state == QueueState::Open {
            queue.state = QueueState::Closing { is_clean: true };
            queue.wake();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.shared.lock().state == QueueState::Open
    }

    /// Notifies `departures` when the client goes, or at once if it has gone already. To be called
    /// once per queue.
    pub(crate) fn on_departure(&self, departures: &Arc<Notify>) {
        let _ = self.shared.departures.set(Arc::clone(departures));
        // A client that goes after this line finds `departures` set.
        if !self.is_open() {
            departures.notify_one();
        }
    }

    /// Waits until everything queued was taken, or the queue is closed.
    pub(crate) async fn drained(&self) {
        loop {
            let drained = self.shared.drained.notified();
            {
                let mut queue = self.shared.lock();
                if queue.parts.is_empty() || queue.state != QueueState::Open {
                    return;
                }
                queue.is_awaited = true;
            }
            drained.await;
        }
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn close(&mut self) {
        self.state = QueueState::Closed;
        self.parts = VecDeque::new();
        (self.lag, self.free) = (0, 0);
        self.wake();
    }

    fn pop(&mut self) -> Option<StreamPart> {
        let part = self.parts.pop_front()?;
        match self.free {
            0 => self.lag -= part.bytes().len().min(self.lag),
            _ => self.free -= 1,
        }
        Some(part)
    }

    /// Takes the bytes of all ready parts, up to the size of a write. A single part is passed on
    /// without a copy.
    fn take(&mut self) -> Option<Bytes> {
        let first = self.pop()?;
        let (bytes, further) = self.count_further(&first);
        if further == 0 {
            return Some(first.into_bytes());
        }
        // Exactly as large as needed: a burst to a thousand subscribers needs a thousand of these
        // at once.
        let mut joined = Vec::with_capacity(bytes);
        joined.extend_from_slice(first.bytes());
        for part in std::iter::from_fn(|| self.pop()).take(further) {
            joined.extend_from_slice(part.bytes());
        }
        Some(joined.into())
    }

    /// Takes the values of all ready parts, up to the size of a write.
    fn take_values(&mut self) -> Option<Vec<Arc<FeedEvent>>> {
        let mut values = Vec::new();
        while values.is_empty() {
            let first = self.pop()?;
            let (_, further) = self.count_further(&first);
            let rest = std::iter::from_fn(|| self.pop()).take(further);
            values.extend(std::iter::once(first).chain(rest).filter_map(StreamPart::into_value));
        }
        Some(values)
    }

    /// Counts the further parts that fit into a write with the first one, and the bytes of all of
    /// them.
    fn count_further(&self, first: &StreamPart) -> (usize, usize) {
        let (mut bytes, mut further) = (first.bytes().len(), 0);
        for part in &self.parts {
            let size = part.bytes().len();
            if bytes + size > WRITE_BYTES {
                break;
            }
            bytes += size;
            further += 1;
        }
        (bytes, further)
    }
}

/// Keeps a subscriber counted while its stream lives.
#[derive(Debug)]
pub(crate) struct SubscriberPermit {
    pub(crate) _subscribers: Arc<()>,
}

/// The subscriber's side: a response body that ends cleanly only after the end of the message that
/// the subscriber wanted, because clients take a clean end for a complete stream.
#[derive(Debug)]
pub(crate) struct SendQueueBody {
    shared: Arc<SharedQueue>,
    /// The subscriber's place among the subscribers of the thread, and among the streams of the
    /// tenant.
    _permits: Option<(SubscriberPermit, Option<TenantStreamPermit>)>,
    /// The timer is not reset with each write; when it fires, it is compared with `written_at`.
    heartbeat: Pin<Box<Sleep>>,
    /// The last event has been taken; the connection is cut when `heartbeat` fires.
    is_leaving: bool,
    written_at: Instant,
    bytes: Counter,
    /// Notified when the client leaves before the end of the stream.
    early_departure: Option<oneshot::Sender<()>>,
    /// Bytes not yet added to the counter, and the time of the last addition.
    uncounted: u64,
    counted_at: Instant,
}

impl SendQueueBody {
    /// Keeps the permits until the body is dropped.
    pub(crate) fn keep(&mut self, subscriber: SubscriberPermit, tenant: Option<TenantStreamPermit>) {
        self._permits = Some((subscriber, tenant));
    }

    /// The returned receiver gets a value when the client leaves before the end of the stream. It
    /// gets none when the stream ends or is cut here.
    pub(crate) fn early_departure(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.early_departure = Some(sender);
        receiver
    }

    /// Drops the body although its client has not left.
    pub(crate) fn discard(mut self) {
        self.early_departure = None;
    }

    /// The next values for an encoder of another protocol; `None` when a heartbeat is due. Parts
    /// that are not values belong to the native protocol and are skipped.
    ///
    /// # Errors
    /// The stream was cut, or has ended.
    pub(crate) async fn next_values(&mut self) -> Result<Option<Vec<Arc<FeedEvent>>>, StreamAborted> {
        poll_fn(|context| self.poll_taken(context, Queue::take_values)).await.ok_or(StreamAborted)?
    }

    /// Counts written bytes, with one addition per second: all connections share the counter.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.uncounted += bytes as u64;
        if self.written_at.duration_since(self.counted_at) >= COUNT_EVERY {
            self.counted_at = self.written_at;
            self.bytes.increment(std::mem::take(&mut self.uncounted));
        }
    }

    /// Polls `take`; `None` when a heartbeat is due.
    fn poll_taken<T>(
        &mut self,
        context: &mut Context<'_>,
        take: fn(&mut Queue) -> Option<T>,
    ) -> Poll<Option<Result<Option<T>, StreamAborted>>> {
        let (taken, state) = {
            let mut queue = self.shared.lock();
            let taken = take(&mut queue);
            if taken.is_none() {
                match queue.state {
                    QueueState::Open => queue.waker = Some(context.waker().clone()),
                    QueueState::Closing { is_clean: false } => {}
                    QueueState::Closing { is_clean: true } => return Poll::Ready(None),
                    QueueState::Closed => return Poll::Ready(Some(Err(StreamAborted))),
                }
            }
            if queue.parts.is_empty() && std::mem::take(&mut queue.is_awaited) {
                self.shared.drained.notify_waiters();
            }
            (taken, queue.state)
        };
        if taken.is_none() {
            if state != QueueState::Open {
                if !std::mem::replace(&mut self.is_leaving, true) {
                    // Bytes that were taken are written while the body waits for more. An error
                    // would drop the connection first.
                    self.heartbeat.as_mut().reset(Instant::now() + LAST_EVENT);
                }
                std::task::ready!(self.heartbeat.as_mut().poll(context));
                return Poll::Ready(Some(Err(StreamAborted)));
            }
            std::task::ready!(self.poll_silence(context));
        }
        self.written_at = Instant::now();
        Poll::Ready(Some(Ok(taken)))
    }

    /// Waits until nothing has been written for a heartbeat interval.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            std::task::ready!(self.heartbeat.as_mut().poll(context));
            let due = self.written_at + HEARTBEAT_EVERY;
            let is_due = due <= Instant::now();
            self.heartbeat.as_mut().reset(if is_due { Instant::now() + HEARTBEAT_EVERY } else { due });
            if is_due {
                return Poll::Ready(());
            }
        }
    }
}

/// The body was cut; its connection is then dropped without the last chunk.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the stream was cut before its end; connect again with the last event id")]
pub(crate) struct StreamAborted;

impl http_body::Body for SendQueueBody {
    type Data = Bytes;
    type Error = StreamAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamAborted>>> {
        let taken = match std::task::ready!(self.poll_taken(context, Queue::take)) {
            Some(Ok(taken)) => taken,
            Some(Err(aborted)) => return Poll::Ready(Some(Err(aborted))),
            None => return Poll::Ready(None),
        };
        let bytes = taken.unwrap_or(Bytes::from_static(native::HEARTBEAT));
        self.count(bytes.len());
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl Drop for SendQueueBody {
    fn drop(&mut self) {
        self.bytes.increment(self.uncounted);
        metrics::subscribers(-1.0);
        let was_open = {
            let mut queue = self.shared.lock();
            let was_open = queue.state == QueueState::Open;
            queue.close();
            was_open
        };
        if was_open && let Some(departure) = self.early_departure.take() {
            let _ = departure.send(());
        }
        self.shared.drained.notify_waiters();
        if let Some(departures) = self.shared.departures.get() {
            departures.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
