//! The interfaces of Anthropic, Google and OpenAI's Responses.

use std::path::Path;

use super::*;
use crate::interface::Interface;

/// Reads a response of these events. Returns the shown parts and the end.
fn read_events(interface: Interface, events: &[Value]) -> (Vec<Part>, Ended) {
    let events = events.iter().map(ToString::to_string).collect::<Vec<_>>();
    read_lines(interface, events.iter().map(String::as_str))
}

fn read_lines<'l>(interface: Interface, lines: impl Iterator<Item = &'l str>) -> (Vec<Part>, Ended) {
    let (mut known, mut parts) = (HashSet::new(), Vec::new());
    let mut reader = Reader::new(interface, 0, &mut known, &[], false);
    for line in lines {
        parts.extend(reader.push(format!("event: x\ndata: {line}\n\n").as_bytes()));
    }
    let mut ended = reader.end(None);
    parts.append(&mut ended.parts);
    (parts, ended)
}

fn texts(parts: &[Part]) -> (String, String) {
    let text = |is: &dyn Fn(&Part) -> Option<String>| parts.iter().filter_map(is).collect::<String>();
    (
        text(&|part| if let Part::Text(text) = part { Some(text.clone()) } else { None }),
        text(&|part| if let Part::Reasoning(text) = part { Some(text.clone()) } else { None }),
    )
}

fn calls(ended: &Ended) -> Vec<String> {
    ended.reply.calls.iter().map(|call| format!("{} {}", call.name.tool, call.arguments)).collect()
}

fn counts(ended: &Ended) -> (u64, u64, Option<u64>) {
    (ended.reply.usage.input(), ended.reply.usage.output(), ended.reply.usage.cached())
}

/// A turn with a call, for each interface.
pub(super) fn samples() -> [(Interface, Vec<Value>); 3] {
    [
        (Interface::Anthropic, anthropic_events()),
        (Interface::Google, google_events()),
        (Interface::Responses, responses_events()),
    ]
}

fn anthropic_events() -> Vec<Value> {
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    vec![
        json!({"type": "message_start", "message": {"model": "m-1", "content": [], "stop_reason": null,
            "usage": {"input_tokens": 13, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 0, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "ping"}),
        delta(0, json!({"type": "thinking_delta", "thinking": "hm, "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "tide"})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "find_boat", "input": {}}}),
        delta(1, json!({"type": "input_json_delta", "partial_json": ""})),
        delta(1, json!({"type": "input_json_delta", "partial_json": "{\"berth\""})),
        delta(1, json!({"type": "input_json_delta", "partial_json": ":11}"})),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 58}}),
        json!({"type": "message_stop"}),
    ]
}

fn google_events() -> Vec<Value> {
    let event = |parts: Value, finish: Value| {
        json!({"candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": finish, "index": 0}],
        "usageMetadata": {"promptTokenCount": 613, "candidatesTokenCount": 18, "thoughtsTokenCount": 40, "totalTokenCount": 671, "cachedContentTokenCount": 600},
        "modelVersion": "m-1"})
    };
    vec![
        event(json!([{"text": "hm", "thought": true}]), Value::Null),
        event(
            json!([{"functionCall": {"name": "find_boat", "args": {"berth": 11}}, "thoughtSignature": "c2ln"}]),
            Value::Null,
        ),
        event(json!([{"functionCall": {"name": "write_log", "willContinue": true}}]), Value::Null),
        event(
            json!([{"functionCall": {"partialArgs": [{"jsonPath": "$.lines[0].text", "stringValue": "wind ", "willContinue": true}], "willContinue": true}}]),
            Value::Null,
        ),
        event(
            json!([{"functionCall": {"partialArgs": [{"jsonPath": "$.lines[0].text", "stringValue": "north"}, {"jsonPath": "$.force", "numberValue": 4}], "willContinue": true}}]),
            Value::Null,
        ),
        event(json!([{"functionCall": {}}]), Value::Null),
        event(json!([{"text": ""}]), json!("STOP")),
    ]
}

