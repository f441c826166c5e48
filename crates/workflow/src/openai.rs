//! Answers from any OpenAI-compatible endpoint: steps of a model call and the tools that it asks for, until it asks for
//! none.

mod calls;
mod endpoint;
mod errors;
mod events;
mod messages;
mod spans;

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use model::{ListedCall, ModelCall, TokenCounts};
use runtime::Clock;
use runtime::traces::{Span, TraceContext, with_current};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::engine_event::{EngineEnd, EngineEvent, EngineSender, Failure, ReceiverDropped};
use crate::metrics;
use crate::request::TurnAttempt;
use crate::tools::{ToolResult, Tools};
use calls::{Calls, ModelToolCall};
use endpoint::Endpoint;
pub use endpoint::EndpointError;
use events::CompletionDelta;

/// How to reach a model, and its tools.
#[derive(Debug, Clone)]
pub struct OpenAiConfig {
    /// What `/chat/completions` is appended to, for example `https://api.openai.com/v1`.
    pub base_url: String,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// The model, where the agent's settings name none.
    pub model: String,
    /// A model that sends nothing for so long has failed.
    pub silence: Duration,
    /// Model calls of one turn.
    pub max_steps: u32,
    /// What the model may call.
    pub tools: Tools,
}

impl OpenAiConfig {
    /// Whether the endpoint can be spoken to at all.
    ///
    /// # Errors
    /// The URL or the key cannot be used.
    pub fn check(&self) -> Result<(), EndpointError> {
        endpoint::check(&self.base_url, self.api_key.as_deref())
    }
}

/// The engine.
pub(crate) struct OpenAi {
    endpoint: Endpoint,
    model: String,
    max_steps: u32,
    tools: Tools,
}

impl OpenAi {
    pub(crate) fn new(config: OpenAiConfig, clock: Clock) -> Result<Self, EndpointError> {
        let endpoint = Endpoint::new(&config.base_url, config.api_key.as_deref(), config.silence, clock)?;
        Ok(Self { endpoint, model: config.model, max_steps: config.max_steps, tools: config.tools })
    }

    pub(crate) async fn answer(&self, turn: &TurnAttempt, sender: &EngineSender) -> EngineEnd {
        match self.steps(turn, sender).await {
            Ok(metadata) => EngineEnd::Complete(metadata),
            Err(failure) => EngineEnd::Failed(failure),
        }
    }

    async fn steps(&self, turn: &TurnAttempt, sender: &EngineSender) -> Result<Map<String, Value>, Failure> {
        let allowed = messages::allowed_tools(turn);
        let tools = self.tools.definitions(allowed.as_deref()).await;
        let mut history = messages::of_context(turn);
        let mut spent = Spent::default();
        let mut known_ids = messages::call_ids(turn);
        for step in 0..self.max_steps {
            let body = messages::request_body(turn, &self.model, &history, &tools);
            let model = messages::model(turn, &self.model);
            let mut span = spans::of_model_call(turn, model, self.endpoint.host());
            let trace = span.context();
            if let Some(trace) = &trace {
                sender.send(EngineEvent::CallStarted(trace.clone())).await?;
            }
            let id = format!("call-{step}");
            sender.send(EngineEvent::ModelCall(listed(&id, begun(model, &body)))).await?;
            let mut partial = PartialModelReply::new(Calls::new(step, &mut known_ids));
            let called = self.model_call(&body, trace.as_ref(), &mut partial, sender).await;
            let counted = partial.counted(model, called.as_ref().err());
            note_call(&mut span, &partial.reply, called.as_ref().err());
            span.end();
            metrics::model_call(called.as_ref().err().map(|failure| failure.class));
            let reply = called.and_then(|()| partial.finish());
            spent.add(counted.as_ref());
            // The only call of a whole answer is what the metadata of its last chunk say.
            let is_only = step == 0 && reply.as_ref().is_ok_and(|reply| reply.calls.is_empty());
            if let Some(call) = counted.filter(|_| !is_only) {
                sender.send(EngineEvent::ModelCall(listed(&id, call))).await?;
            }
            let reply = reply?;
            if reply.calls.is_empty() {
                return Ok(spent.metadata(&reply, messages::model(turn, &self.model)));
            }
            if step + 1 == self.max_steps {
                break;
            }
            history.push(messages::assistant(&reply.text, &reply.reasoning_content, &reply.calls));
            let results = self.results(turn, step, &reply.calls, allowed.as_deref(), sender).await?;
            history.extend(results);
        }
        let steps = self.max_steps;
        Err(Failure::permanent("too_many_steps", format!("the model still calls tools after {steps} steps")))
    }

