//! Streams in the protocols of other clients: what a native viewer of one message is told, read back and folded.
//!
//! So ordering, repair and the bounds of a slow viewer are those of the native stream, and nothing is decided twice.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use adapters::native::{self, Reader, Told};
use adapters::{Happening, Output, Protocol, StoredAnswer, Then};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use model::MessageId;

use crate::lane::{LaneBody, StreamCut};
use crate::seated::Seated;

/// What one message's viewers are told, in another protocol.
#[derive(Debug)]
pub(crate) struct Telling<P> {
    fold: P,
    reader: Reader,
    message: MessageId,
    /// The final chunk has come: else an end is that of a stopped turn.
    is_whole: bool,
    /// A part of the answer is in the store only.
    needs_store: bool,
}

impl<P: Protocol> Telling<P> {
    /// The answer `message`; the bytes come first.
    pub(crate) fn new(mut fold: P, message: MessageId) -> (Self, Bytes) {
        let first = fold.apply(Happening::Opened).bytes;
        (Self { fold, reader: Reader::default(), message, is_whole: false, needs_store: false }, first)
    }

    pub(crate) fn into_fold(self) -> P {
        self.fold
    }

    /// Whether the rest is to be told from the store, from the beginning.
    pub(crate) fn needs_store(&self) -> bool {
        self.needs_store
    }

    /// The next bytes of the native stream.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Output {
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

    fn tell(&mut self, told: &Told) -> Output {
        match told {
            Told::Chunk { message, attempt, role, chunk, is_compacted } if *message == self.message => {
                if *is_compacted {
                    // Texts without what stood between them: an answer with calls would come out another one.
                    self.needs_store = true;
                    return Output { bytes: Bytes::new(), then: Then::Cut };
                }
                self.is_whole = chunk.is_final;
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
            Told::Drain => Output { bytes: Bytes::new(), then: Then::Cut },
            _ => Output { bytes: Bytes::new(), then: Then::Continue },
        }
    }
}

/// All that a protocol says of an answer in the history.
pub(crate) fn stored<P: Protocol>(fold: &mut P, answer: &StoredAnswer) -> Bytes {
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
        match telling.feed(&bytes).then {
            Then::End => return Ok(true),
            Then::Cut if telling.needs_store() => return Ok(false),
            // There is no connection to cut: the fold stands at the beginning of the new attempt.
            Then::Cut | Then::Continue => {}
        }
    }
}

/// The body of such a stream.
#[derive(Debug)]
pub(crate) struct Adapted<P> {
    lane: Seated<LaneBody>,
    telling: Telling<P>,
    first: Option<Bytes>,
    ends: Option<Then>,
}

impl<P: Protocol> Adapted<P> {
    pub(crate) fn new(lane: Seated<LaneBody>, fold: P, message: MessageId) -> Self {
        let (telling, opened) = Telling::new(fold, message);
        // What proxies pass the headers on for, before anything of the answer is there.
        let mut first = BytesMut::from(native::OPEN);
        first.extend_from_slice(&opened);
        Self { lane, telling, first: Some(first.freeze()), ends: None }
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
            let Some(Ok(frame)) = ready!(Pin::new(&mut self.lane).poll_frame(context)) else {
                self.ends = Some(Then::Cut);
                continue;
            };
            let bytes = frame.into_data().unwrap_or_default();
            if bytes == native::HEARTBEAT {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let output = self.telling.feed(&bytes);
            if output.then != Then::Continue {
                self.ends = Some(output.then);
            }
            if !output.bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(output.bytes))));
            }
        }
    }
}
