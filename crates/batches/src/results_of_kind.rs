//! Finds the messages of a turn that are results of tools of one kind.

use std::collections::HashMap;

use model::{Message, Role};
use serde_json::Value;

use crate::item::ItemCall;

/// The calls of a turn. They are needed because a result is recognized by the tool of its call.
pub(crate) struct ResultsOfKind<'a> {
    /// For each call id, true if all calls with that id are of the kind.
    of_calls: HashMap<&'a str, bool>,
    is_kind: fn(&str) -> bool,
}

impl<'a> ResultsOfKind<'a> {
    pub(crate) fn new(messages: &'a [Message], is_kind: fn(&str) -> bool) -> Self {
        let mut of_calls = HashMap::new();
        for call in messages.iter().flat_map(|message| ItemCall::all_of(message.tool_calls.as_ref())) {
            *of_calls.entry(call.id).or_insert(true) &= is_kind(call.name);
        }
        Self { of_calls, is_kind }
    }

    pub(crate) fn has(&self, message: &Message) -> bool {
        let named = message.metadata.get("tool_name").and_then(Value::as_str);
        let of_call = |id: &str| self.of_calls.get(id).copied().unwrap_or_default();
        message.role == Role::Tool
            && named.map_or_else(|| message.tool_call_id.as_deref().is_some_and(of_call), self.is_kind)
    }
}
