//! Scripts: what is answered to which input, step by step, from a JSON file. The same script is played by the scripted
//! engine ([`play`]) and served as an OpenAI-compatible endpoint ([`serve`]).

mod file;
mod play;
mod scenario;
pub(crate) mod serve;
mod step;

use std::path::Path;

pub use file::ScriptError;
use scenario::{Condition, Scenario, TurnVariables};
use step::{ScriptStep, TextStep};

/// What is answered to which input. The first scenario that fits is played.
#[derive(Debug, Clone)]
pub struct Script {
    scenarios: Vec<Scenario>,
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
        Ok(Self { scenarios: file::parse(text)? })
    }

    /// Answers every input with itself.
    pub fn echo() -> Self {
        let text = TextStep { content: "You said: {input}".to_owned(), chars: Some(8), every_ms: 0 };
        let scenario = Scenario {
            name: "echo".to_owned(),
            when: Condition::default(),
            steps: vec![ScriptStep::Text(text)],
        };
        Self { scenarios: vec![scenario] }
    }

    /// The first scenario that fits.
    pub(crate) fn scenario(&self, variables: &TurnVariables) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.when.fits(variables))
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
