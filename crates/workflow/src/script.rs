//! Scripts: the answer to each input, step by step, from a JSON file. The scripted engine plays a
//! script ([`play`]), and [`serve`] offers the same script as an OpenAI-compatible endpoint.

mod file;
mod play;
mod scenario;
pub(crate) mod serve;
mod step;

use std::path::Path;

pub use file::ScriptError;
use scenario::{Condition, Scenario, TurnVariables};
use step::{ScriptStep, TextStep};

/// The answers to inputs. The first scenario that matches is played.
#[derive(Debug, Clone)]
pub struct Script {
    scenarios: Vec<Scenario>,
}

impl Script {
    /// Reads a script from a file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScriptError::File(path.display().to_string(), error))?;
        Self::parse(&text)
    }

    /// Parses the text of a script.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        Ok(Self { scenarios: file::parse(text)? })
    }

    /// A script that answers every input with the input itself.
    pub fn echo() -> Self {
        let text = TextStep { content: "You said: {input}".to_owned(), chars: Some(8), every_ms: 0 };
        let scenario = Scenario {
            name: "echo".to_owned(),
            when: Condition::default(),
            steps: vec![ScriptStep::Text(text)],
        };
        Self { scenarios: vec![scenario] }
    }

    /// The first scenario that matches.
    pub(crate) fn scenario(&self, variables: &TurnVariables) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.when.fits(variables))
    }
}

/// Splits a text into pieces of `chars` characters; without a number it stays whole.
pub(crate) fn pieces(text: &str, chars: Option<usize>) -> Vec<String> {
    let Some(size) = chars else { return vec![text.to_owned()] };
    let all: Vec<char> = text.chars().collect();
    all.chunks(size.max(1)).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests;
