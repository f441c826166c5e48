//! What one turn may use, as the settings of its agent say: a loop that still makes progress ends as well.

use serde_json::Value;

/// The setting `turn_budget`. Absent parts have no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TurnBudget {
    /// Input and output tokens of all calls of models.
    pub tokens: Option<u64>,
    /// Calls of models.
    pub calls: Option<u64>,
}

/// No turn budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("turn_budget{0}")]
pub struct InvalidTurnBudget(Box<str>);

impl TurnBudget {
    /// The key in the settings of an agent.
    pub const KEY: &'static str = "turn_budget";
    /// The code of a turn that has used it up.
    pub const CODE: &'static str = "turn_budget";
    /// Least and most tokens.
    pub const TOKENS: (u64, u64) = (1, 1_000_000_000);
    /// Least and most calls.
    pub const CALLS: (u64, u64) = (1, 10_000);

    /// Reads the setting; null is no bound.
    ///
    /// # Errors
    /// It is no object, or has a field that is not known or a number out of its range; the field is named.
    pub fn parse(written: &Value) -> Result<Self, InvalidTurnBudget> {
        let invalid = |why: String| InvalidTurnBudget(why.into());
        if written.is_null() {
            return Ok(Self::default());
        }
        let fields = written.as_object().ok_or_else(|| invalid(" must be null or an object".to_owned()))?;
        let mut budget = Self::default();
        for (name, value) in fields {
            let (field, (low, high)) = match name.as_str() {
                "tokens" => (&mut budget.tokens, Self::TOKENS),
                "calls" => (&mut budget.calls, Self::CALLS),
                _ => {
                    return Err(invalid(format!(
                        ".{}: expected tokens or calls",
                        name.chars().take(64).collect::<String>()
                    )));
                }
            };
            let number = value.as_u64().filter(|number| (low..=high).contains(number));
            let why = || invalid(format!(".{name} must be a whole number from {low} to {high}"));
            *field = Some(number.ok_or_else(why)?);
        }
        Ok(budget)
    }

    /// Why no further call may be made after these; `None`: it may.
    pub fn refusal(self, calls: u64, tokens: u64) -> Option<String> {
        let is_spent = |most: Option<u64>, used: u64| most.filter(|most| used >= *most);
        if let Some(most) = is_spent(self.calls, calls) {
            return Some(format!(
                "the turn has made {calls} calls of models; its agent's turn_budget allows {most}"
            ));
        }
        let most = is_spent(self.tokens, tokens)?;
        Some(format!("the turn has used {tokens} tokens; its agent's turn_budget allows {most}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_read_with_its_ranges() {
        assert_eq!(TurnBudget::parse(&json!(null)), Ok(TurnBudget::default()));
        assert_eq!(TurnBudget::parse(&json!({})), Ok(TurnBudget::default()));
        let both = TurnBudget { tokens: Some(5_000), calls: Some(3) };
        assert_eq!(TurnBudget::parse(&json!({"tokens": 5_000, "calls": 3})), Ok(both));
        for (written, why) in [
            (json!([]), "turn_budget must be null or an object"),
            (json!({"cost": 1}), "turn_budget.cost: expected tokens or calls"),
            (json!({"tokens": 0}), "turn_budget.tokens must be a whole number from 1 to 1000000000"),
            (json!({"calls": 10_001}), "turn_budget.calls must be a whole number from 1 to 10000"),
            (json!({"calls": "3"}), "turn_budget.calls must be"),
        ] {
            let error = TurnBudget::parse(&written).unwrap_err().to_string();
            assert!(error.starts_with(why), "{written}: {error}");
        }
    }

    #[test]
    fn a_further_call_is_refused_once_it_is_spent() {
        let budget = TurnBudget { tokens: Some(100), calls: Some(3) };
        assert_eq!(budget.refusal(2, 99), None);
        assert!(budget.refusal(3, 0).unwrap().contains("3 calls"));
        assert!(budget.refusal(1, 100).unwrap().contains("100 tokens"));
        assert_eq!(TurnBudget::default().refusal(1_000, u64::MAX), None);
    }
}