    /// One model call; what it says is passed on as it comes.
    async fn model_call(
        &self,
        body: &Value,
        trace: Option<&TraceContext>,
        partial: &mut PartialModelReply<'_>,
        sender: &EngineSender,
    ) -> Result<(), Failure> {
        let mut events = self.endpoint.ask(body, trace).await?;
        while let Some(delta) = events.next().await? {
            partial.add(delta, sender).await?;
        }
        Ok(())
    }

    /// Calls the tools all at once, but those that share a state in their order, and says their results in the order of the calls;
    /// returns them for the model.
    async fn results(
        &self,
        turn: &TurnAttempt,
        step: u32,
        calls: &[ModelToolCall],
        allowed: Option<&[String]>,
        sender: &EngineSender,
    ) -> Result<Vec<Value>, Failure> {
        let mut answers = FuturesOrdered::new();
        let mut last_in_order: Option<oneshot::Receiver<()>> = None;
        for (index, call) in calls.iter().enumerate() {
            let key = idempotency_key(turn, step, index);
            let (has_ended, end) = oneshot::channel();
            let before =
                if self.tools.is_in_order(&call.name.tool) { last_in_order.replace(end) } else { None };
            let answer = async move {
                if let Some(before) = before {
                    // An error: it has ended.
                    let _ = before.await;
                }
                let _has_ended: oneshot::Sender<()> = has_ended;
                let mut span = spans::of_tool_call(turn, &call.name);
                let called = self.tools.call(&call.name.tool, &call.arguments, &key, allowed);
                let result = with_current(span.context(), called).await;
                if result.is_error {
                    span.fail("tool_error");
                }
                (call, result)
            };
            answers.push_back(answer.boxed());
        }
        let mut results = Vec::with_capacity(calls.len());
        while let Some((call, ToolResult { text, is_error })) = answers.next().await {
            results.push(messages::tool(&call.name.id, &text));
            sender.send(EngineEvent::Result { call: call.name.clone(), text, is_error }).await?;
        }
        Ok(results)
    }
}

/// A call that begins: what it reads is estimated from the request, and counts until the provider's counts come.
fn begun(model: &str, body: &Value) -> ModelCall {
    let bytes = |key: &str| body.get(key).map_or(0, |part| part.to_string().len());
    ModelCall {
        model: ModelCall::name(model),
        input_tokens: ModelCall::estimated_tokens(bytes("messages") + bytes("tools")),
        is_estimated: true,
        ..ModelCall::default()
    }
}

fn listed(id: &str, call: ModelCall) -> ListedCall {
    ListedCall { id: Some(id.into()), call }
}

/// Counts and names, nothing of what was said.
fn note_call(span: &mut Span, reply: &ModelReply, failure: Option<&Failure>) {
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
    if let Some(reason) = &reply.finish_reason {
        span.set_list("gen_ai.response.finish_reasons", [reason.clone()]);
    }
}

fn count(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// The same for the same call of the same turn in every run and attempt, so that a tool that has recorded what it did does
/// not do it twice when a turn is tried again.
fn idempotency_key(turn: &TurnAttempt, step: u32, index: usize) -> String {
    format!("{}:{step}.{index}", turn.id)
}

/// What one model call has said.
#[derive(Debug, Default)]
struct ModelReply {
    text: String,
    reasoning_content: String,
    calls: Vec<ModelToolCall>,
    finish_reason: Option<String>,
    model: Option<String>,
    usage: TokenCounts,
}

struct PartialModelReply<'a> {
    reply: ModelReply,
    calls: Calls<'a>,
    /// The model has begun to answer.
    has_begun: bool,
}

