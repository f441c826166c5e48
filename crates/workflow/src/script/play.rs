//! Plays a scenario as an answer.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::scenario::{Scenario, TurnVariables};
use super::step::{ErrorStep, ScriptStep, TextStep, ToolCallStep};
use super::{Script, pieces};
use crate::engine_event::{
    CallName, EngineEnd, EngineEvent, EngineSender, Failure, InjectedFault, ReceiverDropped,
};
use crate::request::TurnAttempt;

impl Script {
    /// Plays the script for this turn. The same turn gets the same chunks each time, except for the
    /// variables of run and attempt.
    pub(crate) async fn play(&self, turn: &TurnAttempt, events: &EngineSender) -> EngineEnd {
        let variables = TurnVariables {
            input: turn.input().to_owned(),
            agent: turn.agent.clone(),
            task: turn.task_kind.clone(),
            turn: turn.id.to_string(),
            run: turn.run,
            attempt: turn.attempt,
            result: String::new(),
        };
        let Some(scenario) = self.scenario(&variables) else {
            return EngineEnd::Failed(Failure::permanent(
                "no_scenario",
                "the script has no scenario for this input",
            ));
        };
        let playing = Playing { variables, events, calls: 0, chars: 0 };
        // The receiver is gone, so the end cannot be sent either.
        playing.play(scenario).await.unwrap_or(EngineEnd::Cut)
    }
}

struct Playing<'a> {
    variables: TurnVariables,
    events: &'a EngineSender,
    calls: usize,
    chars: usize,
}

impl Playing<'_> {
    async fn play(mut self, scenario: &Scenario) -> Result<EngineEnd, ReceiverDropped> {
        for step in &scenario.steps {
            if let Some(ended) = self.step(step).await? {
                return Ok(ended);
            }
        }
        Ok(EngineEnd::Complete(self.metadata(scenario)))
    }

    async fn step(&mut self, step: &ScriptStep) -> Result<Option<EngineEnd>, ReceiverDropped> {
        match step {
            ScriptStep::DelayMs(ms) => sleep(Duration::from_millis(*ms)).await,
            ScriptStep::SilenceMs(ms) => {
                self.events.send(EngineEvent::InjectedFault(InjectedFault::Mute(true))).await?;
                sleep(Duration::from_millis(*ms)).await;
                self.events.send(EngineEvent::InjectedFault(InjectedFault::Mute(false))).await?;
            }
            ScriptStep::Text(text) => self.text(text, EngineEvent::Text).await?,
            ScriptStep::Reasoning(text) => self.text(text, EngineEvent::Reasoning).await?,
            ScriptStep::Tools(calls) => self.tools(calls).await?,
            ScriptStep::Duplicate(times) => {
                for _ in 0..*times {
                    self.events.send(EngineEvent::InjectedFault(InjectedFault::Repeat)).await?;
                }
            }
            ScriptStep::Reorder(frames) => {
                self.events.send(EngineEvent::InjectedFault(InjectedFault::Reverse(*frames))).await?
            }
            ScriptStep::FailFirst(first) if self.variables.run < first.runs => {
                return Ok(Some(EngineEnd::Failed(failure(&first.error, &self.variables))));
            }
            ScriptStep::FailFirst(_) => {}
            ScriptStep::Error(error) => return Ok(Some(EngineEnd::Failed(failure(error, &self.variables)))),
            ScriptStep::Hang(_) => std::future::pending().await,
            ScriptStep::Cut(_) => return Ok(Some(EngineEnd::Cut)),
            ScriptStep::HandBack(_) => return Ok(Some(EngineEnd::HandBack)),
        }
        Ok(None)
    }

    async fn text(
        &mut self,
        step: &TextStep,
        part: fn(String) -> EngineEvent,
    ) -> Result<(), ReceiverDropped> {
        for (number, piece) in pieces(&self.variables.fill(&step.content), step.chars).into_iter().enumerate()
        {
            if number > 0 && step.every_ms > 0 {
                sleep(Duration::from_millis(step.every_ms)).await;
            }
            self.chars += piece.chars().count();
            self.events.send(part(piece)).await?;
            self.events.send(EngineEvent::Break).await?;
        }
        Ok(())
    }

    async fn tools(&mut self, calls: &[ToolCallStep]) -> Result<(), ReceiverDropped> {
        let name = |number: usize, call: &ToolCallStep| CallName {
            id: format!("call_{number}").into(),
            tool: call.name.as_str().into(),
        };
        let first = self.calls;
        for (number, call) in (first..).zip(calls) {
            let arguments = arguments(call, &self.variables);
            self.events.send(EngineEvent::Call(name(number, call), arguments)).await?;
            self.events.send(EngineEvent::Break).await?;
        }
        for (number, call) in (first..).zip(calls) {
            let text = self.variables.fill(&call.result);
            self.variables.result.clone_from(&text);
            let is_error = call.is_error;
            self.events.send(EngineEvent::Result { call: name(number, call), text, is_error }).await?;
            self.events.send(EngineEvent::Break).await?;
        }
        self.calls += calls.len();
        Ok(())
    }

    /// Each character counts as a token; any number that is the same each time would do.
    fn metadata(&self, scenario: &Scenario) -> Map<String, Value> {
        let metadata = json!({
            "model": "scripted", "scenario": scenario.name, "finish_reason": "stop", "tokens_used": self.chars,
        });
        metadata.as_object().cloned().unwrap_or_default()
    }
}

/// The arguments of a call as a model would write them, with the variables in their texts filled
/// in.
pub(super) fn arguments(call: &ToolCallStep, variables: &TurnVariables) -> String {
    match &call.arguments {
        Value::Null => "{}".to_owned(),
        arguments => filled(arguments, variables).to_string(),
    }
}

fn filled(value: &Value, variables: &TurnVariables) -> Value {
    match value {
        Value::String(text) => Value::String(variables.fill(text)),
        Value::Array(items) => items.iter().map(|item| filled(item, variables)).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), filled(value, variables))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn failure(error: &ErrorStep, variables: &TurnVariables) -> Failure {
    Failure {
        class: error.class.into(),
        code: error.code.clone().unwrap_or_else(|| "scripted".to_owned()),
        text: variables.fill(error.message.as_deref().unwrap_or("an error by script")),
        retry_after: error.retry_after.map(Duration::from_secs_f64),
    }
}
