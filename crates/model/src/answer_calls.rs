//! Collects the model calls of one attempt at an answer from its chunks.

use std::collections::{BTreeMap, BTreeSet};

use crate::chunk::{Chunk, ChunkKind};
use crate::model_call::ModelCall;

/// Model calls of one attempt, collected from its chunks in order.
///
/// A call is known when it begins: a report with `estimated` opens it, and a later report with the
/// same `id` and without `estimated` replaces it. Text that arrives meanwhile counts as output of a
/// call that is never replaced.
#[derive(Debug, Clone, Default)]
pub struct AnswerCalls {
    calls: Vec<ReportedCall>,
    by_id: BTreeMap<Box<str>, usize>,
    /// Calls without the provider's counts; text that follows belongs to the last of them.
    open: BTreeSet<usize>,
    /// Usage of the whole answer, from its final chunk.
    summed: Option<ModelCall>,
}

#[derive(Debug, Clone)]
struct ReportedCall {
    call: ModelCall,
    has_id: bool,
    /// Bytes of text, reasoning and arguments received while this call was the last open one.
    written_bytes: usize,
}

impl AnswerCalls {
    /// Takes the next chunk.
    pub fn take(&mut self, chunk: &Chunk) {
        for listed in chunk.metadata.model_calls().unwrap_or_default() {
            self.report(listed.id, listed.call);
        }
        if matches!(chunk.kind, ChunkKind::Content | ChunkKind::Reasoning | ChunkKind::ToolCall)
            && let Some(last) = self.open.last()
        {
            self.calls[*last].written_bytes += chunk.text.len();
        }
        if chunk.is_final {
            self.summed = chunk.metadata.summed_call();
        }
    }

    fn report(&mut self, id: Option<Box<str>>, call: ModelCall) {
        let known = id.as_ref().and_then(|id| self.by_id.get(id)).copied();
        let index = known.unwrap_or(self.calls.len());
        if call.is_estimated {
            // An estimate never replaces the provider's counts.
            if known.is_some() && !self.open.contains(&index) {
                return;
            }
            self.open.insert(index);
        } else {
            self.open.remove(&index);
        }
        match self.calls.get_mut(index) {
            Some(reported) => {
                let model = call.model.is_none().then(|| reported.call.model.take()).flatten();
                reported.call = ModelCall { model: model.or(call.model), ..call };
            }
            None => {
                self.calls.push(ReportedCall { call, has_id: id.is_some(), written_bytes: 0 });
                if let Some(id) = id {
                    self.by_id.insert(id, index);
                }
            }
        }
    }

