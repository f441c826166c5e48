use serde_json::json;

use super::*;

/// A request in the middle of a turn: the model has called two tools.
fn chat() -> Value {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let function =
        json!({"name": "tide", "description": "Tides", "parameters": {"type": "object", "properties": {}}});
    json!({
        "model": "m-1", "stream": true, "stream_options": {"include_usage": true},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "In French."},
            {"role": "user", "content": "Tide?"},
            {"role": "assistant", "content": "One moment.", "tool_calls": [call("a:1", "tide", "{\"h\":1}"), call("b", "tide", "{}")], "native": [{"kept": true}]},
            {"role": "tool", "tool_call_id": "a:1", "content": "high"},
            {"role": "tool", "tool_call_id": "b", "content": "low"},
        ],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0.5, "max_tokens": 100, "stop": "x", "user": "u", "tool_choice": "required", "parallel_tool_calls": false,
    })
}

#[test]
fn chat_completions_never_bear_what_is_for_others() {
    let body = Interface::ChatCompletions.body(chat());
    assert!(!body.to_string().contains("native"));
    assert_eq!(body["messages"][3]["content"], "One moment.");
}

#[test]
fn anthropic_wants_blocks_roles_in_turn_and_marks() {
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        Interface::Anthropic.body(chat()),
        json!({
            "model": "m-1", "stream": true, "max_tokens": 100, "temperature": 0.5, "stop_sequences": ["x"], "metadata": {"user_id": "u"},
            "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "In French.", "cache_control": mark}],
            "tools": [{"name": "tide", "description": "Tides", "input_schema": {"type": "object", "properties": {}}, "cache_control": mark}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Tide?"}]},
                {"role": "assistant", "content": [
                    {"kept": true}, {"type": "text", "text": "One moment."},
                    {"type": "tool_use", "id": "a_1", "name": "tide", "input": {"h": 1}},
                    {"type": "tool_use", "id": "b", "name": "tide", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a_1", "content": "high"},
                    {"type": "tool_result", "tool_use_id": "b", "content": "low", "cache_control": mark}]},
            ],
        })
    );
    let mut thinking = chat();
    (thinking["reasoning_effort"], thinking["max_tokens"]) = (json!("medium"), json!(6_000));
    let body = Interface::Anthropic.body(thinking);
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 4_096}));
    assert!(body["max_tokens"].as_u64() > Some(4_096) && body.get("temperature").is_none());
    assert_eq!(body.get("tool_choice"), None, "refused beside thinking");
}

#[test]
fn thinking_of_anthropic_never_raises_the_limit() {
    for (effort, limit, sent, budget) in [
        ("high", Some(500), 500, None),
        ("high", Some(0), 0, None),
        ("low", Some(2_047), 2_047, None),
        ("low", Some(2_048), 2_048, Some(1_024)),
        ("high", Some(3_000), 3_000, Some(1_976)),
        ("high", Some(20_000), 20_000, Some(16_384)),
        ("max", Some(64_000), 64_000, Some(32_768)),
        ("medium", None, 12_288, Some(4_096)),
        ("high", None, 24_576, Some(16_384)),
        ("max", None, 32_000, Some(30_976)),
        ("none", None, 8_192, None),
        ("none", Some(20_000), 20_000, None),
    ] {
        for key in ["max_tokens", "max_completion_tokens"] {
            let mut request = chat();
            (request["max_tokens"], request["reasoning_effort"]) = (Value::Null, json!(effort));
            request[key] = json!(limit);
            let body = Interface::Anthropic.body(request);
            assert_eq!(body["max_tokens"], json!(sent), "{effort} {limit:?}");
            assert_eq!(body["thinking"]["budget_tokens"].as_u64(), budget, "{effort} {limit:?}");
            // Without thinking the other settings apply.
            assert_eq!(body.get("temperature").is_some(), budget.is_none(), "{effort} {limit:?}");
        }
    }
}

