//! Contexts and settings as the body of a request.

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use wire::work::ContextMessage;

use super::calls::Call;
use crate::request::Turn;

/// Settings of an agent that are passed on under their own names.
const PASSED_ON: &[&str] = &[
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "reasoning_effort",
    "response_format",
    "parallel_tool_calls",
    "tool_choice",
];

/// The agent's model, or the service's.
pub(super) fn model<'a>(turn: &'a Turn, default: &'a str) -> &'a str {
    turn.text_setting("model").unwrap_or(default)
}

/// The names in the agent's `tools`; none given: all that there are.
pub(super) fn allowed_tools(turn: &Turn) -> Option<Vec<String>> {
    let names = turn.settings.get("tools")?.as_array()?;
    Some(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Ids of the calls that the context has.
pub(super) fn call_ids(turn: &Turn) -> HashSet<String> {
    turn.context.iter().flat_map(|message| &message.tool_calls).map(|call| call.id.clone()).collect()
}

/// The instructions of the agent's `system`, what stands for the turns before, then the context.
pub(super) fn of_context(turn: &Turn) -> Vec<Value> {
    let system = |text: &str| json!({"role": "system", "content": text});
    let before = turn.text_setting("system").into_iter().chain(turn.summary.as_deref());
    before.map(system).chain(turn.context.iter().map(message)).collect()
}

fn message(message: &ContextMessage) -> Value {
    let calls = || message.tool_calls.iter().map(|call| tool_call(&call.id, &call.name, &call.arguments));
    match (&message.tool_call_id, message.tool_calls.is_empty()) {
        (Some(id), _) => tool(id, &message.content),
        (None, false) => assistant_with(&message.content, calls().collect()),
        (None, true) => json!({"role": message.role, "content": message.content}),
    }
}

/// What the model has said in this turn. Endpoints that send `reasoning_content` want it back as long as the turn lasts;
/// others refuse it.
pub(super) fn assistant(text: &str, reasoning_content: &str, calls: &[Call]) -> Value {
    let calls = calls.iter().map(|call| tool_call(&call.name.id, &call.name.tool, &call.arguments));
    let mut message = assistant_with(text, calls.collect());
    if !reasoning_content.is_empty() {
        message["reasoning_content"] = json!(reasoning_content);
    }
    message
}

fn assistant_with(text: &str, calls: Vec<Value>) -> Value {
    // With calls, absent text is null: some endpoints refuse an empty one.
    let content = if text.is_empty() { Value::Null } else { json!(text) };
    json!({"role": "assistant", "content": content, "tool_calls": calls})
}

/// The result of a call.
pub(super) fn tool(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The body of one request.
pub(super) fn request_body(turn: &Turn, default_model: &str, history: &[Value], tools: &[Value]) -> Value {
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model(turn, default_model)));
    body.insert("messages".to_owned(), json!(history));
    body.insert("stream".to_owned(), json!(true));
    // Some endpoints refuse what they do not know: the agent's settings can do without the counts.
    if turn.settings.get("include_usage") != Some(&json!(false)) {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    for key in PASSED_ON {
        if let Some(value) = turn.settings.get(*key).filter(|value| !value.is_null()) {
            body.insert((*key).to_owned(), value.clone());
        }
    }
    if tools.is_empty() {
        // Endpoints refuse a choice among nothing.
        body.remove("tool_choice");
        body.remove("parallel_tool_calls");
    } else {
        body.insert("tools".to_owned(), json!(tools));
    }
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;

    fn turn(settings: Value, context: Value) -> Turn {
        let mut request = request();
        request["settings"] = settings;
        request["context"] = context;
        Turn::read(request.to_string().as_bytes(), 1).unwrap()
    }

    #[test]
    fn a_context_becomes_messages() {
        let turn = turn(
            json!({"system": "Be brief."}),
            json!([
                {"role": "user", "content": "weather?", "message_id": "1"},
                {"role": "assistant", "content": "", "message_id": "2", "tool_calls": [{"id": "c", "name": "f", "arguments": ""}]},
                {"role": "tool", "content": "rain", "message_id": "3", "tool_call_id": "c"},
                {"role": "assistant", "content": "It rains.", "message_id": "4"},
                {"role": "user", "content": "thanks", "message_id": "5"},
            ]),
        );
        assert_eq!(
            json!(of_context(&turn)),
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "rain"},
                {"role": "assistant", "content": "It rains."},
                {"role": "user", "content": "thanks"},
            ])
        );
        assert_eq!(call_ids(&turn), HashSet::from(["c".to_owned()]));
    }

    #[test]
    fn settings_override_and_only_known_ones_are_passed_on() {
        let settings = json!({
            "model": "own", "temperature": 0.2, "stop": ["x"], "seed": null, "tool_choice": "auto", "tools": ["f", 7],
            "messages": "mine", "stream": false, "api_key": "k",
        });
        let turn = turn(settings, json!([{"role": "user", "content": "hi", "message_id": "1"}]));
        let history = of_context(&turn);
        assert_eq!(
            request_body(&turn, "default", &history, &[]),
            json!({
                "model": "own", "messages": [{"role": "user", "content": "hi"}], "stream": true,
                "stream_options": {"include_usage": true}, "temperature": 0.2, "stop": ["x"],
            })
        );
        let with_tools = request_body(&turn, "default", &history, &[json!({"type": "function"})]);
        assert_eq!(
            (&with_tools["tool_choice"], &with_tools["tools"]),
            (&json!("auto"), &json!([{"type": "function"}]))
        );
        assert_eq!(allowed_tools(&turn), Some(vec!["f".to_owned()]));
        assert_eq!(model(&turn, "default"), "own");
    }

    #[test]
    fn what_not_every_endpoint_knows_can_be_left_out() {
        let context = json!([{"role": "user", "content": "hi", "message_id": "1"}]);
        let turn = turn(json!({"include_usage": false}), context);
        let body = request_body(&turn, "m", &[], &[]);
        assert_eq!(body, json!({"model": "m", "messages": [], "stream": true}));
        assert_eq!(assistant("x", "", &[]), json!({"role": "assistant", "content": "x", "tool_calls": []}));
        assert_eq!(assistant("x", "hm", &[])["reasoning_content"], json!("hm"));
    }
}
