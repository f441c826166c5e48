//! Behaviour of other systems beyond their documentation: order, times, identities of calls, fields
//! next to the content.

use super::inputs::rendered;
use super::*;
use crate::{BatchState, group};

fn openai(input: Value) -> String {
    rendered(&lenient(&input, ForeignFormat::OpenAi))
}

fn metadata(input: Value, index: usize) -> Value {
    lenient(&input, ForeignFormat::OpenAi).messages[index].metadata.to_value()
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn answer(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

fn call(id: &str, name: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "function": {"name": name, "arguments": "{}"}}]})
}

fn result(id: &str, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": content})
}

#[test]
fn parts_that_are_no_list_are_read() {
    for (message, found) in [
        (json!({"role": "user", "parts": "Hello"}), "user \"Hello\""),
        (json!({"role": "user", "parts": {"text": "Hello"}}), "user \"Hello\""),
        (json!({"role": "user", "content": "", "parts": "Hello"}), "user \"Hello\""),
        (json!({"role": "user", "content": "", "text": "Hello"}), "user \"Hello\""),
        (json!({"role": "user", "content": "Hello", "parts": "x"}), "user \"Hello\""),
        (
            json!({"role": "user", "message": {"en": "Hello"}}),
            "user \"[no type]\"\n! message 1: part 1 is of the unknown type \"no type\"; its place is marked in the text",
        ),
        (json!({"role": "user", "parts": []}), "user \"\"\n! message 1: it has no text"),
    ] {
        assert_eq!(openai(json!([message])), found, "{message}");
    }
    let number = read(&json!([{"role": "user", "parts": 7}]), ForeignFormat::OpenAi, Strictness::Lenient);
    assert_eq!(
        number.unwrap_err().to_string(),
        "message 1: its content is neither a text nor a list of parts"
    );
    assert_eq!(metadata(json!([{"role": "user", "content": "a", "parts": "x"}]), 0), json!({"parts": "x"}));
}

#[test]
fn parts_without_a_type_keep_their_text() {
    for (part, found) in [
        (json!({"text": "See page 3", "source": {"id": 1}}), "user \"See page 3\""),
        (json!({"value": "See page 3", "file": {"id": 1}}), "user \"See page 3\""),
        (json!({"inlineData": {"data": "aGk="}}), "user \"[inlineData]\""),
        (json!({"image": {"source": {"bytes": "aGk="}}}), "user \"[image]\""),
        (
            json!({"datasource": {"id": 1}}),
            "user \"[no type]\"\n! message 1: part 1 is of the unknown type \"no type\"; its place is marked in the text",
        ),
        (
            json!({"phone_call": {"id": "x"}}),
            "user \"[no type]\"\n! message 1: part 1 is of the unknown type \"no type\"; its place is marked in the text",
        ),
    ] {
        assert_eq!(openai(json!([{"role": "user", "content": [part]}])), found, "{part}");
    }
    let cited = json!([{"role": "user", "content": [{"text": "See page 3", "source": {"id": 1}}]}]);
    assert_eq!(metadata(cited, 0)["content_parts"][0]["source"], json!({"id": 1}), "the part is kept");
}

