//! A response of a model as it comes: server-sent events up to `[DONE]`. What ends before has been cut off, whatever it
//! looks like.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use model::TokenCounts;
use runtime::spawn_named;
use serde_json::Value;
use sse_stream::SseByteStream;

use super::calls::CallDelta;
use super::errors;
use crate::engine_event::Failure;

/// How long the rest of a response is read after its end, so that the connection can be used again.
const REST: Duration = Duration::from_secs(2);

/// What one event adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CompletionDelta {
    pub(super) text: String,
    pub(super) reasoning: String,
    /// The reasoning came as `reasoning_content`.
    pub(super) wants_reasoning_back: bool,
    pub(super) calls: Vec<CallDelta>,
    pub(super) finish_reason: Option<String>,
    pub(super) model: Option<String>,
    /// What the call has used so far, as far as this event says.
    pub(super) usage: TokenCounts,
    /// The endpoint ends the response with an error.
    pub(super) failure: Option<Failure>,
}

/// Why the bytes of a response end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseError {
    #[error(transparent)]
    Transport(#[from] reqwest::Error),
    #[error("the response is too large")]
    TooLarge,
}

impl From<ResponseError> for Failure {
    fn from(error: ResponseError) -> Self {
        match error {
            ResponseError::Transport(error) => errors::of_transport(&error),
            ResponseError::TooLarge => Self::permanent("answer_too_large", "the model's answer is too large"),
        }
    }
}

/// The deltas of one response.
pub(super) struct Events(EventSource);

/// A body as it arrives.
type Pieces = BoxStream<'static, Result<Bytes, ResponseError>>;

enum EventSource {
    Stream(Pin<Box<SseByteStream<Pieces>>>),
    Whole(Box<CompletionDelta>),
    Ended,
}

impl Events {
    pub(super) fn of_stream(bytes: Pieces) -> Self {
        // An event is complete with the empty line after it; some endpoints leave out the last one.
        let end = stream::iter([Ok(Bytes::from_static(b"\n\n"))]);
        Self(EventSource::Stream(Box::pin(SseByteStream::new(bytes.chain(end).boxed()))))
    }

    pub(super) fn of_whole(body: &[u8]) -> Result<Self, Failure> {
        let body = serde_json::from_slice(body).map_err(|_| unreadable())?;
        Ok(Self(EventSource::Whole(Box::new(delta(&body, "message")))))
    }

    /// The next delta; `None` after the last one of a response that came to its end.
    pub(super) async fn next(&mut self) -> Result<Option<CompletionDelta>, Failure> {
        match std::mem::replace(&mut self.0, EventSource::Ended) {
            EventSource::Ended => Ok(None),
            EventSource::Whole(delta) => Ok(Some(*delta)),
            EventSource::Stream(mut events) => loop {
                let data = match events.next().await {
                    Some(Ok(event)) => event.data.unwrap_or_default(),
                    Some(Err(error)) => return Err(failure(error)),
                    None => return Err(Failure::transient("upstream_cut", "the model's answer broke off")),
                };
                match data.trim() {
                    // A block that has no data, such as a lone `event:` or `retry:`.
                    "" => {}
                    "[DONE]" => {
                        spawn_named("rest of a response", async move {
                            let rest = async { while events.next().await.is_some() {} };
                            let _ = tokio::time::timeout(REST, rest).await;
                        });
                        return Ok(None);
                    }
                    data => {
                        let value: Value = serde_json::from_str(data).map_err(|_| unreadable())?;
                        self.0 = EventSource::Stream(events);
                        return Ok(Some(delta(&value, "delta")));
                    }
                }
            },
        }
    }
}

fn failure(error: sse_stream::Error) -> Failure {
    match error {
        sse_stream::Error::Body(source) => match source.downcast::<ResponseError>() {
            Ok(error) => (*error).into(),
            Err(_) => Failure::transient("upstream_cut", "the model's answer broke off"),
        },
        _ => unreadable(),
    }
}

/// Also what half an event looks like.
fn unreadable() -> Failure {
    Failure::transient("bad_stream", "the model's endpoint sent something that cannot be read")
}

/// Reads a chunk of a completion, or a whole one, whose choice has its content under `key`. Unknown and misshapen fields are
/// passed over.
fn delta(value: &Value, key: &str) -> CompletionDelta {
    let usage = usage(value);
    if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
        return CompletionDelta {
            usage,
            failure: Some(errors::of_object(error)),
            ..CompletionDelta::default()
        };
    }
    let choice = value.pointer("/choices/0").unwrap_or(&Value::Null);
    let said = choice.get(key).unwrap_or(&Value::Null);
    let text = |value: Option<&Value>| {
        value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let calls = said.get("tool_calls").and_then(Value::as_array);
    let reasoning_content = text(said.get("reasoning_content"));
    CompletionDelta {
        text: text(said.get("content")).or_else(|| text(said.get("refusal"))).unwrap_or_default(),
        wants_reasoning_back: reasoning_content.is_some(),
        reasoning: reasoning_content.or_else(|| text(said.get("reasoning"))).unwrap_or_default(),
        calls: calls.map(|calls| calls.iter().map(CallDelta::of).collect()).unwrap_or_default(),
        finish_reason: text(choice.get("finish_reason")),
        model: text(value.get("model")),
        usage,
        failure: None,
    }
}

/// Where endpoints put the counts: OpenAI at the top, others within the choice or under a name of their own.
const USAGE: [&str; 8] = [
    "/usage",
    "/choices/0/usage",
    "/choices/0/delta/usage",
    "/choices/0/message/usage",
    "/x_groq/usage",
    "/message/usage",
    "/response/usage",
    "/usageMetadata",
];

fn usage(value: &Value) -> TokenCounts {
    let found = USAGE.iter().filter_map(|place| value.pointer(place)).map(TokenCounts::of_usage);
    // Ollama has no object around its counts.
    found.fold(TokenCounts::of_usage(value), TokenCounts::max)
}

#[cfg(test)]
mod tests;
