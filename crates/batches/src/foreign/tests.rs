mod chats;
mod inputs;
mod langchain;
mod shapes;
mod systems;

use model::{MessageId, Metadata, Position, ThreadId, Timestamp};
use serde_json::json;

use super::*;
use crate::{BatchState, group};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

/// Reads a list in this format, leniently.
fn lenient(input: &Value, format: ForeignFormat) -> ForeignThread {
    let mut threads = read(input, format, Strictness::Lenient).unwrap();
    assert_eq!(threads.len(), 1);
    threads.pop().unwrap()
}

fn thread() -> ThreadId {
    ThreadId::parse("t").unwrap()
}

/// `u`, `a` and `s` are roles, `A:c,d` has the calls c and d, and `t:c` is the result of c.
fn foreign(word: &str) -> ForeignMessage {
    let (kind, ids) = word.split_once(':').unwrap_or((word, ""));
    let call = |id: &str| json!({"id": id, "name": "f", "arguments": "{}"});
    ForeignMessage {
        index: 0,
        id: None,
        role: match kind {
            "u" => Role::User,
            "s" => Role::System,
            "t" => Role::Tool,
            _ => Role::Assistant,
        },
        content: word.to_owned(),
        tool_calls: (kind == "A").then(|| ids.split(',').map(call).collect()),
        tool_call_id: (kind == "t").then(|| ids.to_owned()),
        created_at: None,
        metadata: Metadata::EMPTY,
        token_count: None,
    }
}

fn numbered(script: &str) -> Numbered {
    assign_positions(&thread(), script.split_whitespace().map(foreign).collect(), NOW)
}

#[test]
fn an_input_without_answer_is_not_abandoned_by_its_old_time() {
    for (script, is_kept) in [("u a u", true), ("u a u u", true), ("u a", false), ("u A:c", false)] {
        let mut numbered = numbered(script);
        assert_eq!(numbered.undated, numbered.items.len());
        keep_last_input_open(&mut numbered.items);
        let again = numbered.items.clone();
        keep_last_input_open(&mut numbered.items);
        assert_eq!(again, numbered.items, "imported twice it is the same");
        let last = group(numbered.items).pop().unwrap();
        assert_eq!(last.items()[0].metadata.get("timeout_ms").is_some(), is_kept, "{script}");
        if is_kept {
            assert_eq!(last.abandoned_since(NOW, 5_000), None, "{script}");
        }
    }
}

/// The batches, ordered by their first messages: `u a+` is complete, `u A:c-` is not.
fn batches(script: &str) -> String {
    let batches = group(numbered(script).items);
    let batch = |batch: &crate::Batch| {
        let words: Vec<&str> = batch.items().iter().map(|item| item.content.as_str()).collect();
        let sign = if batch.state() == BatchState::Complete { '+' } else { '-' };
        format!("{}{sign}", words.join(" "))
    };
    batches.iter().map(batch).collect::<Vec<_>>().join(" | ")
}

#[test]
fn an_input_after_an_answer_begins_a_batch() {
    for (script, found) in [
        ("u a u a", "u a+ | u a+"),
        ("u u a", "u u a+"),
        ("u a a u a", "u a a+ | u a+"),
        ("u A:c t:c a u", "u A:c t:c a+ | u-"),
        ("u A:c,d t:d t:c A:c t:c a", "u A:c,d t:d t:c A:c t:c a+"),
        ("s u a s u a", "s u a+ | s u a+"),
        ("u A:c s t:c a", "u A:c s t:c a+"),
        ("s a u a", "s a+ | u a+"),
        ("a u a", "a+ | u a+"),
        ("u A:c u a", "u A:c- | u a+"),
        ("u A:c t:c u a", "u A:c t:c- | u a+"),
        ("u A:c u a t:c", "u A:c t:c- | u a+"),
        ("u A:c u A:c t:c a t:c", "u A:c t:c- | u A:c t:c a+"),
        ("u t:z a", "u a+ | t:z-"),
        ("u a t:z u a", "u a+ | t:z- | u a+"),
        ("", ""),
    ] {
        assert_eq!(batches(script), found, "{script}");
    }
}

