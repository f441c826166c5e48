//! The steps of a scenario.

use model::ErrorClass;
use serde::Deserialize;
use serde_json::Value;

/// One step of a scenario, written as `{"<name>": …}` in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScriptStep {
    /// Waits this many ms; keep-alive chunks are sent meanwhile.
    DelayMs(u64),
    /// Waits this many ms without keep-alive chunks.
    SilenceMs(u64),
    Text(TextStep),
    Reasoning(TextStep),
    /// Concurrent tool calls with their results.
    Tools(Vec<ToolCallStep>),
    /// Ends the turn as failed.
    Error(ErrorStep),
    /// Fails the first runs of the turn, then continues.
    FailFirst(FailFirst),
    /// Publishes the previous frame again, this many times.
    Duplicate(usize),
    /// Publishes the next frames, this many, in reverse order.
    Reorder(usize),
    /// Publishes nothing more until the turn is stopped.
    Hang(True),
    /// Simulates a crash: publishes nothing and does not acknowledge. Over HTTP, cuts the
    /// connection.
    Cut(True),
    /// Hands the request back, as a drain does.
    HandBack(True),
}

impl ScriptStep {
    pub(super) fn ends(&self) -> bool {
        matches!(self, Self::Error(_) | Self::Hang(_) | Self::Cut(_) | Self::HandBack(_))
    }
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
    /// Pause between chunks in ms.
    #[serde(default)]
    pub(crate) every_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolCallStep {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Value,
    /// The result that the scripted engine returns; over HTTP the client calls its own tool.
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
    /// In whole or fractional seconds.
    #[serde(default)]
    pub(crate) retry_after: Option<f64>,
    /// Status over HTTP.
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

impl ErrorStep {
    /// The given status, or the default of the error class.
    pub(crate) fn status(&self) -> u16 {
        self.status.unwrap_or(match (self.class.into(), self.retry_after) {
            (ErrorClass::Auth, _) => 401,
            (ErrorClass::Permanent, _) => 400,
            (ErrorClass::Transient, Some(_)) => 429,
            (ErrorClass::Transient, None) => 503,
        })
    }
}
