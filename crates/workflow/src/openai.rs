//! Answers turns through the endpoint of a model (OpenAI-compatible or another interface). A turn
//! alternates model calls and the tools they ask for, until the model asks for none.

mod config;
mod endpoint;
mod limits;
mod messages;
mod model_call;
mod retries;
mod spans;
mod spent;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use model::{ListedCall, ModelCall, PriceTable, Timestamp, TurnBudget};
use runtime::Clock;
use runtime::traces::with_current;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::engine_event::{EngineEnd, EngineEvent, EngineSender, Failure, ReceiverDropped};
use crate::metrics;
use crate::reader::{ModelReply, ModelToolCall};
use crate::request::TurnAttempt;
use crate::tool_calls::{ToolCalls, WantedCall, call_ids};
use crate::tools::{ToolResult, Tools};
pub use config::{EndpointError, OpenAiConfig};
use endpoint::Endpoint;
pub use limits::EndpointLimits;
use model_call::Step;
use spent::Spent;

/// The engine that answers with a model.
pub(crate) struct OpenAi {
    endpoint: Endpoint,
    model: String,
    max_steps: u32,
    tools: Tools,
    tool_calls: ToolCalls,
    prices: Option<Arc<PriceTable>>,
    clock: Clock,
}

impl OpenAi {
    pub(crate) fn new(
        config: OpenAiConfig,
        tool_calls: ToolCalls,
        clock: Clock,
    ) -> Result<Self, EndpointError> {
        let endpoint = Endpoint::new(&config, clock)?;
        Ok(Self {
            endpoint,
            model: config.model,
            max_steps: config.max_steps,
            tools: config.tools,
            tool_calls,
            prices: config.prices,
            clock,
        })
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
        let tool_names = messages::names_of(&tools);
        let model = messages::model(turn, &self.model);
        let mut history = messages::of_context(turn);
        let mut spent = Spent::new(self.prices.clone(), model);
        let mut known_ids = messages::call_ids(turn);
        // Whether the model already knows that its answer was cut off.
        let mut is_cut_known = false;
        let budget = turn.settings.get(TurnBudget::KEY).and_then(|written| {
            let read = TurnBudget::parse(written);
            // The HTTP API checks the setting, so this value was written in another way.
            let unread = |error: &_| tracing::warn!(agent = turn.agent, %error, "turn_budget cannot be read, and bounds nothing");
            read.inspect_err(unread).ok()
        });
        for number in 0..self.max_steps {
            if let Some(why) = budget.and_then(|budget| budget.refusal(spent.used())) {
                return Err(Failure::permanent(TurnBudget::CODE, why));
            }
            let body = messages::request_body(turn, &self.model, &history, &tools);
            let tokens = begun(model, &body).input_tokens;
            let step = Step { number, turn, model, body: &body, tokens, tools: &tool_names };
            let (reply, ended) = self.call_model(&step, &mut known_ids, &mut spent, sender).await?;
            ended?;
            if reply.calls.is_empty() {
                return Ok(spent.metadata(&reply, model));
            }
            let is_last = number + 1 == self.max_steps;
            if is_last && !reply.is_cut() {
                break;
            }
            history.push(messages::assistant(&reply));
            if reply.is_cut() {
                history.extend(refuse(&reply, sender).await?);
                // A further answer would be cut off in the same way.
                if std::mem::replace(&mut is_cut_known, true) || is_last {
                    return Ok(spent.metadata(&reply, model));
                }
            } else {
                history.extend(self.results(turn, number, &reply.calls, allowed.as_deref(), sender).await?);
            }
        }
        let steps = self.max_steps;
        Err(Failure::permanent("too_many_steps", format!("the model still calls tools after {steps} steps")))
    }

    /// Makes one model call, with its span and its usage report.
    async fn call_model(
        &self,
        step: &Step<'_>,
        known_ids: &mut std::collections::HashSet<String>,
        spent: &mut Spent,
        sender: &EngineSender,
    ) -> Result<(ModelReply, Result<(), Failure>), ReceiverDropped> {
        let mut span =
            spans::of_model_call(step.turn, step.model, self.endpoint.interface, self.endpoint.server());
        let trace = span.context();
        if let Some(trace) = &trace {
            sender.send(EngineEvent::CallStarted(trace.clone())).await?;
        }
        let id = format!("call-{}", step.number);
        sender.send(EngineEvent::ModelCall(listed(&id, begun(step.model, step.body)))).await?;
        let (reply, ended) =
            model_call::perform(&self.endpoint, step, trace.as_ref(), known_ids, sender).await?;
        let failure = ended.as_ref().err();
        metrics::deviations(reply.deviations);
        let counted = counted(&reply, step.model, failure);
        spans::note_call(&mut span, &reply, failure);
        span.end();
        metrics::model_call(failure.map(|failure| failure.class));
        let said = reply.text.len() + reply.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        let estimated =
            ModelCall { output_tokens: ModelCall::estimated_tokens(said), ..begun(step.model, step.body) };
        spent.add(counted.as_ref(), &estimated, step.model, Timestamp(self.clock.now_ms()));
        // When an answer has one call only, the metadata of its last chunk report that call.
        let is_only = step.number == 0 && ended.is_ok() && reply.calls.is_empty();
        if let Some(call) = counted.filter(|_| !is_only) {
            sender.send(EngineEvent::ModelCall(listed(&id, call))).await?;
        }
        Ok((reply, ended))
    }

