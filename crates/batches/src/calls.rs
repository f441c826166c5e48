//! Assembles tool calls and their results from the pieces in which they arrive.

use std::collections::BTreeSet;

use model::{Chunk, ChunkKind};
use serde::de::IgnoredAny;
use serde_json::Value;

/// One call, as far as it has arrived.
#[derive(Debug, Default)]
pub(crate) struct CallProgress {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The arguments; `None` if only a result has arrived.
    pub(crate) arguments: Option<String>,
    pub(crate) result: Option<String>,
    /// True if a part of the result is marked as an error.
    pub(crate) is_error: bool,
}

/// The calls of a step, or of a message without a turn, in the order in which they began.
///
/// A piece belongs to the call of its `tool_call_id`. Calls that share an id, or have none, are
/// separated as far as possible. A call does not continue if it has a result, another name, or
/// complete arguments. Each result chunk answers the next of these calls. A producer that repeats
/// the complete arguments of a call does not begin another call.
#[derive(Debug, Default)]
pub(crate) struct Calls(pub(crate) Vec<CallProgress>);

impl Calls {
    /// Adds a piece of a call or a result, and returns the index of its call. Ignores other chunks.
    pub(crate) fn add(&mut self, chunk: &Chunk) -> Option<usize> {
        let text_at = |key: &str| chunk.metadata.get(key).and_then(Value::as_str).unwrap_or_default();
        let (id, name) = (text_at("tool_call_id"), text_at("tool_name"));
        let is_again =
            |call: &CallProgress| call.id == id && !id.is_empty() && call.is_repeated_by(name, &chunk.text);
        let at = match chunk.kind {
            ChunkKind::ToolCall if self.0.iter().any(is_again) => return None,
            ChunkKind::ToolCall => self.0.iter().rposition(|call| call.id == id).filter(|at| {
                let call = &self.0[*at];
                call.goes_on(name, &chunk.text)
            }),
            ChunkKind::ToolResult => {
                let of_id = || (0..self.0.len()).filter(|at| self.0[*at].id == id);
                of_id().find(|at| self.0[*at].result.is_none()).or_else(|| of_id().next_back())
            }
            ChunkKind::Content | ChunkKind::Metadata | ChunkKind::Error | ChunkKind::Reasoning => {
                return None;
            }
        };
        let at = at.unwrap_or_else(|| {
            self.0.push(CallProgress { id: id.to_owned(), ..CallProgress::default() });
            self.0.len() - 1
        });
        let call = &mut self.0[at];
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        if chunk.kind == ChunkKind::ToolCall {
            call.arguments.get_or_insert_default().push_str(&chunk.text);
        } else {
            call.result.get_or_insert_default().push_str(&chunk.text);
            call.is_error |= chunk.metadata.get("is_error") == Some(&Value::Bool(true));
        }
        Some(at)
    }

    pub(crate) fn have_results(&self) -> bool {
        self.0.iter().any(|call| call.result.is_some())
    }
}

impl CallProgress {
    /// True if a piece with this name may continue this call.
    fn goes_on(&self, name: &str, text: &str) -> bool {
        let is_of_name = name.is_empty() || self.name.is_empty() || self.name == name;
        self.result.is_none() && is_of_name && !self.is_whole_before(text)
    }

    /// True if this piece only repeats the arguments so far.
    fn is_repeated_by(&self, name: &str, text: &str) -> bool {
        let is_of_name = name.is_empty() || self.name == name;
        let is_same = self.arguments.as_deref().is_some_and(|arguments| arguments.trim() == text.trim());
        self.result.is_none() && is_of_name && is_same && self.is_whole_before(text)
    }

    /// True if the arguments are complete before this piece. In JSON, an opening bracket directly
    /// after a closing one occurs only within a string, so the arguments are rarely parsed.
    fn is_whole_before(&self, text: &str) -> bool {
        let arguments = self.arguments.as_deref().unwrap_or_default();
        arguments.trim_end().ends_with('}')
            && text.trim_start().starts_with('{')
            && serde_json::from_str::<IgnoredAny>(arguments).is_ok()
    }
}