#[test]
fn places_follow_the_order_and_twice_is_the_same() {
    let messages: Vec<ForeignMessage> = "u a u a u a"
        .split_whitespace()
        .map(foreign)
        .zip([
            Some(1_000),
            None,
            Some(1_750_000_000_000),
            Some(1_750_000_000_000),
            Some(1_749_000_000_000),
            None,
        ])
        .map(|(message, at)| ForeignMessage { created_at: at.map(Timestamp), ..message })
        .collect();
    let first = assign_positions(&thread(), messages.clone(), NOW);
    assert_eq!(assign_positions(&thread(), messages, NOW.plus_ms(5)), first);
    let positions: Vec<Position> = first.items.iter().map(|item| item.position).collect();
    assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
    assert!(positions[0].get() > 0);
    assert_eq!(positions[2].timestamp(), Timestamp(1_750_000_000_000));
    assert_eq!(positions[4].timestamp(), Timestamp(1_750_000_000_000), "never back");
    let times: Vec<i64> = first.items.iter().map(|item| item.created_at.0).collect();
    assert_eq!((times[0], times[4]), (1_000, 1_749_000_000_000), "the time itself is kept");
    let ids: std::collections::BTreeSet<&MessageId> =
        first.items.iter().map(|item| &item.message_id).collect();
    assert_eq!((ids.len(), first.notes.len()), (6, 0), "equal messages are two");
    let equal = assign_positions(&thread(), vec![foreign("u"); 100_000], NOW);
    assert_eq!((equal.items.len(), equal.notes.len()), (100_000, 0));
    assert_eq!(first.items[3].sequence_num, 1);
}

#[test]
fn what_is_older_than_positions_keeps_its_order() {
    let at = |word: &str, at| ForeignMessage { created_at: Some(Timestamp(at)), ..foreign(word) };
    // The positions are above 0 and ascend, whatever the bucket of the thread.
    for name in ["t", "u", "v"] {
        let messages =
            vec![at("u", 1_000), at("a", 900_000), at("u", 1_600_000_000_000), at("a", 1_700_000_000_000)];
        let items = assign_positions(&ThreadId::parse(name).unwrap(), messages, NOW).items;
        assert!(items.is_sorted_by(|a, b| a.position < b.position));
        assert!(items[0].position.get() > 1 << 22, "not in the millisecond before the first");
    }
}

#[test]
fn ids_are_kept_where_they_may() {
    let with_id = |word: &str, id: &str| ForeignMessage { id: Some(id.to_owned()), ..foreign(word) };
    let messages = vec![
        with_id("u", "m-1"),
        with_id("a", "m-2"),
        with_id("a", "m-2"),
        with_id("u", "m-1"),
        with_id("u2", "m-1"),
        with_id("a", "not an id"),
        with_id("a", "u0001-x-q"),
    ];
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| ForeignMessage { index, ..message })
        .collect();
    let numbered = assign_positions(&thread(), messages, NOW);
    let notes: Vec<String> = numbered.notes.iter().map(ImportNote::to_string).collect();
    assert_eq!(notes[0], "message 3 (\"m-2\"): the same as an earlier one; left out");
    assert_eq!(notes[1], "message 4 (\"m-1\"): the same as an earlier one; left out");
    let made = &numbered.items[2].message_id;
    assert!(made.as_str().starts_with("imported-"));
    assert_eq!(
        notes[2],
        format!("message 5 (\"m-1\"): its id is taken or not allowed here; it becomes {made}")
    );
    assert_eq!((numbered.items.len(), notes.len()), (5, 5));
}

#[test]
fn a_time_to_come_and_an_orphan_are_noted() {
    let late = ForeignMessage { created_at: Some(NOW.plus_ms(1)), ..foreign("u") };
    let numbered = assign_positions(&thread(), vec![late, foreign("t:z")], NOW);
    let notes: Vec<&NoteKind> = numbered.notes.iter().map(|note| &note.what).collect();
    assert_eq!(notes, [&NoteKind::Future, &NoteKind::Orphan]);
    assert!(numbered.items[0].position.timestamp() < NOW);
}

#[test]
fn openai_messages_are_read() {
    let input = json!({"messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "What"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "is it?"}
        ], "id": "m1", "created_at": "2025-06-15T12:00:00.5Z", "name": "ada", "metadata": {"synthetic": true}},
        {"role": "assistant", "content": null, "created": 1_750_000_000, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "A"},
        {"role": "assistant", "content": "An A.", "refusal": null},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "y"}}]},
        {"role": "assistant", "content": "", "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": "G"},
    ]});
    let read = lenient(&input, ForeignFormat::OpenAi);
    assert_eq!(read.notes, []);
    let messages = &read.messages;
    assert_eq!((messages[0].role, messages[0].content.as_str()), (Role::System, "Be brief."));
    assert_eq!((messages[1].content.as_str(), messages[1].id.as_deref()), ("What\nis it?", Some("m1")));
    assert_eq!(messages[1].created_at, Some(Timestamp(1_749_988_800_500)));
    let metadata = messages[1].metadata.to_value();
    assert_eq!((&metadata["name"], &metadata["synthetic"]), (&json!("ada"), &json!(true)));
    assert_eq!(metadata["content_parts"].as_array().map(Vec::len), Some(3));
    assert_eq!(messages[2].tool_calls, Some(json!([{"id": "c", "name": "f", "arguments": "{\"a\":1}"}])));
    assert_eq!(messages[2].created_at, Some(Timestamp(1_750_000_000_000)));
    assert_eq!(messages[3].tool_call_id.as_deref(), Some("c"));
    assert!(messages[4].metadata.is_empty());
    assert_eq!(messages[5].content, "[image_url]");
    assert_eq!(messages[6].tool_calls, Some(json!([{"id": "g", "name": "g", "arguments": "{}"}])));
    assert_eq!((messages[7].role, messages[7].tool_call_id.as_deref()), (Role::Tool, Some("g")));
}