fn responses_events() -> Vec<Value> {
    let done = json!({"type": "message", "content": [{"type": "output_text", "text": "Two miles."}]});
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "ZW5j"});
    let call = |arguments: &str| json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "tide", "arguments": arguments});
    let usage = json!({"input_tokens": 613, "output_tokens": 58, "total_tokens": 671, "input_tokens_details": {"cached_tokens": 600}});
    vec![
        json!({"type": "response.created", "response": {"model": "m-1", "error": null, "usage": null}}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning}),
        json!({"type": "response.output_text.delta", "output_index": 2, "item_id": "a", "delta": "Two "}),
        json!({"type": "response.output_text.done", "output_index": 2, "item_id": "b", "text": "Two miles."}),
        json!({"type": "response.output_item.done", "output_index": 2, "item": done}),
        json!({"type": "response.output_item.added", "output_index": 3, "item": call("")}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 3, "delta": "{\"a\":1}"}),
        json!({"type": "response.function_call_arguments.done", "output_index": 3, "arguments": "{\"a\":1}"}),
        json!({"type": "response.output_item.done", "output_index": 3, "item": call("{\"a\":1}")}),
        json!({"type": "response.completed", "response": {"status": "completed", "model": "m-1", "usage": usage,
            "output": [reasoning, done, call("{\"a\":1}")]}}),
    ]
}

#[test]
fn anthropic_thinking_goes_back_with_its_signature() {
    let (parts, ended) = read_events(Interface::Anthropic, &anthropic_events());
    assert_eq!(ended.outcome, Ok(()));
    assert_eq!(texts(&parts), (String::new(), "hm, tide".to_owned()));
    assert_eq!(calls(&ended), ["find_boat {\"berth\":11}"]);
    assert_eq!(counts(&ended), (613, 58, Some(600)));
    assert_eq!((ended.reply.finish, ended.reply.model.as_deref()), (Some(Finish::ToolCalls), Some("m-1")));
    assert_eq!(
        ended.reply.native,
        [json!({"type": "thinking", "thinking": "hm, tide", "signature": "c2ln"})]
    );
    let (_, failed) = read_events(
        Interface::Anthropic,
        &[json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})],
    );
    assert_eq!(failed.outcome.unwrap_err().code, "upstream_error");
}

#[test]
fn tools_that_a_provider_calls_by_itself_are_no_calls() {
    let block = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let (parts, ended) = read_events(
        Interface::Anthropic,
        &[
            block(0, json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})),
            delta(0, json!({"type": "input_json_delta", "partial_json": "{\"query\":\"tide\"}"})),
            block(1, json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": []})),
            block(2, json!({"type": "text", "text": "High."})),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
            json!({"type": "message_stop"}),
        ],
    );
    assert_eq!((ended.outcome, texts(&parts).0.as_str()), (Ok(()), "High."));
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let (parts, ended) = read_events(
        Interface::Responses,
        &[
            json!({"type": "response.output_item.done", "output_index": 0, "item": search}),
            json!({"type": "response.output_text.delta", "output_index": 1, "delta": "High."}),
            json!({"type": "response.completed", "response": {"status": "completed"}}),
        ],
    );
    assert_eq!((ended.outcome, texts(&parts).0.as_str()), (Ok(()), "High."));
    assert!(!ended.reply.deviations.has(Deviation::ContentPart));
}

#[test]
fn google_calls_come_whole_or_in_pieces() {
    let (parts, ended) = read_events(Interface::Google, &google_events());
    assert_eq!(ended.outcome, Ok(()));
    assert_eq!(texts(&parts).1, "hm");
    assert_eq!(
        calls(&ended),
        ["find_boat {\"berth\":11}", "write_log {\"force\":4,\"lines\":[{\"text\":\"wind north\"}]}"]
    );
    assert_eq!(counts(&ended), (613, 58, Some(600)));
    assert_eq!(ended.reply.calls[0].signature.as_deref(), Some("c2ln"));
    let (_, blocked) =
        read_events(Interface::Google, &[json!({"promptFeedback": {"blockReason": "SAFETY"}})]);
    assert_eq!((blocked.outcome, blocked.reply.finish), (Ok(()), Some(Finish::ContentFilter)));
}

