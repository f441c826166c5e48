//! Spans of a session's turns, from the input to the commit. They are kept only in memory.
//!
//! The machine does not know traces: they are passed alongside their entries, and the machine's
//! actions show the progress of a turn. A new owner reads entries again and finds their traces,
//! except those of saved inputs that the checkpoint has passed.

use std::time::Duration;

use model::{MessageId, MessageOutcome, TaskKind, TurnId};
use partition::{MessageEnded, Start, TurnCause};
use runtime::traces::{self, Span, SpanKind, SpanStart, TraceContext};

use super::reader_task::{TracedEntry, TracedSubject};
use super::remembered::Remembered;

pub(super) struct TurnTraces {
    inputs: Remembered<TracedSubject, InputTrace>,
    turns: Remembered<TurnId, TurnSpans>,
    /// Time since the commit that has just been applied was submitted.
    committed: Option<Duration>,
    /// Abandoned runs; most of them end with the actions that follow.
    abandoned: Vec<(TurnId, u32)>,
}

/// Trace of an input that has arrived.
#[derive(Clone)]
struct InputTrace {
    trace: TraceContext,
    stored_at_ns: i64,
}

/// Spans of an active run.
struct TurnSpans {
    run: u32,
    input: TracedSubject,
    turn: Span,
    /// Span of the request, until it has been sent to the workflow.
    request: Option<Span>,
    /// Trace of the first frame, and when it was stored.
    first_frame: Option<InputTrace>,
    has_first_chunk: bool,
}

impl TurnTraces {
    /// `None` when this process sends no traces.
    pub(super) fn new() -> Option<Self> {
        traces::is_on().then(|| Self {
            inputs: Remembered::default(),
            turns: Remembered::default(),
            committed: None,
            abandoned: Vec::new(),
        })
    }

    /// Notes entries that are about to be handled.
    pub(super) fn read(&mut self, entries: Vec<TracedEntry>) {
        for TracedEntry { subject, trace, stored_at_ns } in entries {
            let input = InputTrace { trace, stored_at_ns };
            match &subject {
                TracedSubject::Answer(message) => {
                    if let Some(turn) = self.of_answer(message).filter(|turn| turn.first_frame.is_none()) {
                        turn.first_frame = Some(input);
                    }
                }
                TracedSubject::Turn(_) | TracedSubject::Task(_) => self.inputs.set(subject, input),
            }
        }
    }

    /// Notes a turn that starts or is retried. Returns the trace context for its request.
    pub(super) fn begin(&mut self, start: &Start) -> Option<TraceContext> {
        let is_known = self.turns.get(&start.turn).is_some_and(|known| known.run == start.run);
        if !is_known {
            self.turns.set(start.turn.clone(), self.spans(start));
        }
        let spans = self.turns.get(&start.turn)?;
        if start.is_adopted {
            return None;
        }
        let request =
            Span::start("request", SpanKind::Producer, spans.turn.context().as_ref(), SpanStart::Now);
        spans.request.insert(request).context()
    }

    fn spans(&self, start: &Start) -> TurnSpans {
        let subject = input_of(start);
        let input = self.inputs.of(&subject);
        // A later run starts now, not when its input was stored.
        let at = input
            .filter(|_| start.run == 0)
            .map_or(SpanStart::Now, |input| SpanStart::AtNs(input.stored_at_ns));
        let mut turn = Span::start("turn", SpanKind::Consumer, input.map(|input| &input.trace), at);
        if turn.is_recorded() {
            turn.set("gen_ai.conversation.id", start.thread.as_str().to_owned());
            turn.set("gen_ai.agent.id", start.agent.as_str().to_owned());
            turn.set("antiphon.turn.id", start.turn.as_str().to_owned());
            turn.set("antiphon.turn.run", i64::from(start.run));
            turn.set("antiphon.turn.kind", start.cause.task_kind().map_or("message", TaskKind::name));
        }
        TurnSpans {
            run: start.run,
            input: subject,
            turn,
            request: None,
            first_frame: None,
            has_first_chunk: false,
        }
    }