    /// The calls in the order in which they began.
    pub fn finish(self) -> Vec<ModelCall> {
        let Self { calls, open, summed, .. } = self;
        if open.len() == calls.len()
            && let Some(summed) = summed
        {
            // No call was reported completely, so the final chunk's counts are those of all calls.
            return vec![summed];
        }
        // A call that was announced but used nothing was refused by the provider.
        let is_made = |reported: &ReportedCall| {
            let ModelCall { is_estimated, input_tokens, output_tokens, .. } = reported.call;
            is_estimated || !reported.has_id || input_tokens > 0 || output_tokens > 0
        };
        let call = |reported: ReportedCall| {
            let mut call = reported.call;
            if call.is_estimated {
                call.output_tokens =
                    call.output_tokens.max(ModelCall::estimated_tokens(reported.written_bytes));
            }
            call
        };
        calls.into_iter().filter(is_made).map(call).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Metadata;

    fn calls(chunks: &[(ChunkKind, &str, Value)]) -> Vec<Value> {
        let mut calls = AnswerCalls::default();
        for (id, (kind, text, metadata)) in (0..).zip(chunks) {
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            let is_final = id as usize + 1 == chunks.len();
            calls.take(&Chunk { kind: *kind, metadata, ..Chunk::content(id, text, is_final) });
        }
        calls.finish().iter().map(ModelCall::to_value).collect()
    }

    const NONE: (ChunkKind, &str) = (ChunkKind::Metadata, "");

    fn lists(calls: Value) -> (ChunkKind, &'static str, Value) {
        (NONE.0, NONE.1, json!({"model_calls": calls}))
    }

    fn begins(id: &str) -> (ChunkKind, &'static str, Value) {
        lists(json!([{"id": id, "model": "m", "input_tokens": 100, "estimated": true}]))
    }

    #[test]
    fn a_call_that_was_cut_has_the_output_that_came() {
        let content = |text| (ChunkKind::Content, text, json!({}));
        let cut = [
            content("sixteen bytes...before it began"),
            begins("a"),
            (ChunkKind::Reasoning, "sixteen bytes...", json!({})),
            content("sixteen bytes..."),
            (ChunkKind::ToolCall, "{\"sixteen\":bytes", json!({})),
            (ChunkKind::ToolResult, "the result of a tool is no output", json!({})),
        ];
        assert_eq!(
            calls(&cut),
            [json!({"model": "m", "input_tokens": 100, "output_tokens": 15, "estimated": true})]
        );
        // The workflow's own estimate counts if it is larger.
        let own = lists(json!([{"id": "a", "input_tokens": 90, "output_tokens": 70, "estimated": true}]));
        let expected = json!({"model": "m", "input_tokens": 90, "output_tokens": 70, "estimated": true});
        assert_eq!(calls(&[begins("a"), content("so"), own]), [expected]);
    }

    #[test]
    fn the_counts_of_the_provider_replace_the_estimate() {
        let end = |id: &str| lists(json!([{"id": id, "input_tokens": 7, "output_tokens": 3}]));
        let counted = json!({"model": "m", "input_tokens": 7, "output_tokens": 3});
        let content = (ChunkKind::Content, "sixteen bytes...", json!({}));
        assert_eq!(calls(&[begins("a"), content.clone(), end("a")]), slice(&counted));
        assert_eq!(calls(&[begins("a"), end("a"), begins("a")]), slice(&counted), "a late repetition");
        let cut = json!({"model": "m", "input_tokens": 100, "output_tokens": 5, "estimated": true});
        assert_eq!(
            calls(&[begins("a"), end("a"), begins("b"), content.clone()]),
            [counted.clone(), cut.clone()]
        );
        // The text belongs to the call that began last; the provider's counts of the other call did
        // not come either.
        let silent = json!({"model": "m", "input_tokens": 100, "output_tokens": 0, "estimated": true});
        assert_eq!(calls(&[begins("a"), begins("b"), content.clone()]), [silent, cut]);
        let usage = json!({"model": "m", "usage": {"prompt_tokens": 7, "completion_tokens": 3}});
        let last = (ChunkKind::Content, "so", usage);
        assert_eq!(calls(&[begins("a"), content, last.clone()]), slice(&counted), "the sum of the answer");
        assert_eq!(calls(&[begins("a"), end("a"), last]), slice(&counted), "a sum of calls that are known");
    }

    fn slice(call: &Value) -> Vec<Value> {
        vec![call.clone()]
    }

    #[test]
    fn a_call_that_the_provider_refused_is_none() {
        let refused = lists(json!([{"id": "a", "input_tokens": 0, "output_tokens": 0}]));
        assert_eq!(calls(&[begins("a"), refused]), Vec::<Value>::new());
        let bare = lists(json!([{}]));
        assert_eq!(calls(&[bare]), [json!({"input_tokens": 0, "output_tokens": 0})], "the old form is kept");
    }

    #[test]
    fn calls_without_an_id_are_apart() {
        let one = json!({"model": "m", "input_tokens": 1, "output_tokens": 2});
        let estimated = json!({"input_tokens": 5, "estimated": true});
        let cut = json!({"input_tokens": 5, "output_tokens": 0, "estimated": true});
        assert_eq!(calls(&[lists(json!([one, one])), lists(json!([estimated]))]), [one.clone(), one, cut]);
    }
}
