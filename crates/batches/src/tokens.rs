//! Counts the tokens of texts and messages.

use model::{ModelCall, Role};
use serde_json::Value;

use crate::{Batch, Item};

/// Approximate tokens around a message: role, separators, ids.
pub const PER_MESSAGE: u64 = 4;
/// Approximate tokens around a call.
const PER_CALL: u64 = 8;

/// Counts the tokens of a text.
pub trait TokenCounter: Send + Sync {
    /// The name of the counter. Counters with the same name must give the same counts.
    fn name(&self) -> &'static str;

    fn count(&self, text: &str) -> u64;
}

/// Estimates from the length of a text: [`ModelCall::estimated_tokens`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EstimatingCounter;

impl TokenCounter for EstimatingCounter {
    fn name(&self) -> &'static str {
        "estimate"
    }

    fn count(&self, text: &str) -> u64 {
        ModelCall::estimated_tokens(text.len())
    }
}

/// Tokens of a batch in a context.
pub fn of_batch(batch: &Batch, counter: &dyn TokenCounter) -> u64 {
    batch.items().iter().map(|item| item.tokens(counter)).sum()
}

/// Tokens of a message in a context: the provider's count, or else that of the counter.
pub fn of_item(item: &Item, counter: &dyn TokenCounter) -> u64 {
    counted(item).map_or_else(|| text_of(item, counter), |count| count + PER_MESSAGE)
}

fn text_of(item: &Item, counter: &dyn TokenCounter) -> u64 {
    let calls = item.calls();
    let of_call = |call: &crate::ItemCall<'_>| {
        let texts = counter.count(call.name) + counter.count(call.arguments);
        PER_CALL + texts + call.result.map_or(0, |result| counter.count(result) + PER_MESSAGE)
    };
    counter.count(&item.content) + PER_MESSAGE + calls.iter().map(of_call).sum::<u64>()
}

/// The provider's count of this one message.
///
/// `token_count` is `tokens_used` of the final chunk, and producers disagree on its meaning. Many
/// report the cost of the whole turn, with the prompt of every step. Such a count would make each
/// batch look as large as its own context. So `usage.completion_tokens` is used first if the answer
/// had one step, and a count that the metadata shows to be a total is ignored. A text never has
/// more tokens than bytes.
pub fn counted(item: &Item) -> Option<u64> {
    if item.role != Role::Assistant {
        return None;
    }
    let number = |value: Option<&Value>| value.and_then(Value::as_u64);
    let usage = item.metadata.get("usage");
    let of_usage = |key: &str| number(usage.and_then(|usage| usage.get(key)));
    let one_step = number(item.metadata.get("steps")).unwrap_or(1) <= 1;
    let is_total = item.token_count.is_some() && of_usage("total_tokens") == item.token_count;
    let count = match of_usage("completion_tokens") {
        Some(completion) if one_step => Some(completion),
        _ if is_total => None,
        _ => item.token_count,
    };
    let calls = || item.tool_calls.as_ref().map_or(0, |calls| calls.to_string().len());
    let fits =
        |count: &u64| *count <= item.content.len() as u64 || *count <= (item.content.len() + calls()) as u64;
    count.filter(|count| *count > 0 && fits(count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{item, with_metadata};

    #[test]
    fn an_estimate_is_bytes_by_3_2_rounded_up() {
        let count = |bytes: usize| EstimatingCounter.count(&"x".repeat(bytes));
        assert_eq!([0, 1, 3, 4, 16, 17, 3_200].map(count), [0, 1, 1, 2, 5, 6, 1_000]);
        assert_eq!(EstimatingCounter.count("日本"), 2);
    }

    #[test]
    fn a_message_is_its_text_its_calls_and_what_is_around_them() {
        assert_eq!(of_item(&item("1.0u"), &EstimatingCounter), 3 + 4);
        // Counts "tool_c" and "{}", but no text.
        assert_eq!(of_item(&item("1.1A:c"), &EstimatingCounter), 4 + 8 + 2 + 1);
    }

    #[test]
    fn the_providers_count_wins_where_it_is_one() {
        let tokens = |count: Option<u64>, metadata| {
            let mut answer = with_metadata(item("1.1a"), metadata);
            answer.content = "x".repeat(320);
            answer.token_count = count;
            of_item(&answer, &EstimatingCounter)
        };
        assert_eq!(tokens(None, json!({})), 100 + 4);
        assert_eq!(tokens(Some(80), json!({})), 80 + 4);
        assert_eq!(tokens(Some(0), json!({})), 100 + 4);
        assert_eq!(tokens(Some(321), json!({})), 100 + 4, "more than bytes: it counts something else");
        let usage = json!({"usage": {"prompt_tokens": 200, "completion_tokens": 90, "total_tokens": 290}});
        assert_eq!(tokens(Some(290), usage), 90 + 4);
        let steps = json!({"steps": 3, "usage": {"completion_tokens": 90, "total_tokens": 290}});
        assert_eq!(tokens(Some(290), steps), 100 + 4, "of three steps, not of this message");
        let mut input = item("1.0u");
        input.token_count = Some(1);
        assert_eq!(of_item(&input, &EstimatingCounter), 3 + 4, "a producer counts what it produced");
    }
}
