//! The rules of two providers, derived from their refusals.

use std::collections::BTreeSet;

use serde_json::Value;

/// Checks messages by the rules of OpenAI's chat completions.
pub(crate) fn openai(messages: &[Value]) -> Result<(), String> {
    let mut known = BTreeSet::new();
    let mut at = 0;
    let first = messages.iter().find(|message| message["role"] != "system");
    if first.is_none_or(|first| first["role"] != "user") {
        return Err("the first message is not the user's".to_owned());
    }
    while let Some(message) = messages.get(at) {
        at += 1;
        match message["role"].as_str() {
            Some("system" | "user") => text(&message["content"]).map_err(|error| format!("{at}: {error}"))?,
            Some("assistant") => {
                let Some(calls) = message.get("tool_calls") else {
                    text(&message["content"]).map_err(|error| format!("{at}: {error}"))?;
                    continue;
                };
                if !message["content"].is_null() {
                    text(&message["content"]).map_err(|error| format!("{at}: {error}"))?;
                }
                let calls = calls
                    .as_array()
                    .filter(|calls| !calls.is_empty())
                    .ok_or("[] is too short - 'tool_calls'")?;
                let mut open = BTreeSet::new();
                for call in calls {
                    let id = openai_call(call)?;
                    if !known.insert(id.to_owned()) || !open.insert(id) {
                        return Err(format!("{at}: the id {id} was used before"));
                    }
                }
                while let Some(result) = messages.get(at).filter(|result| result["role"] == "tool") {
                    at += 1;
                    text(&result["content"])?;
                    let id = result["tool_call_id"].as_str().ok_or("a tool message without an id")?;
                    if !open.remove(id) {
                        return Err(format!("{at}: {id} is no open call of the message before"));
                    }
                }
                if !open.is_empty() {
                    return Err(format!("{at}: tool_call_ids did not have response messages: {open:?}"));
                }
            }
            Some("tool") => {
                return Err(format!("{at}: role 'tool' must be a response to a message with 'tool_calls'"));
            }
            other => return Err(format!("{at}: role {other:?}")),
        }
    }
    match messages.last().and_then(|last| last["role"].as_str()) {
        Some("user" | "tool") => Ok(()),
        last => Err(format!("the last message is by {last:?}")),
    }
}

fn openai_call(call: &Value) -> Result<&str, String> {
    let id = call["id"].as_str().filter(|id| (1..=40).contains(&id.len())).ok_or("string too long: id")?;
    let name = call["function"]["name"].as_str().unwrap_or_default();
    if call["type"] != "function" || !is_word(name, 64) {
        return Err(format!("the call {id} of {name:?}"));
    }
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().ok_or("arguments")?)
        .map_err(|error| error.to_string())?;
    if arguments.is_object() { Ok(id) } else { Err(format!("the arguments of {id} are no object")) }
}

/// Checks messages by the rules of Anthropic.
pub(crate) fn anthropic(system: Option<&Value>, messages: &[Value]) -> Result<(), String> {
    for block in system.into_iter().flat_map(|blocks| blocks.as_array().into_iter().flatten()) {
        text(&block["text"])?;
    }
    let mut known = BTreeSet::new();
    let mut open: BTreeSet<String> = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        if message["role"] != expected {
            return Err(format!("{at}: roles must alternate, beginning with the user"));
        }
        let blocks =
            message["content"].as_array().filter(|blocks| !blocks.is_empty()).ok_or("empty content")?;
        let mut only_results = true;
        let mut called = BTreeSet::new();
        for block in blocks {
            match block["type"].as_str() {
                Some("text") => {
                    only_results = false;
                    text(&block["text"]).map_err(|error| format!("{at}: {error}"))?;
                    if !called.is_empty() {
                        return Err(format!("{at}: text after tool_use"));
                    }
                }
                Some("tool_use") if expected == "assistant" => {
                    let id = block["id"].as_str().filter(|id| is_word(id, 64)).ok_or("id does not match")?;
                    if !is_word(block["name"].as_str().unwrap_or_default(), 64) || !block["input"].is_object()
                    {
                        return Err(format!("{at}: name or input of {id}"));
                    }
                    if !known.insert(id.to_owned()) {
                        return Err(format!("{at}: `tool_use` ids must be unique: {id}"));
                    }
                    called.insert(id.to_owned());
                }
                Some("tool_result") if expected == "user" => {
                    let id = block["tool_use_id"].as_str().ok_or("a result without an id")?;
                    text(&block["content"])?;
                    if !only_results {
                        return Err(format!("{at}: tool_result blocks must come first"));
                    }
                    if !open.remove(id) {
                        return Err(format!("{at}: unexpected `tool_use_id` {id}"));
                    }
                }
                other => return Err(format!("{at}: a block {other:?} of the {expected}")),
            }
        }
        if !open.is_empty() {
            return Err(format!("{at}: `tool_use` ids were found without `tool_result`: {open:?}"));
        }
        open = called;
    }
    if messages.len().is_multiple_of(2) {
        return Err("the last message must be the user's".to_owned());
    }
    Ok(())
}

fn text(value: &Value) -> Result<(), String> {
    match value.as_str() {
        Some(text) if text.chars().any(|c| !c.is_whitespace()) => Ok(()),
        _ => Err(format!("text must be non-blank: {value}")),
    }
}

fn is_word(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[test]
fn the_validator_refuses_what_the_providers_refuse() {
    use serde_json::json;
    let user = json!({"role": "user", "content": "x"});
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "a", "content": "y"});
    let says = json!({"role": "assistant", "content": "z"});
    assert_eq!(openai(&[user.clone(), calls.clone(), result.clone()]), Ok(()));
    for wrong in [
        vec![],
        vec![says.clone(), user.clone()],
        vec![user.clone(), says.clone()],
        vec![user.clone(), calls.clone()],
        vec![user.clone(), result.clone()],
        vec![user.clone(), calls.clone(), user.clone(), result.clone()],
        vec![user.clone(), calls.clone(), result.clone(), result.clone()],
        vec![user.clone(), calls.clone(), result.clone(), calls.clone(), result.clone()],
        vec![json!({"role": "user", "content": " \n"})],
    ] {
        assert!(openai(&wrong).is_err(), "{wrong:?}");
    }
    let user = json!({"role": "user", "content": [{"type": "text", "text": "x"}]});
    let calls =
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]});
    let result =
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "y"}]});
    let says = json!({"role": "assistant", "content": [{"type": "text", "text": "z"}]});
    assert_eq!(anthropic(None, &[user.clone(), calls.clone(), result.clone()]), Ok(()));
    for wrong in [
        vec![],
        vec![says.clone()],
        vec![user.clone(), says.clone()],
        vec![user.clone(), user.clone()],
        vec![user.clone(), calls.clone(), user.clone()],
        vec![result.clone()],
        vec![user.clone(), calls.clone(), result.clone(), calls.clone(), result.clone()],
        vec![json!({"role": "user", "content": []})],
        vec![json!({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]})],
    ] {
        assert!(anthropic(None, &wrong).is_err(), "{wrong:?}");
    }
}
