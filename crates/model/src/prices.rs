//! Prices of model tokens.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::{ModelCall, Timestamp};

/// Maximum number of prices in a table.
const MOST_PRICES: usize = 10_000;
/// Maximum bytes of a currency's name.
const CURRENCY_BYTES: usize = 16;

/// Prices of model tokens, by model and time.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceTable {
    /// Currency of all amounts, such as `USD`.
    pub currency: String,
    /// In any order.
    pub prices: Vec<Price>,
}

/// Price of a model's tokens from a time on, until the model's next price. Amounts are per million
/// tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Model name used in calls.
    pub model: String,
    /// Start of the price, in RFC 3339 or as a day in UTC; `None`: always.
    #[serde(default)]
    pub from: Option<String>,
    /// Price of input tokens.
    pub input: f64,
    /// Price of input tokens read from a cache; `None`: the price of input tokens.
    #[serde(default)]
    pub cached_input: Option<f64>,
    /// Price of output tokens, including reasoning.
    pub output: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrices {
    /// Not valid JSON of a price table.
    #[error("not a table of prices in JSON: {0}")]
    Malformed(String),
    #[error("the currency must have 1 to {CURRENCY_BYTES} bytes")]
    Currency,
    #[error("{0} prices are more than {MOST_PRICES}")]
    TooMany(usize),
    #[error("price {number} ({model}): {what}")]
    Price {
        /// Number of the price in the table, from 1.
        number: usize,
        model: String,
        /// What is wrong.
        what: &'static str,
    },
}

impl PriceTable {
    /// Reads a table; `parse_time` parses times in RFC 3339.
    ///
    /// # Errors
    /// The JSON is not a price table, an amount is negative, a time is invalid, or a model has two
    /// prices from the same time on.
    pub fn parse(json: &str, parse_time: impl Fn(&str) -> Option<Timestamp>) -> Result<Self, InvalidPrices> {
        let table: Self =
            serde_json::from_str(json).map_err(|error| InvalidPrices::Malformed(error.to_string()))?;
        if !(1..=CURRENCY_BYTES).contains(&table.currency.len()) {
            return Err(InvalidPrices::Currency);
        }
        if table.prices.len() > MOST_PRICES {
            return Err(InvalidPrices::TooMany(table.prices.len()));
        }
        let mut seen = BTreeSet::new();
        for (number, price) in (1..).zip(&table.prices) {
            let wrong = |what| InvalidPrices::Price { number, model: price.model.clone(), what };
            if price.model.is_empty() || price.model.contains('\0') {
                return Err(wrong("its model has no name"));
            }
            let amounts = [Some(price.input), price.cached_input, Some(price.output)];
            if amounts.into_iter().flatten().any(|amount| !(0.0..=1e9).contains(&amount)) {
                return Err(wrong("an amount must be from 0 to 1000000000"));
            }
            let from = price.from.as_deref().map(|text| time_or_day(text, &parse_time));
            let from = from.map(|from| {
                from.ok_or_else(|| wrong("from must be a time like 2026-12-24T18:00:00Z or a day"))
            });
            if !seen.insert((&price.model, from.transpose()?)) {
                return Err(wrong("the model has another price from the same time on"));
            }
        }
        Ok(table)
    }

    /// Cost of a call at the price in effect at this time, in the table's currency; `None`: the
    /// table has no price of its model. `parse_time` parses times as for [`PriceTable::parse`].
    pub fn cost(
        &self,
        call: &ModelCall,
        model: &str,
        at: Timestamp,
        parse_time: impl Fn(&str) -> Option<Timestamp>,
    ) -> Option<f64> {
        let from = |price: &Price| match price.from.as_deref() {
            Some(text) => time_or_day(text, &parse_time),
            None => Some(Timestamp(i64::MIN)),
        };
        let of_model = self.prices.iter().filter(|price| price.model == model);
        let counting =
            of_model.filter_map(|price| Some((from(price)?, price))).filter(|(from, _)| *from <= at);
        let (_, price) = counting.max_by_key(|(from, _)| *from)?;
        let cached = call.cached_tokens.unwrap_or(0).min(call.input_tokens);
        let millionths = (call.input_tokens - cached) as f64 * price.input
            + cached as f64 * price.cached_input.unwrap_or(price.input)
            + call.output_tokens as f64 * price.output;
        Some(millionths / 1e6)
    }
}

/// A time, or the first instant of a day.
fn time_or_day(text: &str, parse_time: impl Fn(&str) -> Option<Timestamp>) -> Option<Timestamp> {
    parse_time(text).or_else(|| parse_time(&format!("{text}T00:00:00Z")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_time(text: &str) -> Option<Timestamp> {
        text.ends_with('Z').then_some(Timestamp(text.len() as i64))
    }

    #[test]
    fn prices_are_read_as_they_were_written() {
        let json = r#"{"currency": "USD", "prices": [
            {"model": "m", "input": 1.25, "output": 10},
            {"model": "m", "from": "2026-06-01", "input": 1, "cached_input": 0.1, "output": 8}]}"#;
        let table = PriceTable::parse(json, parse_time).unwrap();
        let [first, second] = &table.prices[..] else { panic!("{table:?}") };
        assert_eq!(
            (table.currency.as_str(), first.input, first.cached_input, first.output),
            ("USD", 1.25, None, 10.0)
        );
        assert_eq!((second.from.as_deref(), second.cached_input), (Some("2026-06-01"), Some(0.1)));
    }

    #[test]
    fn a_call_costs_what_its_model_costs_at_its_time() {
        // In these tests the time of a text is its length.
        let json = r#"{"currency": "USD", "prices": [
            {"model": "m", "input": 1, "output": 10},
            {"model": "m", "from": "12345678Z", "input": 2, "cached_input": 0.5, "output": 20},
            {"model": "n", "from": "12345678Z", "input": 3, "output": 30}]}"#;
        let table = PriceTable::parse(json, parse_time).unwrap();
        let call = ModelCall {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cached_tokens: Some(400_000),
            ..ModelCall::default()
        };
        let cost = |model: &str, at: i64| table.cost(&call, model, Timestamp(at), parse_time);
        assert_eq!((cost("m", 8), cost("m", 9)), (Some(1.0 + 1.0), Some(1.2 + 0.2 + 2.0)));
        assert_eq!((cost("n", 8), cost("n", 9), cost("o", 9)), (None, Some(3.0 + 3.0), None));
    }

    #[test]
    fn a_table_that_makes_no_sense_names_what_is_wrong() {
        let price = r#"{"model": "m", "input": 1, "output": 1}"#;
        for (json, named) in [
            ("[]", "not a table of prices"),
            (r#"{"currency": "", "prices": []}"#, "currency"),
            (r#"{"currency": "USD", "price": []}"#, "unknown field `price`"),
            (
                r#"{"currency": "USD", "prices": [{"model": "m", "input": -1, "output": 1}]}"#,
                "price 1 (m): an amount",
            ),
            (r#"{"currency": "USD", "prices": [{"model": "", "input": 1, "output": 1}]}"#, "no name"),
            (
                r#"{"currency": "USD", "prices": [{"model": "m", "from": "may", "input": 1, "output": 1}]}"#,
                "price 1 (m): from must",
            ),
            (
                &format!(r#"{{"currency": "USD", "prices": [{price}, {price}]}}"#),
                "price 2 (m): the model has",
            ),
        ] {
            // A day becomes a time only by adding the hour.
            let error = PriceTable::parse(json, |text| parse_time(text).filter(|_| !text.contains("may")))
                .unwrap_err();
            assert!(error.to_string().contains(named), "{json}: {error}");
        }
    }
}