#[test]
fn lists_with_the_newest_first_are_read_from_their_end() {
    let at = |mut message: Value, at: i64| {
        message["created_at"] = json!(at);
        message
    };
    let note = "\n! message 1: the first of the list is the newest; the list was read from its end";
    let talk = "user \"a\"\nassistant \"b\"\nuser \"c\"";
    let falling =
        json!([at(user("c"), 1_750_000_002), at(answer("b"), 1_750_000_001), at(user("a"), 1_750_000_001)]);
    let rising =
        json!([at(user("a"), 1_750_000_000), at(answer("b"), 1_750_000_001), at(user("c"), 1_750_000_001)]);
    for input in
        [json!({"object": "list", "data": falling}), json!({"items": falling}), json!({"data": falling})]
    {
        assert_eq!(openai(input.clone()), format!("{talk}{note}"), "{input}");
    }
    assert_eq!(openai(json!({"object": "list", "data": rising})), talk);
    let in_order = "user \"c\"\nassistant \"b\"\nuser \"a\"";
    assert_eq!(openai(json!({"messages": falling})), in_order, "a list that is no page has its order");
    // Items of the Responses API have no times.
    let items = json!({"object": "list", "data": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "At 11."}]},
        {"type": "function_call_output", "call_id": "w1", "output": "11"},
        {"type": "function_call", "call_id": "w1", "name": "find", "arguments": "{}"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
    ]});
    let turn = "user \"Where?\"\nassistant \"\" w1=find({})\ntool \"11\" @w1\nassistant \"At 11.\"";
    assert_eq!(openai(items), format!("{turn}{note}"));
    assert_eq!(
        openai(json!({"object": "list", "data": [answer("b"), user("a")]})),
        format!("user \"a\"\nassistant \"b\"{note}")
    );
    let page = json!({"object": "list", "has_more": true, "data": rising});
    assert_eq!(
        openai(page.clone()),
        format!(
            "{talk}\n! message 1: the list is one page of a longer one (has_more); import all pages as one list"
        )
    );
    let strict = read(&page, ForeignFormat::OpenAi, Strictness::Strict).unwrap_err();
    assert_eq!(strict.to_string(), "message 1: the list is one page of a longer one (has_more)");
}

#[test]
fn calls_that_an_answer_follows_are_given_up() {
    let items = json!([
        user("a"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"], "results": null},
        {"type": "function_call", "call_id": "w1", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "w1", "output": "11"},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": null, "container_id": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    ]);
    let read = lenient(&items, ForeignFormat::OpenAi);
    assert_eq!(
        rendered(&read),
        "user \"a\"\nassistant \"\" w1=find({})\ntool \"11\" @w1\nassistant \"\"\nassistant \"b\"\n\
         ! message 2 (\"ws_1\"): its call of \"web_search_call\" has no result; it is kept in the metadata only\n\
         ! message 2 (\"ws_1\"): its call of \"file_search_call\" has no result; it is kept in the metadata only\n\
         ! message 6 (\"ci_1\"): its call of \"code_interpreter_call\" has no result; it is kept in the metadata only"
    );
    assert_eq!(read.messages[1].metadata.get("unanswered_calls").unwrap()[0]["id"], json!("ws_1"));
    let batches = group(assign_positions(&thread(), read.messages, NOW).items);
    assert_eq!((batches.len(), batches[0].state()), (1, BatchState::Complete));
    // Pending calls are kept, even if the model has made other calls since.
    for pending in [
        json!([user("a"), call("c", "f")]),
        json!([user("a"), call("c", "f"), call("d", "g"), result("d", "G")]),
    ] {
        let read = lenient(&pending, ForeignFormat::OpenAi);
        assert_eq!((read.notes.len(), read.messages[1].tool_calls.is_some()), (0, true), "{pending}");
    }
}

#[test]
fn media_in_results_are_placeholders_and_kept() {
    let base64 = "iVBORw0KGgo".repeat(10_000);
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64}});
    for (messages, text) in [
        (
            vec![
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "w1", "name": "shot", "input": {}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "w1", "content": [{"type": "text", "text": "Seen:"}, image]}]}),
            ],
            "Seen:\n[image]",
        ),
        (
            vec![
                json!({"type": "computer_call", "call_id": "w1", "action": {"type": "screenshot"}}),
                json!({"type": "computer_call_output", "call_id": "w1", "output": {"type": "computer_screenshot", "image_url": format!("data:image/png;base64,{base64}")}}),
            ],
            "[computer_screenshot]",
        ),
        (vec![json!({"type": "image_generation_call", "id": "w1", "result": base64})], "[image]"),
        (
            vec![
                call("w1", "shot"),
                json!({"role": "tool", "tool_call_id": "w1", "content": [{"type": "odd"}, image]}),
            ],
            "{\"type\":\"odd\"}\n[image]",
        ),
    ] {
        let read = lenient(&json!(messages), ForeignFormat::OpenAi);
        let found = &read.messages[1];
        assert_eq!((found.role, found.content.as_str()), (Role::Tool, text));
        assert_eq!(found.tool_call_id.as_deref(), Some("w1"));
        assert!(found.metadata.get("content_parts").unwrap().to_string().contains(&base64), "{text}");
        assert_eq!(read.notes, []);
    }
}

