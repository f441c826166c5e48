//! Scenarios: the turns they match, and the variables of their texts.

use regex::Regex;

use super::step::ScriptStep;

/// The steps that answer the matching turns.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(super) when: Condition,
    pub(crate) steps: Vec<ScriptStep>,
}

/// The turns a scenario matches: all given conditions must hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Condition {
    pub(super) contains: Option<String>,
    pub(super) matches: Option<Regex>,
    pub(super) agent: Option<String>,
    pub(super) task: Option<String>,
}

impl Condition {
    pub(super) fn fits(&self, variables: &TurnVariables) -> bool {
        self.contains.as_ref().is_none_or(|text| variables.input.contains(text))
            && self.matches.as_ref().is_none_or(|regex| regex.is_match(&variables.input))
            && self.agent.as_ref().is_none_or(|agent| *agent == variables.agent)
            && self.task.as_ref().is_none_or(|task| Some(task) == variables.task.as_ref())
    }
}

/// Variables that select a scenario and fill its texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TurnVariables {
    pub(crate) input: String,
    pub(crate) agent: String,
    pub(crate) task: Option<String>,
    pub(crate) turn: String,
    pub(crate) run: u32,
    pub(crate) attempt: u32,
    /// The last result of a tool.
    pub(crate) result: String,
}

impl TurnVariables {
    /// Fills in all variables in one pass: inserted text is not expanded again.
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
