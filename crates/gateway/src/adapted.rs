//! Streams in the protocols of other clients: what a native viewer of one message is told, read back and folded.
//!
//! So ordering, repair and the bounds of a slow viewer are those of the native stream, and nothing is decided twice.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adapters::native::{self, Reader, Told};
use adapters::{Happening, Output, Protocol, StoredAnswer, Then};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use model::{MessageId, ThreadId};
use store::Store;

use crate::lane::{LaneBody, StreamCut};
use crate::metrics::{self, Cut};
use crate::reads;
use crate::seated::Seated;

/// How long the store may take to tell an answer that ended while its viewer was let in.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer that comes, and where it will be.
#[derive(Debug)]
pub(crate) struct Live {
    lane: Seated<LaneBody>,
    store: Store,
    thread: ThreadId,
}

impl Live {
    pub(crate) fn new(lane: Seated<LaneBody>, store: &Store, thread: &ThreadId) -> Self {
        Self { lane, store: store.clone(), thread: thread.clone() }
    }

    /// From its first piece on.
    pub(crate) fn into_lane(self) -> Seated<LaneBody> {
        self.lane
    }
}

/// What one message's viewers are told, in another protocol.
#[derive(Debug)]
pub(crate) struct Telling<P> {
    fold: P,
    reader: Reader,
    message: MessageId,
    /// The final chunk has come: else an end is that of a stopped turn.
    is_whole: bool,
    /// Why it does not go on, if not because of the protocol.
    stop: Option<Stop>,
    /// Nothing of the answer was handed to the fold.
    is_untouched: bool,
}

/// What whoever waits for the end waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    End,
    /// The answer is to be read from the store.
    NeedsStore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// A part of the answer is in the store only.
    NeedsStore,
    Drain,
}

impl<P: Protocol> Telling<P> {
    /// The answer `message`; the bytes come first.
    pub(crate) fn new(mut fold: P, message: MessageId) -> (Self, Bytes) {
        let first = fold.apply(Happening::Opened).bytes;
        (
            Self {
                fold,
                reader: Reader::default(),
                message,
                is_whole: false,
                stop: None,
                is_untouched: true,
            },
            first,
        )
    }

    pub(crate) fn into_fold(self) -> P {
        self.fold
    }

    fn needs_store(&self) -> bool {
        self.stop == Some(Stop::NeedsStore)
    }

    /// The next bytes of the native stream, for a client that is told of them.
    fn feed(&mut self, bytes: &[u8]) -> Output {
        let (mut out, mut then) = (BytesMut::new(), Then::Continue);
        for told in self.reader.feed(bytes) {
            if then == Then::Continue {
                let output = self.tell(&told);
                out.extend_from_slice(&output.bytes);
                then = output.then;
            }
        }
        Output { bytes: out.freeze(), then }
    }

    /// The next bytes of the native stream, for somebody who waits for the end: there is no connection to cut, and the fold goes on with
    /// each attempt from its beginning.
    fn hear(&mut self, bytes: &[u8]) -> Option<Heard> {
        for told in self.reader.feed(bytes) {
            let is_end = match &told {
                Told::Complete { message, .. } | Told::Failed { message, .. } => *message == self.message,
                Told::Chunk { .. } | Told::Reset { .. } | Told::Drain => false,
            };
            self.tell(&told);
            if self.needs_store() {
                return Some(Heard::NeedsStore);
            }
            if is_end {
                return Some(Heard::End);
            }
        }
        None
    }

    fn tell(&mut self, told: &Told) -> Output {
        match told {
            Told::Chunk { message, attempt, role, chunk, is_compacted } if *message == self.message => {
                if *is_compacted {
                    // Texts without what stood between them: an answer with calls would come out another one.
                    return self.stopped(Stop::NeedsStore);
                }
                (self.is_whole, self.is_untouched) = (chunk.is_final, false);
                self.fold.apply(Happening::Chunk { attempt: *attempt, role: *role, chunk })
            }
            Told::Reset { message, attempt } if *message == self.message => {
                self.is_whole = false;
                self.fold.apply(Happening::Reset { attempt: *attempt })
            }
            Told::Complete { message, position } if *message == self.message => match self.is_whole {
                true => self.fold.apply(Happening::Complete { position: *position }),
                false => self.fold.apply(Happening::Stopped),
            },
            Told::Failed { message, note } if *message == self.message => {
                self.fold.apply(Happening::Failed(note))
            }
            Told::Drain => self.stopped(Stop::Drain),
            _ => Output { bytes: Bytes::new(), then: Then::Continue },
        }
    }