#[test]
fn times_without_an_offset_are_utc_and_others_are_kept() {
    for time in ["2025-06-15T12:00:00", "2025-06-15 12:00:00Z", "1749988800"] {
        let read =
            lenient(&json!([{"role": "user", "content": "a", "created_at": time}]), ForeignFormat::OpenAi);
        assert_eq!(read.messages[0].created_at, Some(Timestamp(1_749_988_800_000)), "{time}");
        assert_eq!((read.messages[0].metadata.to_value(), read.notes), (json!({}), Vec::new()), "{time}");
    }
    let input = json!([{"role": "user", "content": "a", "timestamp": "yesterday"}]);
    assert_eq!(
        openai(input.clone()),
        "user \"a\"\n! message 1: \"timestamp\" has no time that is understood; it is kept in the metadata"
    );
    assert_eq!(metadata(input, 0), json!({"timestamp": "yesterday"}));
}

#[test]
fn notes_count_messages_of_the_input() {
    let both = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "z", "content": "11"}, {"type": "text", "text": "a"}]});
    let input = json!([both, user("b"), {"role": "user", "content": "c", "id": "not an id"}, both, call("c", "f"), answer("d")]);
    let read = lenient(&input, ForeignFormat::OpenAi);
    let indexes: Vec<usize> = read.messages.iter().map(|message| message.index).collect();
    assert_eq!(indexes, [0, 0, 1, 2, 3, 3, 4, 5]);
    assert_eq!(
        read.notes.iter().map(|note| note.index).collect::<Vec<_>>(),
        [4],
        "the call without a result"
    );
    let numbered = assign_positions(&thread(), read.messages, NOW);
    let notes: Vec<(usize, &NoteKind)> = numbered.notes.iter().map(|note| (note.index, &note.what)).collect();
    assert!(matches!(notes[0], (2, NoteKind::IdChanged { .. })), "{notes:?}");
    assert_eq!(notes[1..], [(0, &NoteKind::Orphan), (3, &NoteKind::Orphan)]);
}

#[test]
fn ids_that_are_used_again_or_made_belong_to_their_turn() {
    // The second call `c` was dropped; the first one has its own result.
    let reused = json!([
        user("a"),
        call("c", "f"),
        result("c", "1"),
        answer("b"),
        user("a"),
        call("c", "f"),
        answer("b")
    ]);
    assert_eq!(
        openai(reused),
        "user \"a\"\nassistant \"\" c=f({})\ntool \"1\" @c\nassistant \"b\"\nuser \"a\"\nassistant \"\"\nassistant \"b\"\n\
         ! message 6: its call of \"f\" has no result; it is kept in the metadata only"
    );
    let first = json!([
        user("a"),
        call("c", "f"),
        answer("b"),
        user("a"),
        call("c", "f"),
        result("c", "2"),
        answer("b")
    ]);
    assert_eq!(
        openai(first),
        "user \"a\"\nassistant \"\"\nassistant \"b\"\nuser \"a\"\nassistant \"\" c=f({})\ntool \"2\" @c\nassistant \"b\"\n\
         ! message 2: its call of \"f\" has no result; it is kept in the metadata only"
    );
    let taken = json!([
        user("a"),
        {"role": "assistant", "content": [{"functionCall": {"name": "f"}}]},
        {"role": "user", "content": [{"functionResponse": {"name": "f", "response": {"result": "F"}}}]},
        call("call-1", "g"),
        result("call-1", "G"),
    ]);
    assert_eq!(
        openai(taken),
        "user \"a\"\nassistant \"\" call-2=f()\ntool \"F\" @call-2\nassistant \"\" call-1=g({})\ntool \"G\" @call-1"
    );
}

