//! Formats of messages that are passed off as OpenAI's.

use super::inputs::rendered;
use super::*;

fn openai(input: Value) -> String {
    rendered(&lenient(&input, ForeignFormat::OpenAi))
}

const TALK: &str = "user \"How far is it?\"\nassistant \"I look.\" w1=find({\"a\":1})\ntool \"11\" @w1\nassistant \"At 11.\"";

#[test]
fn messages_of_other_providers_are_read() {
    let anthropic = json!({"system": "Be brief.", "messages": [
        {"role": "user", "content": "How far is it?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "w1", "name": "find", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "w1", "content": "11"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "At 11."}]},
    ]});
    assert_eq!(openai(anthropic), format!("system \"Be brief.\"\n{TALK}"));
    let responses = json!({"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "How far is it?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m1", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "w1", "name": "find", "arguments": "{\"a\":1}"},
        {"type": "function_call", "id": "fc_2", "call_id": "w2", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "w1", "output": "11"},
        {"type": "function_call_output", "call_id": "w2", "output": [{"type": "input_text", "text": "12"}]},
        {"type": "item_reference", "id": "x"},
    ]});
    assert_eq!(
        openai(responses),
        "user \"How far is it?\"\nassistant \"I look.\" w1=find({\"a\":1}) w2=find({}) ~\"hm\"\ntool \"11\" @w1\ntool \"12\" @w2\n! message 8: not a message; left out"
    );
    let google = json!({"contents": [
        {"role": "user", "parts": [{"text": "How far is it?"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": true}, {"text": "I look."}, {"functionCall": {"name": "find", "args": {"a": 1}}, "thoughtSignature": "s"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "find", "response": {"result": "11"}}}]},
        {"role": "model", "parts": [{"text": "At 11."}]},
    ]});
    let without_ids = TALK.replace("w1", "call-1").replace("({\"a\":1})", "({\"a\":1}) ~\"hm\"");
    assert_eq!(openai(google), without_ids);
    let bedrock = json!([
        {"role": "user", "content": [{"text": "How far is it?"}]},
        {"role": "assistant", "content": [{"text": "I look."}, {"toolUse": {"toolUseId": "w1", "name": "find", "input": {"a": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "w1", "content": [{"text": "11"}], "status": "success"}}]},
        {"role": "assistant", "content": [{"text": "At 11."}]},
    ]);
    assert_eq!(openai(bedrock), TALK);
    let sdk_ui = json!([
        {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "How far is it?"}]},
        {"id": "a1", "role": "assistant", "parts": [
            {"type": "step-start"}, {"type": "text", "text": "I look."},
            {"type": "tool-find", "toolCallId": "w1", "state": "output-available", "input": {"a": 1}, "output": 11},
            {"type": "step-start"}, {"type": "text", "text": "At 11."}]},
    ]);
    assert_eq!(openai(sdk_ui), TALK);
    let sdk_model = json!([
        {"role": "user", "content": "How far is it?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool-call", "toolCallId": "w1", "toolName": "find", "input": {"a": 1}}]},
        {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "w1", "toolName": "find", "output": {"type": "text", "value": "11"}}]},
        {"role": "assistant", "content": "At 11."},
    ]);
    assert_eq!(openai(sdk_model), TALK);
    let assistants = json!({"object": "list", "data": [
        {"id": "msg_1", "role": "user", "created_at": 1_750_000_000, "content": [{"type": "text", "text": {"value": "Hi", "annotations": []}}]},
    ]});
    assert_eq!(openai(assistants), "user \"Hi\"");
}

#[test]
fn parts_of_one_message_keep_their_order() {
    let both = json!([{"role": "user", "id": "m", "content": [
        {"type": "text", "text": "Thanks."}, {"type": "tool_result", "tool_use_id": "w1", "content": "11", "is_error": true}]}]);
    let read = lenient(&both, ForeignFormat::OpenAi);
    assert_eq!(rendered(&read), "tool \"11\" @w1\nuser \"Thanks.\"");
    assert_eq!(read.messages[0].metadata.to_value(), json!({"is_error": true}));
    let ids: Vec<_> = read.messages.iter().map(|message| message.id.as_deref()).collect();
    assert_eq!(ids, [Some("m"), Some("m-2")]);
    let mixed = json!([{"role": "assistant", "content": [
        {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "a"}, {"type": "tool_use", "id": "w1", "name": "f", "input": {}}]}]);
    let read = lenient(&mixed, ForeignFormat::OpenAi);
    assert_eq!(read.messages[0].content, "a");
    assert_eq!(
        read.messages[0].metadata.get("content_parts").unwrap().as_array().unwrap().len(),
        2,
        "the call is a call"
    );
}

