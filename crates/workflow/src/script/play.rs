//! Playing a scenario as an answer.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{ErrorStep, MatchRule, Scenario, Script, Step, TextStep, ToolCallStep, pieces};
use crate::engine_event::{
    CallName, Ended, EngineEvent, EngineSender, Failure, InjectedFault, ReceiverDropped,
};
use crate::request::Turn;

impl Script {
    /// Says what the script has for this turn. The same turn is answered with the same chunks each time, but for the
    /// variables of run and attempt.
    pub(crate) async fn play(&self, turn: &Turn, events: &EngineSender) -> Ended {
        let cue = MatchRule {
            input: turn.input().to_owned(),
            agent: turn.agent.clone(),
            task: turn.task_kind.clone(),
            turn: turn.id.to_string(),
            run: turn.run,
            attempt: turn.attempt,
            result: String::new(),
        };
        let Some(scenario) = self.scenario(&cue) else {
            return Ended::Failed(Failure::permanent(
                "no_scenario",
                "the script has no scenario for this input",
            ));
        };
        let playing = Playing { cue, events, calls: 0, chars: 0 };
        // Unheard: nobody is there to be told of the end either.
        playing.play(scenario).await.unwrap_or(Ended::Cut)
    }
}

struct Playing<'a> {
    cue: MatchRule,
    events: &'a EngineSender,
    calls: usize,
    chars: usize,
}

impl Playing<'_> {
    async fn play(mut self, scenario: &Scenario) -> Result<Ended, ReceiverDropped> {
        for step in &scenario.steps {
            if let Some(ended) = self.step(step).await? {
                return Ok(ended);
            }
        }
        Ok(Ended::Complete(self.metadata(scenario)))
    }

    async fn step(&mut self, step: &Step) -> Result<Option<Ended>, ReceiverDropped> {
        match step {
            Step::DelayMs(ms) => sleep(Duration::from_millis(*ms)).await,
            Step::SilenceMs(ms) => {
                self.events.send(EngineEvent::InjectedFault(InjectedFault::Mute(true))).await?;
                sleep(Duration::from_millis(*ms)).await;
                self.events.send(EngineEvent::InjectedFault(InjectedFault::Mute(false))).await?;
            }
            Step::Text(text) => self.text(text, EngineEvent::Text).await?,
            Step::Reasoning(text) => self.text(text, EngineEvent::Reasoning).await?,
            Step::Tools(calls) => self.tools(calls).await?,
            Step::Duplicate(times) => {
                for _ in 0..*times {
                    self.events.send(EngineEvent::InjectedFault(InjectedFault::Repeat)).await?;
                }
            }
            Step::Reorder(frames) => {
                self.events.send(EngineEvent::InjectedFault(InjectedFault::Reverse(*frames))).await?
            }
            Step::FailFirst(first) if self.cue.run < first.runs => {
                return Ok(Some(Ended::Failed(failure(&first.error, &self.cue))));
            }
            Step::FailFirst(_) => {}
            Step::Error(error) => return Ok(Some(Ended::Failed(failure(error, &self.cue)))),
            Step::Hang(_) => std::future::pending().await,
            Step::Cut(_) => return Ok(Some(Ended::Cut)),
            Step::HandBack(_) => return Ok(Some(Ended::HandBack)),
        }
        Ok(None)
    }

    async fn text(
        &mut self,
        step: &TextStep,
        part: fn(String) -> EngineEvent,
    ) -> Result<(), ReceiverDropped> {
        for (number, piece) in pieces(&self.cue.fill(&step.content), step.chars).into_iter().enumerate() {
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
            let arguments = arguments(call, &self.cue);
            self.events.send(EngineEvent::Call(name(number, call), arguments)).await?;
            self.events.send(EngineEvent::Break).await?;
        }
        for (number, call) in (first..).zip(calls) {
            let text = self.cue.fill(&call.result);
            self.cue.result.clone_from(&text);
            let is_error = call.is_error;
            self.events.send(EngineEvent::Result { call: name(number, call), text, is_error }).await?;
            self.events.send(EngineEvent::Break).await?;
        }
        self.calls += calls.len();
        Ok(())
    }

    /// A character counts as a token: anything that is the same each time will do.
    fn metadata(&self, scenario: &Scenario) -> Map<String, Value> {
        let metadata = json!({
            "model": "scripted", "scenario": scenario.name, "finish_reason": "stop", "tokens_used": self.chars,
        });
        metadata.as_object().cloned().unwrap_or_default()
    }
}

/// The arguments of a call as a model would write them, with variables in their texts.
pub(super) fn arguments(call: &ToolCallStep, cue: &MatchRule) -> String {
    match &call.arguments {
        Value::Null => "{}".to_owned(),
        arguments => filled(arguments, cue).to_string(),
    }
}

fn filled(value: &Value, cue: &MatchRule) -> Value {
    match value {
        Value::String(text) => Value::String(cue.fill(text)),
        Value::Array(items) => items.iter().map(|item| filled(item, cue)).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), filled(value, cue))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn failure(error: &ErrorStep, cue: &MatchRule) -> Failure {
    Failure {
        class: error.class.into(),
        code: error.code.clone().unwrap_or_else(|| "scripted".to_owned()),
        text: cue.fill(error.message.as_deref().unwrap_or("an error by script")),
        retry_after: error.retry_after.map(Duration::from_secs_f64),
    }
}