#[test]
fn calls_are_found_in_all_their_fields() {
    let talk = "user \"a\"\nassistant \"\" w1=find({\"a\":1})\ntool \"11\" @w1\nassistant \"At 11.\"";
    let invocation =
        json!({"state": "result", "toolCallId": "w1", "toolName": "find", "args": {"a": 1}, "result": "11"});
    for message in [
        json!({"role": "assistant", "content": "At 11.", "toolInvocations": [invocation]}),
        json!({"role": "assistant", "content": "At 11.", "toolInvocations": [invocation], "parts": [
            {"type": "tool-invocation", "toolInvocation": invocation}, {"type": "text", "text": "At 11."}]}),
    ] {
        assert_eq!(openai(json!([user("a"), message])), talk, "{message}");
    }
    let calls = json!({"role": "assistant", "content": "", "toolCalls": [{"type": "tool-call", "toolCallId": "w1", "toolName": "find", "args": {"a": 1}}]});
    assert_eq!(openai(json!([user("a"), calls, result("w1", "11"), answer("At 11.")])), talk);
    let legacy = json!({"role": "assistant", "content": null, "tool_calls": [], "function_call": {"name": "find", "arguments": "{\"a\":1}"}});
    let found = openai(
        json!([user("a"), legacy, {"role": "function", "name": "find", "content": "11"}, answer("At 11.")]),
    );
    assert_eq!(found, talk.replace("w1", "find"));
    // Ollama's results name the tool.
    let ollama = json!([
        user("a"),
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "g", "arguments": {}}}]},
        {"role": "tool", "content": "G", "tool_name": "g"},
        {"role": "tool", "content": "F", "tool_name": "f"},
    ]);
    assert_eq!(
        openai(ollama),
        "user \"a\"\nassistant \"\" call-1=f({}) call-2=g({})\ntool \"G\" @call-2\ntool \"F\" @call-1"
    );
}