#[test]
fn responses_say_each_item_once() {
    let (parts, ended) = read_events(Interface::Responses, &responses_events());
    assert_eq!(ended.outcome, Ok(()));
    assert_eq!(texts(&parts), ("Two miles.".to_owned(), "hm".to_owned()));
    assert_eq!(calls(&ended), ["tide {\"a\":1}"]);
    assert_eq!((counts(&ended), ended.reply.finish), ((613, 58, Some(600)), Some(Finish::ToolCalls)));
    assert_eq!(ended.reply.native.len(), 1);
    assert_eq!(ended.reply.native[0]["encrypted_content"], "ZW5j");
    let (_, cut) = read_events(
        Interface::Responses,
        &[
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "Two"}),
            json!({"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}}),
        ],
    );
    assert_eq!((cut.outcome, cut.reply.finish), (Ok(()), Some(Finish::Length)));
}

#[test]
fn calls_that_are_open_together_keep_their_arguments() {
    let start = |index: Value, id: &str, name: &str| json!({"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": id, "name": name, "input": {}}});
    let more = |index: Value, json: &str| json!({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": json}});
    let end = [
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        json!({"type": "message_stop"}),
    ];
    let none = Value::Null;
    for events in [
        vec![
            start(json!(0), "a", "f"),
            start(json!(1), "b", "g"),
            more(json!(0), "{\"x\":"),
            more(json!(1), "{}"),
            more(json!(0), "1}"),
        ],
        vec![
            start(json!("0"), "a", "f"),
            start(json!("1"), "b", "g"),
            more(json!("0"), "{\"x\":1}"),
            more(json!("1"), "{}"),
        ],
        vec![
            start(none.clone(), "a", "f"),
            more(none.clone(), "{\"x\":1}"),
            start(none.clone(), "b", "g"),
            more(none, "{}"),
        ],
    ] {
        let (_, ended) = read_events(Interface::Anthropic, &[&events[..], &end].concat());
        assert_eq!(
            (&ended.outcome, &calls(&ended)[..]),
            (&Ok(()), &["f {\"x\":1}".to_owned(), "g {}".to_owned()][..]),
            "{events:?}"
        );
    }
}

#[test]
fn signed_thinking_goes_back_with_whole_characters() {
    let delta = |delta: &str| format!("{{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{delta}}}");
    let lines = [
        "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}".to_owned(),
        delta("{\"type\":\"thinking_delta\",\"thinking\":\"a \\ud83d\"}"),
        delta("{\"type\":\"thinking_delta\",\"thinking\":\"\\udea4 b\"}"),
        delta("{\"type\":\"signature_delta\",\"signature\":\"c2ln\"}"),
        "{\"type\":\"message_stop\"}".to_owned(),
    ];
    let (parts, ended) = read_lines(Interface::Anthropic, lines.iter().map(String::as_str));
    assert_eq!(texts(&parts).1, "a 🚤 b");
    assert_eq!(ended.reply.native[0]["thinking"], "a 🚤 b");
}

#[test]
fn responses_are_read_without_pieces_indexes_or_items() {
    let done = json!({"type": "response.completed", "response": {"status": "completed"}});
    let call = |id: &str, name: &str, arguments: &str| json!({"type": "function_call", "id": id, "call_id": id, "name": name, "arguments": arguments});
    let message = json!({"type": "message", "content": [{"type": "output_text", "text": "Two miles."}]});
    let added = |index: Value, item: Value| json!({"type": "response.output_item.added", "output_index": index, "item": item});
    let more = |index: Value, id: &str, text: &str| json!({"type": "response.function_call_arguments.delta", "output_index": index, "item_id": id, "delta": text});
    let completed = |output: Value| json!({"type": "response.completed", "response": {"status": "completed", "output": output}});
    let none = || Value::Null;
    let both = ["f {\"x\":1}", "g {\"y\":2}"];
    for (what, events, text, called) in [
        (
            "index as text",
            vec![
                added(json!("0"), call("a", "f", "")),
                added(json!("1"), call("b", "g", "")),
                more(json!("0"), "a", "{\"x\":1}"),
                more(json!("1"), "b", "{\"y\":2}"),
                done.clone(),
            ],
            "",
            &both[..],
        ),
        (
            "no index",
            vec![
                added(none(), call("a", "f", "")),
                more(none(), "a", "{\"x\":1}"),
                added(none(), call("b", "g", "")),
                more(none(), "b", "{\"y\":2}"),
                done.clone(),
            ],
            "",
            &both,
        ),
        (
            "no index, together",
            vec![
                added(none(), call("a", "f", "")),
                added(none(), call("b", "g", "")),
                more(none(), "b", "{\"y\":2}"),
                more(none(), "a", "{\"x\":1}"),
                done.clone(),
            ],
            "",
            &both,
        ),
        (
            "arguments at their end",
            vec![
                added(json!(0), call("a", "f", "")),
                json!({"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{\"x\":1}"}),
                done.clone(),
            ],
            "",
            &both[..1],
        ),
        (
            "text at its end",
            vec![
                json!({"type": "response.output_text.done", "output_index": 0, "text": "Two miles."}),
                done.clone(),
            ],
            "Two miles.",
            &[],
        ),
        (
            "text in two parts",
            vec![
                json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Two "}),
                json!({"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Two "}),
                json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 1, "delta": "miles."}),
                json!({"type": "response.output_text.done", "output_index": 0, "content_index": 1, "text": "miles."}),
                done,
            ],
            "Two miles.",
            &[],
        ),
        (
            "only in the output",
            vec![completed(json!([message, call("a", "f", "{\"x\":1}")]))],
            "Two miles.",
            &both[..1],
        ),
        (
            "calls in the output",
            vec![
                json!({"type": "response.output_text.delta", "output_index": 0, "delta": "Two "}),
                completed(json!([message, call("a", "f", "{\"x\":1}"), call("b", "g", "{\"y\":2}")])),
            ],
            "Two miles.",
            &both,
        ),
        (
            "the second call in the output",
            vec![
                added(json!(3), call("a", "f", "{\"x\":1}")),
                completed(json!([call("z", "f", "{\"x\":1}"), call("b", "g", "{\"y\":2}")])),
            ],
            "",
            &both,
        ),
    ] {
        let (parts, ended) = read_events(Interface::Responses, &events);
        assert_eq!(
            (&ended.outcome, texts(&parts).0.as_str(), calls(&ended)),
            (&Ok(()), text, called.iter().map(ToString::to_string).collect()),
            "{what}"
        );
    }
}