#[test]
fn langgraph_messages_are_read_in_all_their_forms() {
    let constructed = |class: &str, kwargs: Value| json!({"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", class], "kwargs": kwargs});
    let input = json!({"channel_values": {"messages": [
        constructed("HumanMessage", json!({
            "content": "Hello?", "type": "human", "id": "h1", "tool_calls": [],
            "additional_kwargs": {"synthetic": true, "trigger_type": "check_in", "x": 1}
        })),
        constructed("AIMessageChunk", json!({
            "content": [{"type": "text", "text": "Let me"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}],
            "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}],
            "invalid_tool_calls": [{"name": "g", "args": "{broken", "id": "d", "error": "no JSON"}],
            "usage_metadata": {"input_tokens": 5, "output_tokens": 7},
            "response_metadata": {"model_name": "m"}
        })),
        {"type": "tool", "data": {"content": "A", "tool_call_id": "c", "name": "f", "status": "success"}},
        {"type": "tool", "content": "no", "tool_call_id": "d"},
        {"type": "ai", "data": {"content": "So.", "additional_kwargs": {}, "example": false}},
        {"type": "remove", "id": "h0"},
        {"type": "ai", "data": {"content": "", "additional_kwargs": {"tool_calls": [
            {"id": "e", "function": {"name": "f", "arguments": "{}"}}
        ]}}},
        constructed("ChatMessage", json!({"content": "x", "role": "user"})),
    ]}});
    let read = lenient(&input, ForeignFormat::LangGraph);
    assert_eq!(read.notes, [ImportNote { index: 5, id: None, what: NoteKind::NoMessage }]);
    let messages = &read.messages;
    assert_eq!(
        messages[0].metadata.to_value(),
        json!({"synthetic": true, "trigger_type": "check_in",
               "additional_kwargs": {"synthetic": true, "trigger_type": "check_in", "x": 1}})
    );
    assert_eq!(messages[1].content, "Let me");
    assert_eq!(
        messages[1].tool_calls,
        Some(
            json!([{"id": "c", "name": "f", "arguments": "{\"a\":1}"}, {"id": "d", "name": "g", "arguments": "{broken"}])
        )
    );
    assert_eq!(messages[1].token_count, Some(7));
    assert_eq!(messages[1].metadata.get("response_metadata"), Some(&json!({"model_name": "m"})));
    assert_eq!(messages[2].metadata.to_value(), json!({"name": "f", "status": "success"}));
    assert!(messages[4].metadata.is_empty());
    assert_eq!(messages[5].tool_calls, Some(json!([{"id": "e", "name": "f", "arguments": "{}"}])));
    assert_eq!(messages[6].role, Role::User);
    let numbered = assign_positions(&thread(), read.messages, NOW);
    let batches = group(numbered.items);
    assert_eq!(batches[0].items().len(), 6, "the late call belongs to it");
    assert_eq!(batches[0].batch_type(), Some(model::BatchType::SystemTrigger), "no person asked");
}

#[test]
fn what_is_wrong_is_refused_whole_and_named() {
    let refused =
        |input: Value| read(&input, ForeignFormat::OpenAi, Strictness::Strict).unwrap_err().to_string();
    let list = "no list of messages: a JSON array, an object with \"messages\", or a checkpoint is expected";
    assert_eq!(refused(json!({"threads": []})), list);
    let second = |message: Value| refused(json!([{"role": "user", "content": "x"}, message]));
    assert_eq!(second(json!(7)), "message 2: it is no JSON object");
    assert_eq!(second(json!({"role": "ghost"})), "message 2: its role or type is \"ghost\"");
    assert_eq!(
        second(json!({"role": "user", "content": 7})),
        "message 2: its content is neither a text nor a list of parts"
    );
    assert_eq!(second(json!({"role": "user", "content": "a\0"})), "message 2: content holds a NUL character");
    let calls = |calls: Value| second(json!({"role": "assistant", "tool_calls": calls}));
    assert_eq!(calls(json!("x")), "message 2: its tool calls are no list of objects");
    let many: Vec<Value> = (0..5_000).map(|n| json!({"id": n.to_string()})).collect();
    assert_eq!(calls(json!(many)), "message 2: it has 5000 tool calls; at most 4096 are allowed");
    assert_eq!(lenient(&json!([]), ForeignFormat::OpenAi).messages.len(), 0);
}