    /// Calls all tools concurrently, except those that share state: these run in the order of the
    /// calls. Sends the results in the order of the calls, and returns them for the model.
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
        let made = calls.iter().filter(|call| call.problem.is_none());
        let mut ids =
            call_ids(step, made.map(|call| (&*call.name.tool, call.arguments.as_str()))).into_iter();
        for call in calls {
            let id = if call.problem.is_none() { ids.next().unwrap_or_default() } else { String::new() };
            let (has_ended, end) = oneshot::channel();
            let before =
                if self.tools.is_in_order(&call.name.tool) { last_in_order.replace(end) } else { None };
            let answer = async move {
                if let Some(before) = before {
                    // An error means that the previous call has ended.
                    let _ = before.await;
                }
                let _has_ended: oneshot::Sender<()> = has_ended;
                if let Some(problem) = &call.problem {
                    let result = ToolResult::error(format!("the arguments are not a JSON object: {problem}"));
                    return Ok((call, result));
                }
                let mut span = spans::of_tool_call(turn, &call.name);
                let tool = &*call.name.tool;
                let wanted = WantedCall {
                    turn,
                    id: &id,
                    tool,
                    arguments: &call.arguments,
                    is_idempotent: self.tools.is_idempotent(tool),
                };
                let key = idempotency_key(turn, &id);
                let perform = || self.tools.call(tool, &call.arguments, (turn, &key), allowed);
                let run = self.tool_calls.run(wanted, sender, perform);
                let result = with_current(span.context(), run).await?;
                if result.is_error {
                    span.fail("tool_error");
                }
                Ok::<_, Failure>((call, result))
            };
            answers.push_back(answer.boxed());
        }
        let mut results = Vec::with_capacity(calls.len());
        while let Some(answer) = answers.next().await {
            let (call, ToolResult { text, is_error }) = answer?;
            results.push(messages::tool(&call.name.id, &text));
            sender.send(EngineEvent::Result { call: call.name.clone(), text, is_error }).await?;
        }
        Ok(results)
    }
}

/// Results for the calls of an answer that was cut off. No tool is called, because the rest of the
/// answer is unknown.
async fn refuse(reply: &ModelReply, sender: &EngineSender) -> Result<Vec<Value>, ReceiverDropped> {
    let mut results = Vec::with_capacity(reply.calls.len());
    for call in &reply.calls {
        let reason = reply.finish_reason();
        let refused = format!("not called: the answer with this call was cut off ({reason})");
        let ToolResult { text, is_error } = ToolResult::error(refused);
        results.push(messages::tool(&call.name.id, &text));
        sender.send(EngineEvent::Result { call: call.name.clone(), text, is_error }).await?;
    }
    Ok(results)
}

/// The report of a call that begins. The input is estimated from the request and counts until the
/// provider reports its counts.
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

/// The endpoint's counts of a call that has ended. `None`: only the estimate from its start is
/// known. A request that the endpoint refused has used nothing.
fn counted(reply: &ModelReply, asked: &str, failure: Option<&Failure>) -> Option<ModelCall> {
    let model = ModelCall::name(reply.model.as_deref().unwrap_or(asked));
    if reply.usage.is_known() {
        return Some(ModelCall { model, ..reply.usage.into() });
    }
    let is_in_doubt = |code: &str| reply.has_begun || matches!(code, "upstream_timeout" | "upstream_cut");
    let is_refused = failure.is_some_and(|failure| !is_in_doubt(&failure.code));
    is_refused.then(|| ModelCall { model, ..ModelCall::default() })
}

/// Key of one tool call, the same in every run and attempt of its turn. A tool that has recorded
/// the call under this key does not repeat it. `call` is an id from [`call_ids`].
fn idempotency_key(turn: &TurnAttempt, call: &str) -> String {
    format!("{}:{call}", turn.id)
}

impl From<ReceiverDropped> for Failure {
    fn from(_: ReceiverDropped) -> Self {
        Self::transient("unheard", "the receiver of the answer is gone")
    }
}