/// The number of stored calls, `[{"id", …}]`, that are not identified by their ids: they have no
/// id, or the id of an earlier call.
pub fn ambiguous_calls(calls: Option<&Value>) -> usize {
    let calls = calls.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut seen = BTreeSet::from([""]);
    let ids = calls.iter().map(|call| call.get("id").and_then(Value::as_str).unwrap_or_default());
    ids.filter(|id| !seen.insert(id)).count()
}

#[cfg(test)]
mod tests {
    use model::Metadata;
    use serde_json::json;

    use super::*;

    /// Each piece of a call is `id name text`; each piece of a result is `=id text`.
    fn put_together(pieces: &[&str]) -> String {
        let mut calls = Calls::default();
        for piece in pieces {
            let parts: Vec<&str> = piece.splitn(3, ' ').collect();
            let (kind, metadata, text) = match parts.as_slice() {
                [id, text] => (ChunkKind::ToolResult, json!({"tool_call_id": id[1..]}), *text),
                [id, name, text] => {
                    (ChunkKind::ToolCall, json!({"tool_call_id": id, "tool_name": name}), *text)
                }
                _ => panic!("{piece}"),
            };
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            calls.add(&Chunk { kind, metadata, ..Chunk::content(0, text, false) });
        }
        let shown = calls.0.iter().map(|call| {
            let result = call.result.as_ref().map(|result| format!("={result}")).unwrap_or_default();
            format!("{} {}({}){result}", call.id, call.name, call.arguments.as_deref().unwrap_or("?"))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn pieces_of_one_call_are_joined_also_between_those_of_others() {
        assert_eq!(
            put_together(&[r#"a f {"x":"#, r#"b g {"#, r#"a  1}"#, "b g }"]),
            r#"a f({"x":1}), b g({})"#
        );
        assert_eq!(put_together(&["a f [{},", "a f {}", "a f ]"]), "a f([{},{}])");
        let text = [r#"a f {"code":"fn x() {}"#, r#"a f { y }"}"#];
        assert_eq!(put_together(&text), r#"a f({"code":"fn x() {}{ y }"})"#, "braces within a text");
        assert_eq!(put_together(&["a f {}", "a f \n"]), "a f({}\n)");
        assert_eq!(put_together(&["=a A", "=a B"]), "a (?)=AB");
        assert_eq!(put_together(&["a f {", "a f }", "a f {}"]), "a f({})", "repeated, whole");
    }

    #[test]
    fn calls_of_one_id_are_kept_apart() {
        assert_eq!(put_together(&[r#"a f {"x":1}"#, r#"a f {"y":2}"#]), r#"a f({"x":1}), a f({"y":2})"#);
        assert_eq!(put_together(&[" f {}", " f {", " f }", " g "]), " f({}),  f({}),  g()");
        assert_eq!(put_together(&["a f 1", "a g 2"]), "a f(1), a g(2)", "by their names");
        assert_eq!(
            put_together(&["a f 1", "=a A", "a f 2"]),
            "a f(1)=A, a f(2)",
            "by the result between them"
        );
    }

    #[test]
    fn results_of_one_id_answer_one_call_after_the_other() {
        let calls = ["a f {}", "a f {\"n\":1}", "b f {}"];
        let answered = |results: &[&str]| put_together(&[&calls[..], results].concat());
        assert_eq!(answered(&["=a A", "=b X", "=a B"]), r#"a f({})=A, a f({"n":1})=B, b f({})=X"#);
        assert_eq!(answered(&["=a A", "=a B", "=a C"]), r#"a f({})=A, a f({"n":1})=BC, b f({})"#);
    }

    #[test]
    fn calls_with_equal_or_missing_ids_are_counted() {
        let count = |ids: Value| {
            let calls = ids.as_array().unwrap().iter().map(|id| json!({ "id": id })).collect::<Vec<_>>();
            ambiguous_calls(Some(&json!(calls)))
        };
        assert_eq!(ambiguous_calls(None), 0);
        assert_eq!(count(json!(["a", "b"])), 0);
        assert_eq!(count(json!(["a", "b", "a", "a"])), 2);
        assert_eq!(count(json!(["", "a", ""])), 2);
    }
}