/// Recorded chunks, one per line. Checks text, reasoning, calls, finish, input and output tokens,
/// and the code of the failure.
#[test]
fn recorded_chunks_of_other_interfaces_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/recordings");
    if !folder.exists() {
        eprintln!("SKIPPED, nothing was tested: recorded chunks are expected in {}", folder.display());
        return;
    }
    let read_file = |interface: Interface, file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        read_lines(interface, text.lines())
    };
    let check =
        |interface: Interface, file: &str, text: &str, called: &[&str], finish: Finish, used: (u64, u64)| {
            let (parts, ended) = read_file(interface, file);
            assert_eq!(ended.outcome, Ok(()), "{file}");
            assert!(texts(&parts).0.starts_with(text), "{file}: {:?}", texts(&parts));
            assert_eq!(calls(&ended), called, "{file}");
            assert_eq!(
                (ended.reply.finish, counts(&ended).0, counts(&ended).1),
                (Some(finish), used.0, used.1),
                "{file}"
            );
            ended
        };
    use Interface::{Anthropic, Google, Responses};
    let thinking = check(
        Anthropic,
        "anthropic/anthropic-clear-thinking.1.jsonl",
        "925 ÷ 5 = 185",
        &[],
        Finish::Stop,
        (69, 53),
    );
    assert!(thinking.reply.native[0]["signature"].as_str().unwrap().starts_with("EvQB"));
    let elements = "json {\"elements\": [{\"location\": \"San Francisco\", \"temperature\": 58, \"condition\": \"sunny\"}]}";
    check(Anthropic, "anthropic/anthropic-json-tool.1.jsonl", "", &[elements], Finish::ToolCalls, (849, 47));
    check(
        Anthropic,
        "anthropic/anthropic-message-delta-input-tokens.jsonl",
        "pong",
        &[],
        Finish::Stop,
        (61, 2),
    );
    check(Anthropic, "anthropic/anthropic-refusal.jsonl", "", &[], Finish::ContentFilter, (18, 5));
    check(
        Anthropic,
        "anthropic/anthropic-tool-no-args.jsonl",
        "I'll update the issue list for you.",
        &["updateIssueList {}"],
        Finish::ToolCalls,
        (565, 48),
    );
    check(
        Anthropic,
        "anthropic/duplicate-message-start.jsonl",
        "Hello, World!",
        &[],
        Finish::Stop,
        (17, 227),
    );
    let signed = check(
        Google,
        "google/google-reasoning.jsonl",
        "There are **3** \"r\"s in strawberry.",
        &[],
        Finish::Stop,
        (9, 285),
    );
    assert_eq!(signed.reply.native.len(), 1);
    check(Google, "google/google-text.jsonl", "There are **3** \"r\"s", &[], Finish::Stop, (9, 208));
    let screens = [
        "read_theme {}",
        "read_screen {\"id\":\"A\"}",
        "read_screen {\"id\":\"B\"}",
        "read_screen {\"id\":\"C\"}",
    ];
    check(Google, "google/google-stream-no-args-tool-call.jsonl", "", &screens, Finish::Stop, (249, 241));
    let weather = check(
        Google,
        "google/google-tool-call-gemini3.jsonl",
        "",
        &["weather {\"location\":\"San Francisco\"}"],
        Finish::Stop,
        (29, 819),
    );
    assert!(weather.reply.calls[0].signature.as_deref().unwrap().starts_with("EpEg"));
    check(
        Responses,
        "openai-responses/github-copilot-id-rotation.1.jsonl",
        "There are **3** letter **“r”**s",
        &[],
        Finish::Stop,
        (19, 105),
    );
    let (parts, ended) = read_file(Responses, "openai-responses/openai-phase.1.jsonl");
    assert_eq!(ended.outcome, Ok(()));
    let (text, _) = texts(&parts);
    assert!(
        text.starts_with("Got it — I’ll quickly check")
            && text.contains("key items with links.Here are a few **AI headlines"),
        "{text}"
    );
    assert_eq!(text.matches("Here are a few").count(), 1, "each item is said once");
    let (_, parallel) = read_file(Responses, "openai-responses/parallel-tool-call-wrapper.1.jsonl");
    assert_eq!(parallel.reply.calls.len(), 1, "{parallel:?}");
    assert_eq!(&*parallel.reply.calls[0].name.tool, "parallel");
    // Two events of this response lack their last bracket.
    assert!(parallel.outcome.is_ok() && parallel.reply.deviations.has(Deviation::InvalidJson));
    let (_, failed) = read_file(Responses, "openai-responses/openai-error.1.jsonl");
    assert_eq!(failed.outcome.unwrap_err().class, model::ErrorClass::Auth, "the account is spent");
}