impl<'a> PartialModelReply<'a> {
    fn new(calls: Calls<'a>) -> Self {
        Self { reply: ModelReply::default(), calls, has_begun: false }
    }

    /// What the endpoint has counted of a call that has ended; `None`: nothing is known but how it began. A request that the endpoint refused has
    /// used nothing.
    fn counted(&self, asked: &str, failure: Option<&Failure>) -> Option<ModelCall> {
        let model = ModelCall::name(self.reply.model.as_deref().unwrap_or(asked));
        if self.reply.usage.is_known() {
            return Some(ModelCall { model, ..self.reply.usage.into() });
        }
        let is_in_doubt = |code: &str| self.has_begun || matches!(code, "upstream_timeout" | "upstream_cut");
        let is_refused = failure.is_some_and(|failure| !is_in_doubt(&failure.code));
        is_refused.then(|| ModelCall { model, ..ModelCall::default() })
    }

    async fn add(&mut self, delta: CompletionDelta, sender: &EngineSender) -> Result<(), Failure> {
        self.reply.usage = self.reply.usage.max(delta.usage);
        if let Some(failure) = delta.failure {
            return Err(failure);
        }
        self.has_begun = true;
        if !delta.reasoning.is_empty() {
            if delta.wants_reasoning_back {
                self.reply.reasoning_content.push_str(&delta.reasoning);
            }
            sender.send(EngineEvent::Reasoning(delta.reasoning)).await?;
        }
        if !delta.text.is_empty() {
            self.reply.text.push_str(&delta.text);
            sender.send(EngineEvent::Text(delta.text)).await?;
        }
        for call in delta.calls {
            if let Some((name, arguments)) = self.calls.add(call) {
                sender.send(EngineEvent::Call(name, arguments)).await?;
            }
        }
        let reply = &mut self.reply;
        reply.finish_reason = delta.finish_reason.or(reply.finish_reason.take());
        reply.model = delta.model.or(reply.model.take());
        Ok(())
    }

    fn finish(self) -> Result<ModelReply, Failure> {
        Ok(ModelReply { calls: self.calls.finish()?, ..self.reply })
    }
}

/// What the whole turn has cost.
#[derive(Debug, Default)]
struct Spent {
    /// The sum of the calls that the endpoint has counted.
    sum: Option<ModelCall>,
    steps: u32,
}

impl Spent {
    fn add(&mut self, counted: Option<&ModelCall>) {
        self.steps += 1;
        let Some(call) = counted else { return };
        metrics::model_tokens(call.input_tokens, call.output_tokens);
        match &mut self.sum {
            Some(sum) => sum.add(call),
            None => self.sum = Some(call.clone()),
        }
    }

    /// The metadata of the final chunk. An endpoint that counts nothing leaves the counts out: none is not zero.
    fn metadata(&self, reply: &ModelReply, asked: &str) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("model".to_owned(), json!(reply.model.as_deref().unwrap_or(asked)));
        map.insert("finish_reason".to_owned(), json!(reply.finish_reason.as_deref().unwrap_or("stop")));
        map.insert("steps".to_owned(), json!(self.steps));
        if let Some(sum) = &self.sum {
            map.insert("tokens_used".to_owned(), json!(sum.input_tokens.saturating_add(sum.output_tokens)));
            map.insert("usage".to_owned(), usage_of(sum));
        }
        map
    }
}

/// In the words of OpenAI; what the endpoint does not say is left out.
fn usage_of(sum: &ModelCall) -> Value {
    let total = sum.input_tokens.saturating_add(sum.output_tokens);
    let mut value = json!({
        "prompt_tokens": sum.input_tokens, "completion_tokens": sum.output_tokens, "total_tokens": total,
    });
    if let Some(cached) = sum.cached_tokens {
        value["prompt_tokens_details"] = json!({ "cached_tokens": cached });
    }
    if let Some(reasoning) = sum.reasoning_tokens {
        value["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
    }
    value
}

impl From<ReceiverDropped> for Failure {
    fn from(_: ReceiverDropped) -> Self {
        Self::transient("unheard", "the receiver of the answer is gone")
    }
}