#[test]
fn no_message_is_empty_without_a_word() {
    for (message, found) in [
        (json!({"role": "user", "text": "a"}), "user \"a\""),
        (json!({"role": "user", "message": {"content": "a"}}), "user \"a\""),
        (json!({"role": "user", "content": {"text": "a"}}), "user \"a\""),
        (json!({"role": "user", "content": {"type": "text", "text": "a"}}), "user \"a\""),
        (
            json!({"role": "assistant", "content": null, "audio": {"id": "x", "transcript": "a"}}),
            "assistant \"a\"",
        ),
        (json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]}), "assistant \"a\""),
        (json!({"role": "user", "content": ""}), "user \"\"\n! message 1: it has no text"),
        (json!({"role": "user", "content": []}), "user \"\"\n! message 1: it has no text"),
        (json!({"role": "assistant", "content": null}), "assistant \"\"\n! message 1: it has no text"),
        (json!({"role": "user"}), "user \"\"\n! message 1: it has no text"),
        (
            json!({"role": "user", "question": {"en": "a"}}),
            "user \"[not understood]\"\n! message 1: no text, call or result was found in it (its fields: question); its fields are kept in the metadata",
        ),
        (
            json!({"role": "user", "content": [{"type": "hologram", "ref": "x"}]}),
            "user \"[hologram]\"\n! message 1: part 1 is of the unknown type \"hologram\"; its place is marked in the text",
        ),
        (
            json!({"role": "user", "content": [{"type": "text"}, 7]}),
            "user \"[text]\n[no object]\"\n! message 1: part 1 is of the unknown type \"text\"; its place is marked in the text\n! message 1: part 2 is of the unknown type \"no object\"; its place is marked in the text",
        ),
        (
            json!({"role": "tool", "tool_call_id": "c", "content": {"knots": 7}}),
            "tool \"{\\\"knots\\\":7}\" @c",
        ),
        (json!({"role": "tool", "tool_call_id": "c", "content": 7}), "tool \"7\" @c"),
        (json!({"role": "tool", "tool_call_id": "c", "content": ""}), "tool \"\" @c"),
        (json!({"role": "assistant", "content": "a", "reasoning_content": "hm"}), "assistant \"a\" ~\"hm\""),
        (
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}),
            "assistant \"\" ~\"hm\"",
        ),
    ] {
        assert_eq!(openai(json!([message])).replace("\\n", "\n"), found, "{message}");
    }
}

#[test]
fn results_without_ids_find_their_calls() {
    let calls = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"functionCall": {"name": "f"}}, {"functionCall": {"name": "g"}}]},
        {"role": "function", "parts": [{"functionResponse": {"name": "g", "response": {"output": "G"}}}]},
        {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1, "b": 2}}}]},
        {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
    ]);
    assert_eq!(
        openai(calls),
        "user \"a\"\nassistant \"\" call-1=f() call-2=g()\ntool \"G\" @call-2\ntool \"{\\\"a\\\":1,\\\"b\\\":2}\" @call-1\ntool \"{}\""
    );
    // This project's own format has results in the objects of their calls.
    let own = json!([{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}", "result": "F"}]}]);
    let read = lenient(&own, ForeignFormat::OpenAi);
    assert_eq!(read.messages[0].tool_calls.as_ref().unwrap()[0]["result"], json!("F"));
}

#[test]
fn fields_that_are_too_deep_are_left_out_and_named() {
    let deep = (0..80).fold(json!(1), |inner, _| json!([inner]));
    let read = lenient(&json!([{"role": "user", "content": "a", "x": deep, "y": 1}]), ForeignFormat::OpenAi);
    assert_eq!(rendered(&read), "user \"a\"\n! message 1: \"x\" is nested too deep to be kept; left out");
    assert_eq!(read.messages[0].metadata.to_value(), json!({"y": 1}));
}

#[test]
fn a_file_of_another_format_is_refused_with_its_name() {
    let refused = |input: Value, format| read(&input, format, Strictness::Lenient).unwrap_err().to_string();
    let chat = json!([{"title": "T", "mapping": {}}]);
    assert_eq!(
        refused(chat.clone(), ForeignFormat::OpenAi),
        "message 1: its role or type is null; it looks like the format chatgpt: try `--from chatgpt`"
    );
    assert_eq!(
        refused(chat, ForeignFormat::Claude),
        "chat 1: it is no chat of claude; it looks like the format chatgpt: try `--from chatgpt`"
    );
    let messages = json!([{"type": "human", "content": "a"}]);
    assert!(refused(messages, ForeignFormat::OpenAi).ends_with("try `--from langgraph`"));
    let roles = json!({"messages": [{"role": "user", "content": "a"}]});
    assert!(refused(roles, ForeignFormat::ChatGpt).ends_with("try `--from openai`"));
    assert_eq!(
        refused(json!({"a": 1}), ForeignFormat::OpenWebUi),
        "no chats of openwebui: its export is expected, unpacked"
    );
}
