//! Streams in the protocols of other clients: folds the native events of one message into another
//! protocol.
//!
//! Ordering, repair and the bounds for slow subscribers are therefore those of the native stream.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use feed::FeedEvent;
use futures_util::StreamExt;
use model::MessageId;
use protocols::native::{self, NativeEvent};
use protocols::{AnswerEvent, Protocol, ProtocolOutput, StoredAnswer, StreamAction};

use crate::metrics;
use crate::metrics::AbortReason;
use crate::streaming::send_queue::{SendQueueBody, StreamAborted};

/// The comments of the native stream, each as a separate block: many clients of these protocols
/// split the stream at blank lines and look at how a block begins.
const OPEN: &[u8] = b": open\n\n";
const HEARTBEAT: &[u8] = b": heartbeat\n\n";

/// Translates one message to another protocol.
#[derive(Debug)]
pub(crate) struct Transcoder<P> {
    fold: P,
    message: MessageId,
    /// The fold has received nothing of the answer yet.
    is_untouched: bool,
}

impl<P: Protocol> Transcoder<P> {
    /// Transcodes the answer `message`; the returned bytes are the start of the stream.
    pub(crate) fn new(mut fold: P, message: MessageId) -> (Self, Bytes) {
        let first = fold.apply(AnswerEvent::Opened).bytes;
        (Self { fold, message, is_untouched: true }, first)
    }

    pub(crate) fn into_fold(self) -> P {
        self.fold
    }

    /// Applies the next events, for a client that streams.
    fn apply(&mut self, events: &[Arc<FeedEvent>]) -> ProtocolOutput {
        let (mut out, mut then) = (Vec::new(), StreamAction::Continue);
        for event in events {
            if then == StreamAction::Continue {
                let output = self.transcode(&event.event);
                out.push(output.bytes);
                then = output.then;
            }
        }
        let bytes = if let [bytes] = &mut *out { std::mem::take(bytes) } else { out.concat().into() };
        ProtocolOutput { bytes, then }
    }

    /// Applies the next events for a response that is sent whole: there is no connection to cut,
    /// and the fold restarts with each attempt. Returns true at the end of the answer.
    ///
    /// # Errors
    /// The store went back in time: the fold's input is void.
    fn collect(&mut self, events: &[Arc<FeedEvent>]) -> Result<bool, StreamAborted> {
        for event in events {
            let event = &event.event;
            self.transcode(event);
            if *event == NativeEvent::Restart {
                return Err(StreamAborted);
            }
            if event.ended() == Some(&self.message) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn transcode(&mut self, event: &NativeEvent) -> ProtocolOutput {
        match event {
            NativeEvent::Chunk { message, attempt, chunk, is_compacted, .. } if *message == self.message => {
                if std::mem::take(&mut self.is_untouched) && *is_compacted {
                    self.fold.recall();
                }
                self.fold.apply(AnswerEvent::Chunk { attempt: *attempt, chunk })
            }
            NativeEvent::Reset { message, attempt } if *message == self.message => {
                self.fold.apply(AnswerEvent::Reset { attempt: *attempt })
            }
            NativeEvent::Complete { message, position, is_stopped, report } if *message == self.message => {
                if let Some(sum) = report.usage.as_deref() {
                    self.fold.apply(AnswerEvent::Used(sum));
                }
                match is_stopped {
                    false => self.fold.apply(AnswerEvent::Complete { position: *position }),
                    true => self.fold.apply(AnswerEvent::Stopped),
                }
            }
            NativeEvent::Failed { message, failure, .. } if *message == self.message => {
                self.fold.apply(AnswerEvent::Failed(failure))
            }
            NativeEvent::Waiting { message, reason } if *message == self.message => {
                let then = StreamAction::Continue;
                ProtocolOutput { bytes: native::waiting_comment(*reason), then }
            }
            // The fold's input is void. A client that reconnects gets what is valid.
            NativeEvent::Restart => ProtocolOutput { bytes: Bytes::new(), then: StreamAction::Abort },
            _ => ProtocolOutput { bytes: Bytes::new(), then: StreamAction::Continue },
        }
    }
}

/// Transcodes a stored answer.
pub(crate) fn transcode_stored<P: Protocol>(fold: &mut P, answer: &StoredAnswer) -> Bytes {
    fold.recall();
    let out: Vec<Bytes> = answer.events().map(|happening| fold.apply(happening).bytes).collect();
    out.concat().into()
}

/// Collects events until the end of the answer.
///
/// # Errors
/// The stream was cut before the end.
pub(crate) async fn collect_until_end<P: Protocol>(
    mut send_queue: SendQueueBody,
    transcoder: &mut Transcoder<P>,
) -> Result<(), StreamAborted> {
    loop {
        let events = send_queue.next_values().await?;
        match transcoder.collect(&events.unwrap_or_default()) {
            Ok(false) => {}
            ended => {
                send_queue.discard();
                return ended.map(drop);
            }
        }
    }
}

/// The response body of a transcoded stream.
pub(crate) fn transcoded<P>(send_queue: SendQueueBody, fold: P, message: MessageId) -> Body
where
    P: Protocol + Send + 'static,
{
    let (transcoder, opened) = Transcoder::new(fold, message);
    // Lets proxies pass the headers on before the answer begins.
    let first = Bytes::from([OPEN, &opened].concat());
    // The state of the rest of the stream; `None` after its end.
    let rest = Ok(Some((send_queue, transcoder)));
    let rest = futures_util::stream::try_unfold(rest, |rest: Result<_, StreamAborted>| async move {
        let Some((mut send_queue, mut transcoder)) = rest? else { return Ok(None) };
        loop {
            let Some(events) = send_queue.next_values().await? else {
                send_queue.count(HEARTBEAT.len());
                return Ok(Some((Bytes::from_static(HEARTBEAT), Ok(Some((send_queue, transcoder))))));
            };
            let output = transcoder.apply(&events);
            send_queue.count(output.bytes.len());
            let rest = match output.then {
                StreamAction::Continue if output.bytes.is_empty() => continue,
                StreamAction::Continue => Ok(Some((send_queue, transcoder))),
                StreamAction::Close => {
                    send_queue.discard();
                    Ok(None)
                }
                StreamAction::Abort => {
                    send_queue.discard();
                    metrics::subscriber_aborted(AbortReason::Retold);
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