    /// Trace id of an active turn.
    pub(super) fn trace_id(&mut self, turn: &TurnId) -> Option<String> {
        self.turns.get(turn)?.turn.context().map(|trace| trace.trace_id())
    }

    /// Notes that the request was sent to the workflow, or that the turn did not start.
    pub(super) fn requested(&mut self, turn: &TurnId, run: u32) {
        if let Some(spans) = self.turns.get(turn).filter(|spans| spans.run == run) {
            spans.request = None;
        }
    }

    /// Notes that the first chunk of an answer was sent to the gateways.
    pub(super) fn first_chunk(&mut self, message: &MessageId) {
        let Some(spans) = self.of_answer(message).filter(|spans| !spans.has_first_chunk) else { return };
        spans.has_first_chunk = true;
        let turn = spans.turn.context();
        let (parent, at) = match &spans.first_frame {
            Some(frame) => (Some(&frame.trace), SpanStart::AtNs(frame.stored_at_ns)),
            None => (turn.as_ref(), SpanStart::Now),
        };
        Span::start("first chunk", SpanKind::Consumer, parent, at).end();
    }

    /// Notes an applied commit; `ago`: time since it was submitted. The turns that end now were
    /// part of it.
    pub(super) fn committed(&mut self, ago: Duration) {
        self.committed = Some(ago);
    }

    /// Notes a failed run; it ends with the next commit.
    pub(super) fn failed(&mut self, turn: &TurnId, run: u32, code: &str) {
        if let Some(spans) = self.turns.get(turn).filter(|spans| spans.run == run) {
            spans.turn.fail(code);
        }
    }

    /// Notes the committed end of an answer.
    pub(super) fn ended(&mut self, ending: &MessageEnded) {
        let Some((turn, run)) = TurnId::of_answer(&ending.key.message) else { return };
        if self.turns.get(&turn).is_none_or(|spans| spans.run != run) {
            return;
        }
        let Some(mut spans) = self.turns.take(&turn) else { return };
        let at = self.committed.map_or(SpanStart::Now, SpanStart::Ago);
        Span::start("commit", SpanKind::Internal, spans.turn.context().as_ref(), at).end();
        spans.turn.set("antiphon.turn.chunks", i64::from(ending.chunks));
        match &ending.outcome {
            MessageOutcome::Complete => spans.turn.set("antiphon.turn.outcome", "complete"),
            MessageOutcome::Stopped => spans.turn.set("antiphon.turn.outcome", "stopped"),
            MessageOutcome::Failed(failure) => {
                spans.turn.set("antiphon.turn.outcome", "failed");
                spans.turn.fail(failure.code());
            }
        }
        // A failed task is tried again.
        if turn.is_foreground() || ending.outcome == MessageOutcome::Complete {
            self.inputs.take(&spans.input);
        }
    }

    /// Notes an abandoned run.
    pub(super) fn abandoned(&mut self, turn: &TurnId, run: u32) {
        self.abandoned.push((turn.clone(), run));
    }

    /// Drops abandoned runs that have not ended; called after all actions of one input.
    pub(super) fn forget_abandoned(&mut self) {
        for (turn, run) in std::mem::take(&mut self.abandoned) {
            if self.turns.get(&turn).is_some_and(|spans| spans.run == run)
                && let Some(mut spans) = self.turns.take(&turn)
            {
                spans.turn.set("antiphon.turn.outcome", "abandoned");
            }
        }
    }

    fn of_answer(&mut self, message: &MessageId) -> Option<&mut TurnSpans> {
        let (turn, run) = TurnId::of_answer(message)?;
        self.turns.get(&turn).filter(|spans| spans.run == run)
    }
}

fn input_of(start: &Start) -> TracedSubject {
    match &start.cause {
        TurnCause::Task { id, .. } => TracedSubject::Task(id.clone()),
        TurnCause::Input(_) => TracedSubject::Turn(start.turn.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_in_a_process_without_traces() {
        assert!(TurnTraces::new().is_none());
    }
}
