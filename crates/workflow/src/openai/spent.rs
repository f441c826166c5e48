//! Sums the usage of a turn's calls for the metadata of its last chunk.

use std::sync::Arc;

use model::{ModelCall, PriceTable, Timestamp, TurnUse};
use serde_json::{Map, Value, json};

use crate::metrics;
use crate::reader::ModelReply;

/// The usage and cost of a whole turn.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// Sum of the calls that the endpoint has counted.
    sum: Option<ModelCall>,
    /// Sum of the calls that the endpoint has not counted.
    estimated_tokens: u64,
    steps: u32,
    prices: Option<Arc<PriceTable>>,
    /// In the currency of the prices.
    cost: f64,
    /// A model without a known price.
    unpriced: Option<String>,
}

impl Spent {
    /// Usage of a turn that calls the model `asked`. Without prices no cost is known.
    pub(super) fn new(prices: Option<Arc<PriceTable>>, asked: &str) -> Self {
        let unpriced = prices.is_none().then(|| asked.to_owned());
        Self { prices, unpriced, ..Self::default() }
    }

    /// Adds a call of the model `asked`, which the endpoint may name differently, made at about
    /// this time. A call that the endpoint has not counted enters the budget only, as `estimated`.
    pub(super) fn add(
        &mut self,
        counted: Option<&ModelCall>,
        estimated: &ModelCall,
        asked: &str,
        at: Timestamp,
    ) {
        self.steps += 1;
        let call = counted.unwrap_or(estimated);
        if let Some(prices) = &self.prices {
            let cost = |model: &str| prices.cost(call, model, at, wire::parse_rfc3339);
            match call.model.as_deref().and_then(cost).or_else(|| cost(asked)) {
                Some(cost) => self.cost += cost,
                None => self.unpriced = Some(call.model.as_deref().unwrap_or(asked).to_owned()),
            }
        }
        if counted.is_none() {
            self.estimated_tokens += call.input_tokens.saturating_add(call.output_tokens);
            return;
        }
        metrics::model_tokens(call.input_tokens, call.output_tokens);
        match &mut self.sum {
            Some(sum) => sum.add(call),
            None => self.sum = Some(call.clone()),
        }
    }

    /// The usage of all calls so far.
    pub(super) fn used(&self) -> TurnUse<'_> {
        TurnUse {
            calls: self.steps.into(),
            tokens: self
                .sum
                .as_ref()
                .map_or(0, |sum| sum.input_tokens.saturating_add(sum.output_tokens))
                .saturating_add(self.estimated_tokens),
            cost: self.cost,
            unpriced: self.unpriced.as_deref(),
            currency: self.prices.as_ref().map_or("", |prices| &prices.currency),
        }
    }

    /// Metadata of the final chunk. If the endpoint counts nothing, the counts are absent and not
    /// zero.
    pub(super) fn metadata(&self, reply: &ModelReply, asked: &str) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("model".to_owned(), json!(reply.model.as_deref().unwrap_or(asked)));
        map.insert("finish_reason".to_owned(), json!(reply.finish_reason()));
        map.insert("steps".to_owned(), json!(self.steps));
        if let Some(sum) = &self.sum {
            map.insert("tokens_used".to_owned(), json!(sum.input_tokens.saturating_add(sum.output_tokens)));
            map.insert("usage".to_owned(), usage_of(sum));
        }
        map
    }
}

/// The usage in OpenAI's format; unknown counts are left out.
fn usage_of(sum: &ModelCall) -> Value {
    let total = sum.input_tokens.saturating_add(sum.output_tokens);
    let mut value = json!({
        "prompt_tokens": sum.input_tokens, "completion_tokens": sum.output_tokens, "total_tokens": total,
    });
    if let Some(cached) = sum.cached_tokens {
        value["prompt_tokens_details"] = json!({ "cached_tokens": cached });
    }
    if let Some(reasoning) = sum.reasoning_tokens {
        value["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
    }
    value
}