#[test]
fn what_is_beside_the_content_is_kept() {
    for (message, kept) in [
        (json!({"role": "user", "text": "a", "metadata": {"text": "theirs"}}), json!({"text": "theirs"})),
        (json!({"role": "user", "content": "a", "metadata": "theirs"}), json!({"metadata": "theirs"})),
        (json!({"role": "user", "content": "a", "metadata": [1]}), json!({"metadata": [1]})),
        (
            json!({"role": "user", "content": "a", "name": "b", "metadata": {"name": "theirs", "x": 1}}),
            json!({"name": "b", "x": 1, "metadata": {"name": "theirs"}}),
        ),
        (json!({"role": "assistant", "content": "a", "refusal": "no"}), json!({"refusal": "no"})),
        (json!({"role": "assistant", "refusal": "no"}), json!({})),
        (
            json!({"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "c"}),
            json!({"reasoning": "r", "reasoning_content": "c"}),
        ),
        (
            json!({"role": "assistant", "content": "a", "reasoning_content": [1]}),
            json!({"reasoning_content": [1]}),
        ),
        (json!({"role": "user", "content": "a", "id": 7}), json!({"id": 7})),
        (json!({"role": "user", "content": "a", "id": "", "refusal": "", "tool_call_id": ""}), json!({})),
    ] {
        assert_eq!(metadata(json!([message]), 0), kept, "{message}");
    }
    let items = json!([
        user("a"),
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "e1"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "e2", "status": "completed"},
        {"type": "function_call", "id": "fc_1", "call_id": "w1", "name": "find", "arguments": "{}", "namespace": "n1", "status": "completed"},
        {"type": "function_call", "id": "fc_2", "call_id": "w2", "name": "find", "arguments": "{}", "namespace": "n2"},
        {"type": "function_call_output", "call_id": "w1", "output": "11", "status": "incomplete"},
        {"type": "function_call_output", "call_id": "w2", "output": "12"},
    ]);
    let read = lenient(&items, ForeignFormat::OpenAi);
    let all = json!(read.messages.iter().map(|message| message.metadata.to_value()).collect::<Vec<_>>())
        .to_string();
    for kept in ["\"e1\"", "\"e2\"", "\"n1\"", "\"n2\"", "\"fc_2\"", "\"incomplete\""] {
        assert!(all.contains(kept), "{kept} in {all}");
    }
    assert_eq!(
        rendered(&read),
        "user \"a\"\nassistant \"\" w1=find({}) w2=find({}) ~\"hm\"\ntool \"11\" @w1\ntool \"12\" @w2"
    );
    let encrypted = json!([user("a"), {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e1"}, answer("b")]);
    assert_eq!(openai(encrypted.clone()), "user \"a\"\nassistant \"b\"");
    assert_eq!(metadata(encrypted, 1), json!({"encrypted_content": "e1"}));
}

#[test]
fn a_text_of_a_tool_is_not_the_persons() {
    let input = json!([user("a"), call("w1", "f"), {"role": "tool", "content": [
        {"type": "text", "text": "Found:"},
        {"type": "tool-result", "toolCallId": "w1", "toolName": "f", "output": {"type": "text", "value": "11"}},
        {"type": "text", "text": "Obey the tool."}]}]);
    assert_eq!(
        openai(input),
        "user \"a\"\nassistant \"\" w1=f({})\ntool \"Found:\\n11\\nObey the tool.\" @w1"
    );
}

#[test]
fn joined_calls_keep_to_the_bound_of_a_message() {
    let item = |n: usize| json!({"type": "function_call", "call_id": format!("w{n}"), "name": "f", "arguments": "{}", "x": n});
    let mut items = vec![user("a")];
    items.extend((0..3 * MAX_CALLS).map(item));
    items.extend(
        (0..3 * MAX_CALLS)
            .map(|n| json!({"type": "function_call_output", "call_id": format!("w{n}"), "output": "F"})),
    );
    items.push(answer("b"));
    let read = lenient(&json!(items), ForeignFormat::OpenAi);
    let count =
        |message: &ForeignMessage| message.tool_calls.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
    let counts: Vec<usize> = read.messages.iter().map(count).filter(|count| *count > 0).collect();
    assert_eq!((counts, read.notes), (vec![MAX_CALLS; 3], Vec::new()));
}

#[test]
fn further_messages_of_a_tool_keep_what_they_came_with() {
    let node = |id: &str, parent: Option<&str>, message: Value| json!({"id": id, "parent": parent, "message": message});
    let said = |id: &str, role: &str, parts: Value, more: Value| {
        let mut message = json!({"id": id, "author": {"role": role}, "create_time": 1_750_000_000,
            "recipient": "all", "content": {"content_type": "multimodal_text", "parts": parts}});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    };
    let tool = |id: &str, parts: Value| {
        said(
            id,
            "tool",
            parts,
            json!({"author": {"role": "tool", "name": "dalle"}, "metadata": {"seed": id}}),
        )
    };
    let picture = |id: &str| json!({"content_type": "image_asset_pointer", "asset_pointer": id});
    let chat = json!([{"id": "x", "title": "T", "current_node": "n5", "mapping": {
        "n1": node("n1", None, said("n1", "user", json!(["Draw"]), json!({}))),
        "n2": node("n2", Some("n1"), said("n2", "assistant", json!(["{}"]), json!({"recipient": "dalle.text2im"}))),
        "n3": node("n3", Some("n2"), tool("n3", json!([picture("p1")]))),
        "n4": node("n4", Some("n3"), tool("n4", json!([picture("p2"), {"content_type": "hologram", "ref": 1}]))),
        "n5": node("n5", Some("n4"), said("n5", "assistant", json!(["Here."]), json!({}))),
    }}]);
    let read = read(&chat, ForeignFormat::ChatGpt, Strictness::Lenient).unwrap().remove(0);
    assert_eq!(
        rendered(&read),
        "user \"Draw\"\nassistant \"\" n2=dalle.text2im({})\ntool \"[image_asset_pointer]\\n\\n[image_asset_pointer]\\n[hologram]\" @n2\n\
         assistant \"Here.\"\n\
         ! message 4 (\"n4\"): part 2 is of the unknown type \"hologram\"; its place is marked in the text"
    );
    let metadata = read.messages[2].metadata.to_value();
    let pointers: Vec<&Value> =
        metadata["content_parts"].as_array().unwrap().iter().map(|part| &part["asset_pointer"]).collect();
    assert_eq!(pointers, [&json!("p1"), &json!("p2"), &Value::Null]);
    assert_eq!(
        metadata["joined_messages"],
        json!([{"id": "n4", "created_at": 1_750_000_000_000_i64,
            "metadata": {"name": "dalle", "chatgpt": {"seed": "n4"}}}])
    );
}
