//! What the calls of a turn have used, as the metadata of its last chunk tell it.

use model::ModelCall;
use serde_json::{Map, Value, json};

use crate::metrics;
use crate::reader::ModelReply;

/// What the whole turn has cost.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// The sum of the calls that the endpoint has counted.
    sum: Option<ModelCall>,
    steps: u32,
}

impl Spent {
    pub(super) fn add(&mut self, counted: Option<&ModelCall>) {
        self.steps += 1;
        let Some(call) = counted else { return };
        metrics::model_tokens(call.input_tokens, call.output_tokens);
        match &mut self.sum {
            Some(sum) => sum.add(call),
            None => self.sum = Some(call.clone()),
        }
    }

    /// Input and output tokens of all calls so far.
    pub(super) fn tokens(&self) -> u64 {
        self.sum.as_ref().map_or(0, |sum| sum.input_tokens.saturating_add(sum.output_tokens))
    }

    /// The metadata of the final chunk. An endpoint that counts nothing leaves the counts out: none is not zero.
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

/// In the words of OpenAI; what the endpoint does not say is left out.
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
