//! The common part of the encoders: attempts, the order of opening, chunks and end, and what was
//! shown.
//!
//! Entry type: [`EncoderDriver`], with the [`ProtocolEncoder`] of a protocol.

use bytes::Bytes;
use model::{AnswerCalls, Chunk, MessageId, Metadata, ModelCall, TurnId};

use crate::answer_parts::{AnswerParts, PartChange};
use crate::usage::Usage;
use crate::{AnswerEvent, ProtocolOutput, StreamAction, StreamError};

/// Encodes events in one protocol. Each method appends whole events to `out`.
pub(crate) trait ProtocolEncoder {
    /// Begins the stream.
    fn open(&mut self, out: &mut Vec<u8>);

    /// A chunk arrived, perhaps an empty one.
    fn on_chunk(&mut self, _out: &mut Vec<u8>) {}

    /// The outline has changed.
    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>);

    /// The answer has ended; open parts are closed after this call.
    fn ending(&mut self, _end: AnswerEnd<'_>) {}

    /// Ends the stream; all open parts were closed.
    fn end(&mut self, end: AnswerEnd<'_>, report: &AnswerReport<'_>, out: &mut Vec<u8>);

    /// Begins another attempt. `was_shown`: part of the previous one was shown, so this connection
    /// cannot continue.
    fn restart(&mut self, attempt: u32, was_shown: bool, out: &mut Vec<u8>) -> StreamAction;
}

/// The report of an answer at its end.
#[derive(Debug)]
pub(crate) struct AnswerReport<'a> {
    /// Metadata of the final chunk, with the usage of the answer.
    pub(crate) metadata: &'a Metadata,
    /// Sum of the model calls; `None`: unknown.
    pub(crate) usage: Option<Usage>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerEnd<'a> {
    Complete,
    Stopped,
    Failed(&'a StreamError),
}

/// Drives one protocol's encoder; see the module.
#[derive(Debug)]
pub(crate) struct EncoderDriver<W> {
    message: MessageId,
    pub(crate) words: W,
    outline: AnswerParts,
    /// Calls reported in the attempt's chunks.
    calls: AnswerCalls,
    /// Usage of the whole answer, if reported.
    used: Option<ModelCall>,
    attempt: u32,
    is_open: bool,
    was_shown: bool,
    is_over: bool,
}

impl<W: ProtocolEncoder> EncoderDriver<W> {
    pub(crate) fn new(message: MessageId, words: W) -> Self {
        let outline = AnswerParts::new(message.clone());
        Self {
            message,
            words,
            outline,
            calls: AnswerCalls::default(),
            used: None,
            attempt: 0,
            is_open: false,
            was_shown: false,
            is_over: false,
        }
    }

    pub(crate) fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput {
        let mut out = Vec::new();
        if self.is_over {
            return output(out, StreamAction::Close);
        }
        let then = match happening {
            AnswerEvent::Opened => self.open(&mut out),
            AnswerEvent::Chunk { attempt, chunk } => self.chunk(attempt, chunk, &mut out),
            AnswerEvent::Reset { attempt } => self.reset(attempt, &mut out),
            AnswerEvent::Used(sum) => {
                self.used = Some(sum.clone());
                StreamAction::Continue
            }
            AnswerEvent::Complete { .. } => self.end(AnswerEnd::Complete, &mut out),
            AnswerEvent::Stopped => self.end(AnswerEnd::Stopped, &mut out),
            AnswerEvent::Failed(failure) => self.end(AnswerEnd::Failed(failure), &mut out),
        };
        output(out, then)
    }

    fn open(&mut self, out: &mut Vec<u8>) -> StreamAction {
        if !std::mem::replace(&mut self.is_open, true) {
            self.words.open(out);
        }
        StreamAction::Continue
    }

    fn chunk(&mut self, attempt: u32, chunk: &Chunk, out: &mut Vec<u8>) -> StreamAction {
        if attempt < self.attempt {
            return StreamAction::Continue;
        }
        let then = self.reset(attempt, out);
        if then != StreamAction::Continue {
            // The connection ends here, but the state continues for clients that wait for the whole
            // answer.
            self.show(chunk, &mut Vec::new());
            return then;
        }
        self.show(chunk, out);
        StreamAction::Continue
    }

    fn show(&mut self, chunk: &Chunk, out: &mut Vec<u8>) {
        self.open(out);
        self.words.on_chunk(out);
        self.calls.take(chunk);
        for change in self.outline.chunk(chunk) {
            self.was_shown = true;
            self.words.change(change, out);
        }
    }

    fn reset(&mut self, attempt: u32, out: &mut Vec<u8>) -> StreamAction {
        if attempt <= self.attempt {
            return StreamAction::Continue;
        }
        self.attempt = attempt;
        self.outline = AnswerParts::new(self.message.clone());
        self.calls = AnswerCalls::default();
        let was_shown = std::mem::take(&mut self.was_shown);
        if was_shown {
            self.is_open = false;
        }
        self.words.restart(attempt, was_shown, out)
    }

    fn end(&mut self, end: AnswerEnd<'_>, out: &mut Vec<u8>) -> StreamAction {
        self.open(out);
        self.words.ending(end);
        let mut changes = Vec::new();
        self.outline.close(&mut changes);
        for change in changes {
            self.words.change(change, out);
        }
        let calls = match self.used.take() {
            Some(sum) => vec![sum],
            None => std::mem::take(&mut self.calls).finish(),
        };
        let metadata = self.outline.metadata();
        let usage = Usage::of(&calls, metadata);
        // The usage is added as in the history.
        let metadata = match end {
            AnswerEnd::Complete if TurnId::of_answer(&self.message).is_some() => {
                metadata.clone().with_usage_of(&calls)
            }
            AnswerEnd::Complete | AnswerEnd::Stopped | AnswerEnd::Failed(_) => metadata.clone(),
        };
        self.words.end(end, &AnswerReport { metadata: &metadata, usage }, out);
        self.is_over = true;
        StreamAction::Close
    }
}

fn output(out: Vec<u8>, then: StreamAction) -> ProtocolOutput {
    ProtocolOutput { bytes: Bytes::from(out), then }
}
