//! Limits on the usage of one turn, from its agent's settings, so that even a loop that makes
//! progress ends.

use serde_json::Value;

/// The setting `turn_budget`. Absent parts have no bound.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TurnBudget {
    /// Input and output tokens of all model calls.
    pub tokens: Option<u64>,
    /// Number of model calls.
    pub calls: Option<u64>,
    /// Cost of the model calls, in the currency of the prices.
    pub cost: Option<f64>,
}

/// Usage of a turn so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TurnUse<'a> {
    /// Number of model calls.
    pub calls: u64,
    /// Input and output tokens of the calls.
    pub tokens: u64,
    /// Cost of the calls, as far as known.
    pub cost: f64,
    /// A model without a known price, if one was called or is about to be.
    pub unpriced: Option<&'a str>,
    /// Currency of the cost.
    pub currency: &'a str,
}

/// An invalid turn budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("turn_budget{0}")]
pub struct InvalidTurnBudget(Box<str>);

impl TurnBudget {
    /// Key in the settings of an agent.
    pub const KEY: &'static str = "turn_budget";
    /// Error code of a turn that has used up its budget.
    pub const CODE: &'static str = "turn_budget";
    /// Minimum and maximum tokens.
    pub const TOKENS: (u64, u64) = (1, 1_000_000_000);
    /// Minimum and maximum calls.
    pub const CALLS: (u64, u64) = (1, 10_000);
    /// Maximum cost; it must be above 0.
    pub const MOST_COST: f64 = 1e9;

    /// Reads the setting; null means no bound.
    ///
    /// # Errors
    /// The value is not an object, or has an unknown field or a number out of range; the error
    /// names the field.
    pub fn parse(written: &Value) -> Result<Self, InvalidTurnBudget> {
        let invalid = |why: String| InvalidTurnBudget(why.into());
        if written.is_null() {
            return Ok(Self::default());
        }
        let fields = written.as_object().ok_or_else(|| invalid(" must be null or an object".to_owned()))?;
        let mut budget = Self::default();
        for (name, value) in fields {
            if name == "cost" {
                let cost = value.as_f64().filter(|cost| *cost > 0.0 && *cost <= Self::MOST_COST);
                let why = || invalid(format!(".cost must be a number above 0, at most {}", Self::MOST_COST));
                budget.cost = Some(cost.ok_or_else(why)?);
                continue;
            }
            let (field, (low, high)) = match name.as_str() {
                "tokens" => (&mut budget.tokens, Self::TOKENS),
                "calls" => (&mut budget.calls, Self::CALLS),
                _ => {
                    return Err(invalid(format!(
                        ".{}: expected tokens, calls or cost",
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

    /// Why no further model call is allowed; `None` if one is allowed.
    pub fn refusal(self, used: TurnUse<'_>) -> Option<String> {
        let is_spent = |most: Option<u64>, used: u64| most.filter(|most| used >= *most);
        let (calls, tokens, cost) = (used.calls, used.tokens, used.cost);
        if let Some(most) = is_spent(self.calls, calls) {
            return Some(format!(
                "the turn has made {calls} calls of models; its agent's turn_budget allows {most}"
            ));
        }
        if let Some(most) = is_spent(self.tokens, tokens) {
            return Some(format!("the turn has used {tokens} tokens; its agent's turn_budget allows {most}"));
        }
        let most = self.cost?;
        match used.unpriced {
            Some(model) => Some(format!(
                "its agent's turn_budget bounds the cost, and the price of the model {model} is not known: add it to ANTIPHON_PRICES_FILE of the \
                 workflow service"
            )),
            None if cost >= most => {
                let currency = used.currency;
                Some(format!("the turn has cost {cost} {currency}; its agent's turn_budget allows {most}"))
            }
            None => None,
        }
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
        let all = TurnBudget { tokens: Some(5_000), calls: Some(3), cost: Some(0.5) };
        assert_eq!(TurnBudget::parse(&json!({"tokens": 5_000, "calls": 3, "cost": 0.5})), Ok(all));
        for (written, why) in [
            (json!([]), "turn_budget must be null or an object"),
            (json!({"costs": 1}), "turn_budget.costs: expected tokens, calls or cost"),
            (json!({"cost": 0}), "turn_budget.cost must be a number above 0"),
            (json!({"cost": 2e9}), "turn_budget.cost must be"),
            (json!({"cost": "1"}), "turn_budget.cost must be"),
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
        let budget = TurnBudget { tokens: Some(100), calls: Some(3), cost: Some(0.25) };
        let used = |calls, tokens, cost| TurnUse { calls, tokens, cost, unpriced: None, currency: "USD" };
        let refusal = |used| budget.refusal(used).unwrap_or_default();
        assert_eq!(refusal(used(2, 99, 0.24)), "");
        assert!(refusal(used(3, 0, 0.0)).contains("3 calls"));
        assert!(refusal(used(1, 100, 0.0)).contains("100 tokens"));
        assert!(refusal(used(1, 0, 0.3)).contains("has cost 0.3 USD; its agent's turn_budget allows 0.25"));
        let unpriced = TurnUse { unpriced: Some("m"), ..used(0, 0, 0.0) };
        assert!(refusal(unpriced).contains("the price of the model m is not known"));
        let without_cost = TurnBudget { cost: None, ..budget };
        assert_eq!(without_cost.refusal(unpriced), None, "it bounds no cost");
        assert_eq!(TurnBudget::default().refusal(used(1_000, u64::MAX, 1e9)), None);
    }
}