#[test]
fn google_wants_contents_and_names_of_results() {
    assert_eq!(
        Interface::Google.body(chat()),
        json!({
            "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "In French."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "Tide?"}]},
                {"role": "model", "parts": [
                    {"text": "One moment."}, {"kept": true},
                    {"functionCall": {"name": "tide", "args": {"h": 1}}}, {"functionCall": {"name": "tide", "args": {}}}]},
                {"role": "user", "parts": [
                    {"functionResponse": {"name": "tide", "response": {"result": "high"}}},
                    {"functionResponse": {"name": "tide", "response": {"result": "low"}}}]},
            ],
            "tools": [{"functionDeclarations": [
                {"name": "tide", "description": "Tides", "parametersJsonSchema": {"type": "object", "properties": {}}}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
            "generationConfig": {"temperature": 0.5, "maxOutputTokens": 100, "stopSequences": ["x"]},
        })
    );
    for (model, thinking) in [
        ("gemini-2.5-pro", json!({"includeThoughts": true, "thinkingBudget": 16_384})),
        ("gemini-3-pro", json!({"includeThoughts": true, "thinkingLevel": "high"})),
    ] {
        let mut request = chat();
        (request["model"], request["reasoning_effort"]) = (json!(model), json!("high"));
        assert_eq!(
            Interface::Google.body(request)["generationConfig"]["thinkingConfig"],
            thinking,
            "{model}"
        );
    }
    for (model, thinking) in [
        ("gemini-2.5-flash", json!({"thinkingBudget": 0})),
        ("models/gemini-2.5-flash-lite", json!({"thinkingBudget": 0})),
        ("gemini-2.5-pro", json!({"thinkingBudget": 128})),
        ("gemini-2.0-flash", Value::Null),
        ("gemini-3-pro", json!({"thinkingLevel": "low"})),
        ("gemma-3-27b-it", Value::Null),
    ] {
        let mut request = chat();
        (request["model"], request["reasoning_effort"]) = (json!(model), json!("none"));
        let body = Interface::Google.body(request);
        assert_eq!(body["generationConfig"]["thinkingConfig"], thinking, "{model}");
    }
    let mut signed = chat();
    signed["messages"][3]["tool_calls"][0]["native"] = json!("c2ln");
    let body = Interface::Google.body(signed);
    assert_eq!(body["contents"][1]["parts"][2]["thoughtSignature"], "c2ln");
}

#[test]
fn responses_want_items_and_store_nothing() {
    let body = Interface::Responses.body(chat());
    assert_eq!((&body["store"], &body["instructions"]), (&json!(false), &json!("Be brief.\n\nIn French.")));
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(
        body["input"],
        json!([
            {"role": "user", "content": "Tide?"},
            {"kept": true},
            {"role": "assistant", "content": "One moment."},
            {"type": "function_call", "call_id": "a:1", "name": "tide", "arguments": "{\"h\":1}"},
            {"type": "function_call", "call_id": "b", "name": "tide", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a:1", "output": "high"},
            {"type": "function_call_output", "call_id": "b", "output": "low"},
        ])
    );
    assert_eq!((&body["max_output_tokens"], &body["tool_choice"]), (&json!(100), &json!("required")));
    assert_eq!((&body["tools"][0]["name"], body.get("stop")), (&json!("tide"), None));
}

#[test]
fn each_interface_has_its_path_and_key() {
    let at = |interface: Interface, base: &str| interface.url(base, "models/g-3.5").unwrap().to_string();
    assert_eq!(at(Interface::Anthropic, "https://h/v1"), "https://h/v1/messages");
    assert_eq!(at(Interface::Responses, "https://h/v1/"), "https://h/v1/responses");
    assert_eq!(
        at(Interface::Google, "https://h/v1beta"),
        "https://h/v1beta/models/g-3.5:streamGenerateContent?alt=sse"
    );
    assert!(!Interface::Google.url("https://h", "../x?y#z").unwrap().as_str().contains("/../"));
    let header = |interface: Interface, name: &str| {
        let headers = interface.headers(Some("k")).unwrap();
        headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(header(Interface::Anthropic, "x-api-key").as_deref(), Some("k"));
    assert_eq!(header(Interface::Anthropic, "anthropic-version").as_deref(), Some("2023-06-01"));
    assert_eq!(header(Interface::Google, "x-goog-api-key").as_deref(), Some("k"));
    assert_eq!(header(Interface::Responses, "authorization").as_deref(), Some("Bearer k"));
}

#[test]
fn a_later_message_of_the_system_keeps_its_place() {
    let mut chat = chat();
    chat["messages"] = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": "High."},
        {"role": "system", "content": "A storm came up."},
        {"role": "user", "content": "And now?"},
    ]);
    let anthropic = Interface::Anthropic.body(chat.clone());
    assert_eq!(anthropic["system"][0]["text"], "Be brief.");
    assert_eq!(anthropic["messages"][2]["content"][0]["text"], "A storm came up.");
    let google = Interface::Google.body(chat.clone());
    assert_eq!(google["systemInstruction"], json!({"parts": [{"text": "Be brief."}]}));
    assert_eq!(google["contents"][2]["parts"][0], json!({"text": "A storm came up."}));
    let responses = Interface::Responses.body(chat);
    assert_eq!(responses["instructions"], "Be brief.");
    assert_eq!(responses["input"][2], json!({"role": "system", "content": "A storm came up."}));
}
