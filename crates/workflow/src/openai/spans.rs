//! The spans of an answer, by the conventions for generative models: names and numbers, no content.

use runtime::traces::{Span, SpanKind, SpanStart};

use crate::engine_event::{CallName, Failure};
use crate::interface::Interface;
use crate::reader::ModelReply;
use crate::request::TurnAttempt;

/// The span of a model call.
pub(super) fn of_model_call(
    turn: &TurnAttempt,
    model: &str,
    interface: Interface,
    (host, port): (String, Option<u16>),
) -> Span {
    let mut span = below(turn, "chat", model, SpanKind::Client);
    if span.is_recorded() {
        // This names the protocol: the provider behind the endpoint is not known.
        span.set("gen_ai.provider.name", interface.provider());
        span.set("gen_ai.request.model", model.to_owned());
        span.set("server.address", host);
        if let Some(port) = port {
            span.set("server.port", i64::from(port));
        }
    }
    span
}

/// The span of a tool call.
pub(super) fn of_tool_call(turn: &TurnAttempt, call: &CallName) -> Span {
    let mut span = below(turn, "execute_tool", &call.tool, SpanKind::Client);
    if span.is_recorded() {
        span.set("gen_ai.tool.name", call.tool.to_string());
        span.set("gen_ai.tool.call.id", call.id.to_string());
    }
    span
}

fn below(turn: &TurnAttempt, operation: &'static str, of: &str, kind: SpanKind) -> Span {
    let Some(parent) = &turn.trace else { return Span::default() };
    let mut span = Span::start(format!("{operation} {of}"), kind, Some(parent), SpanStart::Now);
    if span.is_recorded() {
        span.set("gen_ai.operation.name", operation);
        span.set("gen_ai.conversation.id", turn.thread.as_str().to_owned());
    }
    span
}

/// Records counts and names of a reply, no content.
pub(super) fn note_call(span: &mut Span, reply: &ModelReply, failure: Option<&Failure>) {
    if !span.is_recorded() {
        return;
    }
    if let Some(failure) = failure {
        span.fail(failure.code.clone());
    }
    if let Some(model) = &reply.model {
        span.set("gen_ai.response.model", model.clone());
    }
    if reply.usage.is_known() {
        span.set("gen_ai.usage.input_tokens", count(reply.usage.input()));
        span.set("gen_ai.usage.output_tokens", count(reply.usage.output()));
    }
    if let Some(finish) = reply.finish {
        span.set_list("gen_ai.response.finish_reasons", [finish.name().to_owned()]);
    }
}

fn count(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}
