//! One model call: sends the request and reads the response as it arrives.

use std::collections::HashSet;
use std::time::Duration;

use reqwest::Response;
use runtime::spawn_named;
use runtime::traces::TraceContext;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::endpoint::{Endpoint, LONGEST_RESPONSE};
use super::retries::Retries;
use crate::endpoint_errors;
use crate::engine_event::{EngineEvent, EngineSender, Failure, ReceiverDropped};
use crate::metrics;
use crate::reader::{ModelReply, Part, Reader};
use crate::request::TurnAttempt;

/// How long the rest of a response is read after its end, so that the connection can be reused.
const REST: Duration = Duration::from_secs(2);
/// Total wait for counts and `[DONE]` after the model has finished. Some endpoints leave the
/// connection open.
const GRACE: Duration = Duration::from_secs(15);

/// One step of a turn.
pub(super) struct Step<'a> {
    /// Counted from 0.
    pub(super) number: u32,
    pub(super) turn: &'a TurnAttempt,
    /// The model that is asked.
    pub(super) model: &'a str,
    pub(super) body: &'a Value,
    /// Estimated number of input tokens.
    pub(super) tokens: u64,
    /// The names of the tools offered to the model.
    pub(super) tools: &'a [String],
}

/// Calls the model, with retries until an answer begins, and sends the parts as they arrive.
/// Returns the reply and whether it is complete.
pub(super) async fn perform(
    endpoint: &Endpoint,
    step: &Step<'_>,
    trace: Option<&TraceContext>,
    known_ids: &mut HashSet<String>,
    sender: &EngineSender,
) -> Result<(ModelReply, Result<(), Failure>), ReceiverDropped> {
    let mut retries = Retries::new(endpoint.retry);
    loop {
        let (reply, outcome) = attempt(endpoint, step, trace, known_ids, sender).await?;
        let failure = match outcome {
            Ok(()) => return Ok((reply, Ok(()))),
            Err(Attempted::Ended(failure)) => return Ok((reply, Err(failure))),
            Err(Attempted::NotBegun(failure)) => failure,
        };
        let Some(delay) = retries.next(&failure, rand::random()) else { return Ok((reply, Err(failure))) };
        metrics::model_retry();
        tracing::debug!(%failure, delay_ms = delay.as_millis(), "the model is asked again");
        tokio::time::sleep(delay).await;
    }
}

/// Why a try failed.
enum Attempted {
    /// The status or the connection failed before the model produced output.
    NotBegun(Failure),
    Ended(Failure),
}

async fn attempt(
    endpoint: &Endpoint,
    step: &Step<'_>,
    trace: Option<&TraceContext>,
    known_ids: &mut HashSet<String>,
    sender: &EngineSender,
) -> Result<(ModelReply, Result<(), Attempted>), ReceiverDropped> {
    let admitted = endpoint.limiter.admit(step.tokens).await;
    let response = match endpoint.ask(step.body, trace).await {
        Ok(response) => response,
        Err(failure) => {
            // After a timeout or a cut, the endpoint may have executed the call.
            if failure.code != "upstream_timeout" && failure.code != "upstream_cut" {
                admitted.refused();
            }
            return Ok((ModelReply::default(), Err(Attempted::NotBegun(failure))));
        }
    };
    let mut reader = Reader::new(endpoint.interface, step.number, known_ids, step.tools, step.number > 0);
    let cut = read(response, &mut reader, sender).await?;
    // A response that ends properly without an answer counts as processed by the endpoint.
    let was_cut = cut.is_some();
    let ended = reader.end(cut);
    admitted.used(&ended.reply.usage);
    say(ended.parts, sender).await?;
    let has_begun = ended.reply.has_begun || ended.reply.usage.is_known();
    let outcome = ended.outcome.map_err(|failure| match failure.code.as_str() {
        "upstream_cut" if was_cut && !has_begun => Attempted::NotBegun(failure),
        _ => Attempted::Ended(failure),
    });
    Ok((ended.reply, outcome))
}

/// Reads a response to its end. Returns why its bytes ended early, if they did.
async fn read(
    mut response: Response,
    reader: &mut Reader<'_>,
    sender: &EngineSender,
) -> Result<Option<Failure>, ReceiverDropped> {
    let mut length = 0;
    // The deadline is set when the answer ends. Further output extends it; keep-alives of the
    // endpoint do not.
    let mut deadline = None;
    loop {
        let next = if reader.is_ending() {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
            let Ok(next) = timeout_at(deadline, response.chunk()).await else { return Ok(None) };
            next
        } else {
            response.chunk().await
        };
        let bytes = match next {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(endpoint_errors::of_transport(&error))),
        };
        length += bytes.len();
        if length > LONGEST_RESPONSE {
            let text = "the model's answer is too large";
            return Ok(Some(Failure::permanent("answer_too_large", text)));
        }
        let parts = reader.push(&bytes);
        if !parts.is_empty() {
            deadline = None;
        }
        say(parts, sender).await?;
        if reader.is_done() {
            spawn_named("rest of a response", async move {
                let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
                let _ = tokio::time::timeout(REST, rest).await;
            });
            return Ok(None);
        }
    }
}

async fn say(parts: Vec<Part>, sender: &EngineSender) -> Result<(), ReceiverDropped> {
    for part in parts {
        let event = match part {
            Part::Text(text) => EngineEvent::Text(text),
            Part::Reasoning(text) => EngineEvent::Reasoning(text),
            Part::Call(name, arguments) => EngineEvent::Call(name, arguments),
        };
        sender.send(event).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use crate::interface::Interface;

    /// Reads a response of these events, 10 s apart. Returns whether it ends in time, the time
    /// taken and the text.
    async fn read_slowly(events: &'static [&'static str]) -> (bool, Duration, String) {
        let chunks = stream::unfold(0_usize, move |number| async move {
            if number > 0 {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            // The last event repeats forever.
            let event = events[number.min(events.len() - 1)];
            Some((Ok::<_, std::io::Error>(event), number + 1))
        });
        let body = reqwest::Body::wrap_stream(chunks);
        let response = Response::from(axum::http::Response::new(body));
        let mut known_ids = HashSet::new();
        let mut reader = Reader::new(Interface::default(), 0, &mut known_ids, &[], false);
        let (sender, _receiver) = EngineSender::channel(std::sync::Arc::default());
        let begun = Instant::now();
        let ended = tokio::time::timeout(GRACE * 8, read(response, &mut reader, &sender)).await;
        let time = begun.elapsed();
        let ended_reader = reader.end(None);
        assert_eq!(ended_reader.outcome, Ok(()));
        (matches!(ended, Ok(Ok(None))), time, ended_reader.reply.text)
    }

    const OK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\n";

    #[tokio::test(start_paused = true)]
    async fn an_ended_answer_is_not_prolonged_by_signs_of_life() {
        assert_eq!(read_slowly(&[OK, ": ping\n\n"]).await, (true, GRACE, "ok".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_says_more_after_its_end_is_read_on() {
        let whole = read_slowly(&[OK, OK, OK, ": ping\n\n"]).await;
        assert_eq!(whole, (true, Duration::from_secs(20) + GRACE, "okokok".to_owned()));
    }
}
