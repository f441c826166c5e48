//! Streams in the protocols of other clients: the native stream of one message, decoded again and folded.
//!
//! So ordering, repair and the bounds of a slow viewer are those of the native stream, and nothing is decided twice.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use model::MessageId;
use protocols::native::{self, NativeEvent, NativeEventReader};
use protocols::{AnswerEvent, Protocol, ProtocolOutput, StoredAnswer, StreamAction};

use crate::metrics;
use crate::metrics::AbortReason;
use crate::streaming::send_queue::{SendQueueBody, StreamAborted};

/// The comments of the native stream, as blocks of their own: many clients of these protocols take the stream apart at blank lines and look
/// at how a block begins.
const OPEN: &[u8] = b": open\n\n";
const HEARTBEAT: &[u8] = b": heartbeat\n\n";

/// The native stream of one message in another protocol.
#[derive(Debug)]
pub(crate) struct Transcoder<P> {
    fold: P,
    reader: NativeEventReader,
    message: MessageId,
    /// The gateway stops.
    is_drained: bool,
    /// Nothing of the answer was handed to the fold.
    is_untouched: bool,
}

impl<P: Protocol> Transcoder<P> {
    /// The answer `message`; the bytes come first.
    pub(crate) fn new(mut fold: P, message: MessageId) -> (Self, Bytes) {
        let first = fold.apply(AnswerEvent::Opened).bytes;
        let transcoder = Self {
            fold,
            reader: NativeEventReader::default(),
            message,
            is_drained: false,
            is_untouched: true,
        };
        (transcoder, first)
    }

    pub(crate) fn into_fold(self) -> P {
        self.fold
    }

    /// The next bytes of the native stream, for a client that streams.
    fn feed(&mut self, bytes: &[u8]) -> ProtocolOutput {
        let (mut out, mut then) = (BytesMut::new(), StreamAction::Continue);
        for event in self.reader.feed(bytes) {
            if then == StreamAction::Continue {
                let output = self.transcode(&event);
                out.extend_from_slice(&output.bytes);
                then = output.then;
            }
        }
        ProtocolOutput { bytes: out.freeze(), then }
    }

    /// The next bytes of the native stream, for a response that is sent whole: there is no connection to cut, and the fold goes on with
    /// each attempt from its beginning. True at the end.
    ///
    /// # Errors
    /// The store went back in time: what the fold was given is void.
    fn collect_bytes(&mut self, bytes: &[u8]) -> Result<bool, StreamAborted> {
        for event in self.reader.feed(bytes) {
            self.transcode(&event);
            match event {
                NativeEvent::Complete { message, .. } | NativeEvent::Failed { message, .. }
                    if message == self.message =>
                {
                    return Ok(true);
                }
                NativeEvent::Restart => return Err(StreamAborted),
                _ => {}
            }
        }
        Ok(false)
    }

    fn transcode(&mut self, event: &NativeEvent) -> ProtocolOutput {
        match event {
            NativeEvent::Chunk { message, attempt, role, chunk, is_compacted }
                if *message == self.message =>
            {
                if std::mem::take(&mut self.is_untouched) && *is_compacted {
                    self.fold.recall();
                }
                self.fold.apply(AnswerEvent::Chunk { attempt: *attempt, role: *role, chunk })
            }
            NativeEvent::Reset { message, attempt } if *message == self.message => {
                self.fold.apply(AnswerEvent::Reset { attempt: *attempt })
            }
            NativeEvent::Complete { message, position, is_stopped } if *message == self.message => {
                match is_stopped {
                    false => self.fold.apply(AnswerEvent::Complete { position: *position }),
                    true => self.fold.apply(AnswerEvent::Stopped),
                }
            }
            NativeEvent::Failed { message, note, .. } if *message == self.message => {
                self.fold.apply(AnswerEvent::Failed(note))
            }
            NativeEvent::Drain => {
                self.is_drained = true;
                ProtocolOutput { bytes: Bytes::new(), then: StreamAction::Abort }
            }
            // What the fold was given is void. A client that reconnects gets what is valid.
            NativeEvent::Restart => ProtocolOutput { bytes: Bytes::new(), then: StreamAction::Abort },
            _ => ProtocolOutput { bytes: Bytes::new(), then: StreamAction::Continue },
        }
    }
}

/// All that a protocol says of an answer in the history.
pub(crate) fn transcode_stored<P: Protocol>(fold: &mut P, answer: &StoredAnswer) -> Bytes {
    fold.recall();
    let mut out = BytesMut::new();
    for happening in answer.events() {
        out.extend_from_slice(&fold.apply(happening).bytes);
    }
    out.freeze()
}

/// Reads on until the end.
///
/// # Errors
/// The stream was cut before.
pub(crate) async fn collect_until_end<P: Protocol>(
    mut send_queue: SendQueueBody,
    transcoder: &mut Transcoder<P>,
) -> Result<(), StreamAborted> {
    while !transcoder.collect_bytes(&send_queue.next().await?)? {}
    Ok(())
}

/// The body of such a stream.
pub(crate) fn transcoded<P>(send_queue: SendQueueBody, fold: P, message: MessageId) -> Body
where
    P: Protocol + Send + 'static,
{
    let (transcoder, opened) = Transcoder::new(fold, message);
    // What proxies pass the headers on for, before anything of the answer is there.
    let first = Bytes::from([OPEN, &opened].concat());
    // What it goes on with; `None` after its end.
    let rest = Ok(Some((send_queue, transcoder)));
    let rest = futures_util::stream::try_unfold(rest, |rest: Result<_, StreamAborted>| async move {
        let Some((mut send_queue, mut transcoder)) = rest? else { return Ok(None) };
        loop {
            let bytes = send_queue.next().await?;
            if bytes == native::HEARTBEAT {
                return Ok(Some((Bytes::from_static(HEARTBEAT), Ok(Some((send_queue, transcoder))))));
            }
            let output = transcoder.feed(&bytes);
            let rest = match output.then {
                StreamAction::Continue if output.bytes.is_empty() => continue,
                StreamAction::Continue => Ok(Some((send_queue, transcoder))),
                StreamAction::Close => Ok(None),
                StreamAction::Abort => {
                    if !transcoder.is_drained {
                        metrics::subscriber_aborted(AbortReason::Retold);
                    }
                    Err(StreamAborted)
                }
            };
            if output.bytes.is_empty() {
                rest?;
                return Ok(None);
            }
            return Ok(Some((output.bytes, rest)));
        }
    });
    Body::from_stream(futures_util::stream::iter([Ok::<_, StreamAborted>(first)]).chain(rest))
}

#[cfg(test)]
mod tests;
