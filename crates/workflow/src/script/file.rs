//! The form of a script file, and what is checked before it is played.

use model::ErrorClass;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::{Scenario, Script, ScriptError, When};

/// Steps of a scenario may not be slower than this each.
const LONGEST_MS: u64 = 3_600_000;
const MOST_FRAMES: usize = 50;

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
    when: WhenInFile,
    steps: Vec<Step>,
}

/// All of what is given must hold.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenInFile {
    input_contains: Option<String>,
    input_matches: Option<String>,
    agent: Option<String>,
    task: Option<String>,
}

/// One step of a scenario, in the file `{"<name>": …}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Waits so many ms; signs of life keep the turn alive.
    DelayMs(u64),
    /// Waits so many ms without any sign of life.
    SilenceMs(u64),
    /// A text.
    Text(TextStep),
    /// Reasoning.
    Reasoning(TextStep),
    /// Calls of tools at the same time, with their results.
    Tools(Vec<ToolCallStep>),
    /// Ends the turn as failed.
    Error(ErrorStep),
    /// Fails the first runs of the turn, then goes on.
    FailFirst(FailFirst),
    /// The frame before comes once more, so many times.
    Duplicate(usize),
    /// The next frames, so many, come in reverse order.
    Reorder(usize),
    /// Says nothing more until somebody stops the turn.
    Hang(True),
    /// Dies: nothing is said, the request is not answered. Over HTTP the connection is cut.
    Cut(True),
    /// Hands the request back, as a drain does.
    HandBack(True),
}

/// `true`, so that steps without a value look like the others.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "bool")]
pub(crate) struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, Self::Error> {
        if value { Ok(Self) } else { Err("only true makes sense here") }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextStep {
    pub(crate) content: String,
    /// Characters per chunk.
    #[serde(default)]
    pub(crate) chars: Option<usize>,
    /// Pause between chunks, ms.
    #[serde(default)]
    pub(crate) every_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolCallStep {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Value,
    /// What the scripted engine gives as the result; over HTTP the client calls its own tool.
    #[serde(default)]
    pub(crate) result: String,
    #[serde(default)]
    pub(crate) is_error: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErrorStep {
    pub(crate) class: Class,
    #[serde(default)]
    pub(crate) message: Option<String>,
    #[serde(default)]
    pub(crate) code: Option<String>,
    /// Seconds.
    #[serde(default)]
    pub(crate) retry_after: Option<f64>,
    /// The status over HTTP.
    #[serde(default)]
    pub(crate) status: Option<u16>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailFirst {
    pub(crate) runs: u32,
    pub(crate) error: ErrorStep,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    Transient,
    Permanent,
    Auth,
}

impl From<Class> for ErrorClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Transient => Self::Transient,
            Class::Permanent => Self::Permanent,
            Class::Auth => Self::Auth,
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Script, ScriptError> {
    let file: ScriptInFile = serde_json::from_str(text)?;
    if file.scenarios.is_empty() {
        return Err(ScriptError::Empty);
    }
    let scenarios = file.scenarios.into_iter().enumerate().map(|(index, scenario)| {
        let name = scenario.name.clone().unwrap_or_else(|| format!("#{}", index + 1));
        check(&name, scenario).map_err(|why| ScriptError::Scenario(name, why))
    });
    Ok(Script { scenarios: scenarios.collect::<Result<_, _>>()? })
}

fn check(name: &str, scenario: ScenarioInFile) -> Result<Scenario, String> {
    let matches = scenario.when.input_matches.as_deref().map(Regex::new).transpose();
    let when = When {
        contains: scenario.when.input_contains,
        matches: matches.map_err(|error| format!("input_matches: {error}"))?,
        agent: scenario.when.agent,
        task: scenario.when.task,
    };
    if let Some(task) = when.task.as_deref().filter(|task| !["task", "work_request", "memory"].contains(task))
    {
        return Err(format!("task {task:?}: task, work_request and memory are known"));
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

fn check_step(step: &Step) -> Result<(), String> {
    match step {
        Step::DelayMs(ms) | Step::SilenceMs(ms) => at_most("ms", *ms, LONGEST_MS),
        Step::Text(text) | Step::Reasoning(text) if text.chars == Some(0) => {
            Err("chars must be at least 1".to_owned())
        }
        Step::Text(text) | Step::Reasoning(text) => at_most("every_ms", text.every_ms, LONGEST_MS),
        Step::Tools(calls) if calls.is_empty() => Err("tools must have at least one call".to_owned()),
        Step::Tools(calls) => calls.iter().try_for_each(check_call),
        Step::Error(error) => check_error(error),
        Step::FailFirst(first) => check_error(&first.error),
        Step::Duplicate(count) | Step::Reorder(count) if !(1..=MOST_FRAMES).contains(count) => {
            Err(format!("a number of frames is from 1 to {MOST_FRAMES}"))
        }
        Step::Duplicate(_) | Step::Reorder(_) | Step::Hang(_) | Step::Cut(_) | Step::HandBack(_) => Ok(()),
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

impl Step {
    fn ends(&self) -> bool {
        matches!(self, Self::Error(_) | Self::Hang(_) | Self::Cut(_) | Self::HandBack(_))
    }
}