    fn stopped(&mut self, stop: Stop) -> Output {
        self.stop = Some(stop);
        Output { bytes: Bytes::new(), then: Then::Cut }
    }
}

/// All that a protocol says of an answer in the history.
pub(crate) fn stored<P: Protocol>(fold: &mut P, answer: &StoredAnswer) -> Bytes {
    fold.recall();
    let mut out = BytesMut::new();
    for happening in answer.happenings() {
        out.extend_from_slice(&fold.apply(happening).bytes);
    }
    out.freeze()
}

/// Reads on until the end; false when the answer is to be read from the store.
///
/// # Errors
/// The stream was cut before.
pub(crate) async fn until_end<P: Protocol>(
    mut lane: Seated<LaneBody>,
    telling: &mut Telling<P>,
) -> Result<bool, StreamCut> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut lane).poll_frame(context)).await;
        let bytes = frame.ok_or(StreamCut)??.into_data().unwrap_or_default();
        if let Some(heard) = telling.hear(&bytes) {
            return Ok(heard == Heard::End);
        }
    }
}

/// The body of such a stream.
pub(crate) struct Adapted<P> {
    live: Live,
    telling: Telling<P>,
    first: Option<Bytes>,
    /// The whole answer, which ended before anything of it was told here.
    recalled: Option<Recalled>,
    ends: Option<Then>,
}

type Recalled = Pin<Box<dyn Future<Output = Option<StoredAnswer>> + Send>>;

impl<P: Protocol> Adapted<P> {
    pub(crate) fn new(live: Live, fold: P, message: MessageId) -> Self {
        let (telling, opened) = Telling::new(fold, message);
        // What proxies pass the headers on for, before anything of the answer is there.
        let mut first = BytesMut::from(native::OPEN);
        first.extend_from_slice(&opened);
        Self { live, telling, first: Some(first.freeze()), recalled: None, ends: None }
    }

    /// Reads the answer from the store; `None` when it is not there, or not soon.
    fn recall(&self) -> Recalled {
        let (store, thread) = (self.live.store.clone(), self.live.thread.clone());
        let message = self.telling.message.clone();
        Box::pin(async move {
            let read = reads::answer(&store, &thread, &message);
            tokio::time::timeout(PATIENCE, read).await.ok()?.ok()?
        })
    }
}

impl<P: Protocol + Unpin> Body for Adapted<P> {
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            match self.ends {
                Some(Then::End) => return Poll::Ready(None),
                Some(_) => return Poll::Ready(Some(Err(StreamCut))),
                None => {}
            }
            if let Some(recalled) = &mut self.recalled {
                let Some(answer) = ready!(recalled.as_mut().poll(context)) else {
                    metrics::cut(Cut::Internal);
                    self.ends = Some(Then::Cut);
                    continue;
                };
                self.ends = Some(Then::End);
                let told = stored(&mut self.telling.fold, &answer);
                return Poll::Ready(Some(Ok(Frame::data(told))));
            }
            let Some(Ok(frame)) = ready!(Pin::new(&mut self.live.lane).poll_frame(context)) else {
                self.ends = Some(Then::Cut);
                continue;
            };
            let bytes = frame.into_data().unwrap_or_default();
            if bytes == native::HEARTBEAT {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let output = self.telling.feed(&bytes);
            match output.then {
                Then::Continue => {}
                Then::Cut if self.telling.needs_store() && self.telling.is_untouched => {
                    self.recalled = Some(self.recall());
                    continue;
                }
                Then::Cut => {
                    if self.telling.stop != Some(Stop::Drain) {
                        metrics::cut(Cut::Retold);
                    }
                    self.ends = Some(Then::Cut);
                }
                Then::End => self.ends = Some(Then::End),
            }
            if !output.bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(output.bytes))));
            }
        }
    }
}

#[cfg(test)]
mod tests;
