//! Scripts: what is answered to which input, step by step, from a JSON file. The same script is played by the scripted
//! engine ([`play`]) and served as an OpenAI-compatible endpoint ([`serve`]).

mod file;
mod play;
pub(crate) mod serve;

use std::path::Path;

use model::ErrorClass;
use regex::Regex;

use file::{ErrorStep, Step, TextStep, ToolCallStep};

/// A script that cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// Cannot be read.
    #[error("the script {0} cannot be read: {1}")]
    File(String, std::io::Error),
    /// Not the form.
    #[error("the script is not in the expected form: {0}")]
    Form(#[from] serde_json::Error),
    /// No scenario at all.
    #[error("the script has no scenario")]
    Empty,
    /// One scenario is wrong.
    #[error("scenario {0:?}: {1}")]
    Scenario(String, String),
}

/// What is answered to which input. The first scenario that fits is played.
#[derive(Debug, Clone)]
pub struct Script {
    scenarios: Vec<Scenario>,
}

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    when: When,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Default)]
struct When {
    contains: Option<String>,
    matches: Option<Regex>,
    agent: Option<String>,
    task: Option<String>,
}

/// What a scenario is chosen by, and what its texts may say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MatchRule {
    pub(crate) input: String,
    pub(crate) agent: String,
    pub(crate) task: Option<String>,
    pub(crate) turn: String,
    pub(crate) run: u32,
    pub(crate) attempt: u32,
    /// The last result of a tool.
    pub(crate) result: String,
}

impl Script {
    /// Reads a script from a file.
    ///
    /// # Errors
    /// It cannot be read, or says something that cannot be.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScriptError::File(path.display().to_string(), error))?;
        Self::parse(&text)
    }

    /// Reads the text of a script.
    ///
    /// # Errors
    /// It says something that cannot be.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        file::parse(text)
    }

    /// Answers every input with itself.
    pub fn echo() -> Self {
        let text = TextStep { content: "You said: {input}".to_owned(), chars: Some(8), every_ms: 0 };
        let scenario =
            Scenario { name: "echo".to_owned(), when: When::default(), steps: vec![Step::Text(text)] };
        Self { scenarios: vec![scenario] }
    }

    /// The first scenario that fits.
    pub(crate) fn scenario(&self, cue: &MatchRule) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.when.fits(cue))
    }
}

impl When {
    fn fits(&self, cue: &MatchRule) -> bool {
        self.contains.as_ref().is_none_or(|text| cue.input.contains(text))
            && self.matches.as_ref().is_none_or(|regex| regex.is_match(&cue.input))
            && self.agent.as_ref().is_none_or(|agent| *agent == cue.agent)
            && self.task.as_ref().is_none_or(|task| Some(task) == cue.task.as_ref())
    }
}

impl MatchRule {
    /// The text with its variables filled in, all at once: what was filled in is not looked at again.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let found = rest.find('}').and_then(|end| Some((self.variable(&rest[1..end])?, end)));
            let length = match found {
                Some((value, end)) => {
                    filled.push_str(&value);
                    end + 1
                }
                None => {
                    filled.push('{');
                    1
                }
            };
            rest = &rest[length..];
        }
        filled.push_str(rest);
        filled
    }

    fn variable(&self, name: &str) -> Option<String> {
        Some(match name {
            "input" => self.input.clone(),
            "agent" => self.agent.clone(),
            "turn" => self.turn.clone(),
            "run" => self.run.to_string(),
            "attempt" => self.attempt.to_string(),
            "result" => self.result.clone(),
            _ => return None,
        })
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

/// A text in pieces of so many characters; all of it when there is no number.
pub(crate) fn pieces(text: &str, chars: Option<usize>) -> Vec<String> {
    let Some(size) = chars else { return vec![text.to_owned()] };
    let all: Vec<char> = text.chars().collect();
    all.chunks(size.max(1)).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests;
