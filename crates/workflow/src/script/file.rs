//! The format of a script file, and its validation before it is played.

use model::TaskKind;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::scenario::{Condition, Scenario};
use super::step::{ErrorStep, ScriptStep, ToolCallStep};

/// Maximum delay of a step in ms.
const LONGEST_MS: u64 = 3_600_000;
const MOST_FRAMES: usize = 50;

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// Cannot be read.
    #[error("the script {0} cannot be read: {1}")]
    File(String, std::io::Error),
    /// Not in the expected form.
    #[error("the script is not in the expected form: {0}")]
    Form(#[from] serde_json::Error),
    /// The script has no scenario.
    #[error("the script has no scenario")]
    Empty,
    /// Name of an invalid scenario, and the reason.
    #[error("scenario {0:?}: {1}")]
    Scenario(String, String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptInFile {
    scenarios: Vec<ScenarioInFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioInFile {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    when: ConditionInFile,
    steps: Vec<ScriptStep>,
}

/// All given conditions must hold.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionInFile {
    input_contains: Option<String>,
    input_matches: Option<String>,
    agent: Option<String>,
    task: Option<String>,
}

pub(super) fn parse(text: &str) -> Result<Vec<Scenario>, ScriptError> {
    let file: ScriptInFile = serde_json::from_str(text)?;
    if file.scenarios.is_empty() {
        return Err(ScriptError::Empty);
    }
    let scenarios = file.scenarios.into_iter().enumerate().map(|(index, scenario)| {
        let name = scenario.name.clone().unwrap_or_else(|| format!("#{}", index + 1));
        check(&name, scenario).map_err(|why| ScriptError::Scenario(name, why))
    });
    scenarios.collect()
}

fn check(name: &str, scenario: ScenarioInFile) -> Result<Scenario, String> {
    let matches = scenario.when.input_matches.as_deref().map(Regex::new).transpose();
    let when = Condition {
        contains: scenario.when.input_contains,
        matches: matches.map_err(|error| format!("input_matches: {error}"))?,
        agent: scenario.when.agent,
        task: scenario.when.task,
    };
    if let Some(task) = when.task.as_deref().filter(|task| TaskKind::from_name(task).is_none()) {
        let known = TaskKind::ALL.map(TaskKind::name).join(", ");
        return Err(format!("unknown task {task:?}: one of {known}"));
    }
    let last = scenario.steps.len();
    for (number, step) in (1..).zip(&scenario.steps) {
        check_step(step).map_err(|why| format!("step {number}: {why}"))?;
        if step.ends() && number < last {
            return Err(format!("step {number} ends the turn: step {} would never be played", number + 1));
        }
    }
    Ok(Scenario { name: name.to_owned(), when, steps: scenario.steps })
}

fn check_step(step: &ScriptStep) -> Result<(), String> {
    match step {
        ScriptStep::DelayMs(ms) | ScriptStep::SilenceMs(ms) => at_most("ms", *ms, LONGEST_MS),
        ScriptStep::Text(text) | ScriptStep::Reasoning(text) if text.chars == Some(0) => {
            Err("chars must be at least 1".to_owned())
        }
        ScriptStep::Text(text) | ScriptStep::Reasoning(text) => {
            at_most("every_ms", text.every_ms, LONGEST_MS)
        }
        ScriptStep::Tools(calls) if calls.is_empty() => Err("tools must have at least one call".to_owned()),
        ScriptStep::Tools(calls) => calls.iter().try_for_each(check_call),
        ScriptStep::Error(error) => check_error(error),
        ScriptStep::FailFirst(first) => check_error(&first.error),
        ScriptStep::Duplicate(count) | ScriptStep::Reorder(count) if !(1..=MOST_FRAMES).contains(count) => {
            Err(format!("a number of frames is from 1 to {MOST_FRAMES}"))
        }
        ScriptStep::Duplicate(_)
        | ScriptStep::Reorder(_)
        | ScriptStep::Hang(_)
        | ScriptStep::Cut(_)
        | ScriptStep::HandBack(_) => Ok(()),
    }
}

fn at_most(what: &str, value: u64, limit: u64) -> Result<(), String> {
    if value <= limit { Ok(()) } else { Err(format!("{what} is {value}; at most {limit} are allowed")) }
}

fn check_call(call: &ToolCallStep) -> Result<(), String> {
    match (&call.arguments, call.name.is_empty()) {
        (_, true) => Err("a tool needs a name".to_owned()),
        (Value::Null | Value::Object(_), false) => Ok(()),
        _ => Err(format!("the arguments of {:?} must be an object", call.name)),
    }
}

fn check_error(error: &ErrorStep) -> Result<(), String> {
    if error.retry_after.is_some_and(|seconds| !(0.0..=86_400.0).contains(&seconds)) {
        return Err("retry_after is from 0 to 86400 seconds".to_owned());
    }
    match error.status {
        Some(status) if !(400..600).contains(&status) => Err("a status is from 400 to 599".to_owned()),
        _ => Ok(()),
    }
}
