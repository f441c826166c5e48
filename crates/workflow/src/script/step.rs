//! The steps of a scenario.

use model::ErrorClass;
use serde::Deserialize;
use serde_json::Value;

/// One step of a scenario, in the file `{"<name>": …}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScriptStep {
    /// Waits so many ms; keep-alive chunks are sent meanwhile.
    DelayMs(u64),
    /// Waits so many ms without keep-alive chunks.
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
    /// Publishes nothing more until the turn is stopped.
    Hang(True),
    /// Dies: nothing is said, the request is not answered. Over HTTP the connection is cut.
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

impl ErrorStep {
    /// Its own, or the one that fits the class.
    pub(crate) fn status(&self) -> u16 {
        self.status.unwrap_or(match (self.class.into(), self.retry_after) {
            (ErrorClass::Auth, _) => 401,
            (ErrorClass::Permanent, _) => 400,
            (ErrorClass::Transient, Some(_)) => 429,
            (ErrorClass::Transient, None) => 503,
        })
    }
}
