//! Deviations of chat completions endpoints from the interface, a table for each kind.

use super::*;

const TWO: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Two\"}}]}\n\n";

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn calls(pieces: Value) -> String {
    chunk(json!({ "tool_calls": pieces }))
}

fn piece(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}})
}

fn called(events: &[String]) -> Vec<String> {
    let whole = of(&[events, &[finish("tool_calls")]].concat());
    assert_eq!(whole.failure, None, "{events:?}");
    whole.calls
}

#[test]
fn a_completion_is_whole_when_it_has_a_message_and_an_end() {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 2});
    for (what, events, failure, text) in [
        (
            "pieces under the name of a whole one",
            vec![json!({"object": "chat.completion", "choices": [{"delta": {"content": "Two mi"}}]})],
            Some("upstream_cut"),
            "Two mi",
        ),
        (
            "pieces with counts",
            vec![
                json!({"object": "chat.completion", "choices": [{"delta": {"content": "Two mi"}}], "usage": usage}),
            ],
            Some("upstream_cut"),
            "Two mi",
        ),
        (
            "piece and message in each",
            vec![
                json!({"object": "chat.completion", "choices": [{"delta": {"content": "Two"}, "message": {"content": "Two"}}], "usage": usage}),
                json!({"object": "chat.completion", "choices": [{"delta": {"content": " mi"}, "message": {"content": "Two mi"}}], "usage": usage}),
            ],
            Some("upstream_cut"),
            "Two mi",
        ),
        (
            "messages in place of pieces",
            vec![
                json!({"object": "chat.completion.chunk", "choices": [{"message": {"content": "Two mi"}}], "usage": usage}),
            ],
            Some("upstream_cut"),
            "Two mi",
        ),
        (
            "a message without an end",
            vec![json!({"choices": [{"message": {"content": "Two mi"}}]})],
            Some("upstream_cut"),
            "Two mi",
        ),
        (
            "a message with a reason",
            vec![json!({"choices": [{"message": {"content": "Two."}, "finish_reason": "stop"}]})],
            None,
            "Two.",
        ),
        (
            "a message with counts",
            vec![json!({"choices": [{"delta": null, "message": {"content": "Two."}}], "usage": usage})],
            None,
            "Two.",
        ),
    ] {
        let whole = of(&events.iter().map(data).collect::<Vec<_>>());
        assert_eq!((whole.failure.as_deref(), whole.text.as_str()), (failure, text), "{what}");
    }
}

#[test]
fn messages_in_place_of_pieces_are_said_once() {
    let event = |message: Value, finish: Value| {
        data(
            &json!({"object": "chat.completion.chunk", "choices": [{"message": message, "finish_reason": finish}]}),
        )
    };
    let none = || Value::Null;
    for (what, texts) in [("pieces", ["Two", " mi", "les"]), ("all so far", ["Two", "Two mi", "Two miles"])] {
        let events = texts.map(|text| event(json!({"content": text}), none()));
        let whole = of(&[&events[..], &[event(json!({"content": ""}), json!("stop"))]].concat());
        assert_eq!((whole.failure, whole.text.as_str()), (None, "Two miles"), "{what}");
    }
    let tool = |arguments: &str| json!({"tool_calls": [piece(0, "a", "find_boat", arguments)]});
    let events = [event(tool("{\"berth\""), none()), event(tool(":11}"), none()), finish("tool_calls")];
    assert_eq!(of(&events).calls, ["find_boat {\"berth\":11}"]);
}

#[test]
fn placeholders_wait_for_their_arguments() {
    let line = "{\"line\":\"x\"}";
    let expected = ["write_log {\"line\":\"x\"}", "find_boat {}"];
    for (what, events, expected) in [
        (
            "between calls",
            vec![
                calls(json!([piece(0, "a", "write_log", "{}")])),
                calls(json!([piece(1, "b", "find_boat", "{}")])),
                calls(json!([{"index": 0, "function": {"arguments": line}}])),
            ],
            &expected[..],
        ),
        (
            "before a blank",
            vec![
                calls(json!([piece(0, "a", "write_log", "{}")])),
                chunk(json!({"content": " "})),
                calls(json!([{"index": 0, "function": {"arguments": line}}])),
            ],
            &expected[..1],
        ),
        (
            "before a text",
            vec![
                calls(json!([piece(0, "a", "write_log", "null")])),
                chunk(json!({"content": "So:"})),
                calls(json!([{"index": 0, "function": {"arguments": "{\"line\":"}}])),
                calls(json!([{"index": 0, "function": {"arguments": "\"x\"}"}}])),
            ],
            &expected[..1],
        ),
        (
            "growing objects between calls",
            vec![
                calls(json!([piece(0, "a", "write_log", "{\"line\":\"\"}")])),
                calls(json!([piece(1, "b", "find_boat", "{}")])),
                calls(json!([piece(0, "a", "write_log", line)])),
                calls(json!([piece(1, "b", "find_boat", "{}")])),
            ],
            &expected,
        ),
        (
            "growing objects around blanks",
            vec![
                calls(json!([piece(0, "a", "write_log", "{\"line\":\"\"}")])),
                chunk(json!({"content": "\n"})),
                calls(json!([piece(0, "a", "write_log", line)])),
            ],
            &expected[..1],
        ),
    ] {
        let whole = of(&[&events[..], &[finish("tool_calls")]].concat());
        assert_eq!(
            (whole.failure, &whole.calls[..], &whole.shown[..]),
            (None, &expected.iter().map(ToString::to_string).collect::<Vec<_>>()[..], &whole.calls[..]),
            "{what}"
        );
    }
    // Shown text cannot be withdrawn. It is the beginning of the tool's arguments.
    let grown = vec![
        calls(json!([piece(0, "a", "find_boat", "{\"berth\":1}")])),
        chunk(json!({"content": "So:"})),
        calls(json!([piece(0, "a", "find_boat", "{\"berth\":11}")])),
    ];
    assert_eq!(called(&grown), ["find_boat {\"berth\":11}"]);
    let other = vec![
        calls(json!([piece(0, "a", "find_boat", "{\"berth\":1}")])),
        chunk(json!({"content": "So:"})),
        calls(json!([piece(0, "a", "find_boat", "{\"berth\":2}")])),
        finish("tool_calls"),
    ];
    assert_eq!(of(&other).failure.as_deref(), Some("bad_stream"));
}

#[test]
fn a_call_in_two_forms_of_one_message_is_one() {
    let function = json!({"name": "find_boat", "arguments": "{\"berth\":11}"});
    let tool = json!({"index": 0, "id": "a", "function": function});
    for delta in [
        json!({"tool_calls": [tool], "function_call": function}),
        json!({"tool_calls": [], "function_call": function}),
        json!({"tool_calls": [tool], "content": [{"type": "tool_use", "id": "a", "name": "find_boat", "input": {"berth": 11}}]}),
        json!({"content": [{"type": "tool_use", "id": "a", "name": "find_boat", "input": {"berth": 11}}]}),
    ] {
        assert_eq!(called(&[chunk(delta.clone())]), ["find_boat {\"berth\":11}"], "{delta}");
    }
    let two = json!({"tool_calls": [tool], "content": [{"type": "tool_use", "id": "b", "name": "find_boat", "input": {"berth": 11}}]});
    assert_eq!(called(&[chunk(two)]).len(), 2, "an id of its own");
}

#[test]
fn an_empty_call_is_none() {
    let empty = json!([{"id": "", "function": {"name": "", "arguments": ""}}]);
    let text = |text: &str| chunk(json!({"content": text, "tool_calls": empty}));
    let whole = of(&[text("Two"), text(" miles."), finish("stop")]);
    assert_eq!((whole.failure, whole.text.as_str(), whole.calls.len()), (None, "Two miles.", 0));
    assert!(whole.deviations.has(Deviation::CallShape));
    let announced = of(&[text("Two"), finish("tool_calls")]);
    assert_eq!(announced.failure.as_deref(), Some("missing_calls"));
}

#[test]
fn parts_say_all_that_they_have() {
    for (content, text, reasoning) in [
        (json!([{"thinking": "Look"}, {"text": "Two"}]), "Two", "Look"),
        (json!([{"type": "thinking", "text": "", "thinking": "Look"}, "Two"]), "Two", "Look"),
        (json!([{"type": "text", "text": "", "content": "Two"}]), "Two", ""),
        (json!([{"type": "text", "text": null, "value": "Two"}]), "Two", ""),
        (json!([{"type": "text", "text": "Two", "thinking": "Look"}]), "Two", "Look"),
        (json!([{"type": "text", "text": "Two", "thinking": ""}]), "Two", ""),
        (json!([{"type": "thinking", "text": "Look", "thinking": "Look"}, "Two"]), "Two", "Look"),
        (json!([{"type": "thinking", "text": " out", "thinking": "Look"}, "Two"]), "Two", "Look out"),
        (json!([{"reasoning": {"text": "Look"}, "text": [{"text": "Two"}]}]), "Two", "Look"),
        (
            json!([{"type": "message", "content": [{"type": "thinking", "thinking": "Look"}, {"type": "text", "text": "Two"}]}]),
            "Two",
            "Look",
        ),
        (json!([{"type": "output_text", "text": {"value": "Two", "annotations": []}}]), "Two", ""),
    ] {
        let whole = of(&[chunk(json!({"content": content})), finish("stop")]);
        assert_eq!((whole.text.as_str(), whole.reasoning.as_str()), (text, reasoning), "{content}");
        assert_eq!(whole.deviations.iter().collect::<Vec<_>>(), [Deviation::NoEnd], "{content}");
    }
    let whole = of(&[chunk(json!({"content": [{"type": "text", "text": ""}, "Two"]})), finish("stop")]);
    assert!(!whole.deviations.has(Deviation::ContentPart), "an empty text is a text");
}

#[test]
fn the_index_of_a_choice_may_count_pieces() {
    let choice = |index: Value, text: &str| json!({"index": index, "delta": {"content": text}});
    let one = |index: Value, text: &str| data(&json!({"choices": [choice(index, text)]}));
    for (what, events, text) in [
        ("counts", vec![one(json!(0), "Two"), one(json!(1), " mi"), one(json!(2), "les")], "Two miles"),
        (
            "counts as text",
            vec![one(json!("0"), "Two"), one(json!("1"), " mi"), one(json!("2"), "les")],
            "Two miles",
        ),
        (
            "another choice as text",
            vec![
                data(&json!({"choices": [choice(json!("0"), "Two"), choice(json!("1"), "Drei")]})),
                one(json!("1"), "!"),
                one(json!("0"), " miles"),
            ],
            "Two miles",
        ),
        (
            "two without an index",
            vec![
                data(&json!({"choices": [{"delta": {"content": "Two"}}, {"delta": {"content": "Drei"}}]})),
                one(json!(0), " miles"),
            ],
            "Two miles",
        ),
        (
            "in turn",
            vec![one(json!(0), "Two"), one(json!(1), ""), one(json!(0), " miles"), one(json!(1), "Drei")],
            "Two miles",
        ),
        ("always one", vec![one(json!(1), "Two"), one(json!(1), " miles")], "Two miles"),
        ("none", vec![one(json!(null), "Two"), one(json!(null), " miles")], "Two miles"),
    ] {
        let whole = of(&[&events[..], &[DONE.to_owned()]].concat());
        assert_eq!((whole.failure, whole.text.as_str()), (None, text), "{what}");
    }
}

#[test]
fn json_that_is_no_object_is_read_or_said_to_be_lost() {
    let good = json!({"choices": [{"delta": {"content": " miles"}}]});
    for (event, failure, text) in [
        ("data: [{\"error\":{\"message\":\"x\"}}]\n\n".to_owned(), Some("upstream_error"), "Two"),
        ("data: \"error: out of memory\"\n\n".to_owned(), Some("upstream_error"), "Two"),
        (
            "data: \"{\\\"error\\\":{\\\"message\\\":\\\"x\\\"}}\"\n\n".to_owned(),
            Some("upstream_error"),
            "Two",
        ),
        ("data: [ERROR]\n\n".to_owned(), Some("upstream_error"), "Two"),
        ("data: [error, NaN]\n\n".to_owned(), Some("upstream_error"), "Two"),
        (format!("data: [{good}]\n\n"), None, "Two miles"),
        (format!("[{good}\n,\n{good}]\n"), None, "Two miles miles"),
        (data(&json!(good.to_string())), None, "Two miles"),
    ] {
        let whole = of(&[TWO.to_owned(), event.clone(), finish("stop")]);
        assert_eq!((whole.failure.as_deref(), whole.text.as_str()), (failure, text), "{event}");
    }
    for lost in ["null", "7", "true", "[]", "[null]", "\"ping\"", "\" \""] {
        let whole = of(&[TWO.to_owned(), format!("data: {lost}\n\n"), finish("stop")]);
        assert_eq!((whole.failure, whole.text.as_str()), (None, "Two"), "{lost}");
        assert!(whole.deviations.has(Deviation::NotJson), "{lost}");
    }
}

#[test]
fn events_that_are_joined_or_framed_twice_are_read() {
    let (two, miles) = (
        json!({"choices": [{"delta": {"content": "Two"}}]}),
        json!({"choices": [{"delta": {"content": " miles"}}]}),
    );
    for text in [
        format!("data: data: {two}\n\ndata: {miles}\n\n"),
        format!("data: ping\ndata: {two}\n\ndata: {miles}\n\n"),
        format!("data: {two}{miles}\n\n"),
        format!("data: {two},\n\ndata: {miles},\n\n"),
        format!("data: {two}}}\n\ndata: {miles}]\n\n"),
        format!("data: {two},\ndata: {miles}}}\n"),
        format!("{two}{miles}\n"),
    ] {
        let whole = read(format!("{text}data: data: [DONE]\n\n").as_bytes());
        assert_eq!((whole.failure, whole.text.as_str()), (None, "Two miles"), "{text}");
    }
    let whole = of(&[format!("data: {two}[DONE]\n\n"), "data: {}\n\n".to_owned()]);
    assert_eq!((whole.failure, whole.text.as_str()), (None, "Two"));
}

#[test]
fn what_is_no_error_does_not_end_an_answer() {
    for none in [
        json!(0),
        json!(false),
        json!(""),
        json!({}),
        json!([]),
        json!("none"),
        json!({"code": 0, "message": "success"}),
        json!({"code": null, "message": ""}),
    ] {
        let event = data(&json!({"error": none, "choices": [{"delta": {"content": "ok"}}]}));
        assert_eq!(of(&[event, DONE.to_owned()]).failure, None, "{none}");
    }
    for (error, code) in [
        (json!({"error": "Bad Request", "status": 400, "message": "prompt is too long"}), "upstream_refused"),
        (json!({"error": "invalid_api_key", "status": 401}), "upstream_auth"),
        (json!({"error": "x", "error_type": "validation"}), "upstream_error"),
    ] {
        assert_eq!(of(&[data(&error), DONE.to_owned()]).failure.as_deref(), Some(code), "{error}");
    }
}

#[test]
fn finish_reasons_are_found_under_other_names() {
    let length = Some(Finish::Length);
    for (event, finish) in [
        (json!({"choices": [{"delta": {}, "finishReason": "MAX_TOKENS"}]}), length),
        (json!({"choices": [{"delta": {}, "stop_reason": "max_tokens"}]}), length),
        (json!({"choices": [{"delta": {}, "finish_reason": null, "stop_reason": "max_tokens"}]}), length),
        (json!({"choices": [{"delta": {"stop_reason": "max_tokens"}}]}), length),
        (json!({"choices": [{"delta": {}, "stop_reason": 128_009}]}), None),
        (json!({"choices": [{"delta": {}}], "finish_reason": "length"}), length),
        (
            json!({"choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": 128_009}]}),
            Some(Finish::Stop),
        ),
        (
            json!({"choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": "</limit>"}]}),
            Some(Finish::Stop),
        ),
    ] {
        let whole = of(&[TWO.to_owned(), data(&event), DONE.to_owned()]);
        assert_eq!((whole.failure, whole.finish), (None, finish), "{event}");
        assert!(!whole.deviations.has(Deviation::FinishReason), "{event}");
    }
}

#[test]
fn what_is_beside_a_call_goes_back_with_it() {
    let extra = json!({"google": {"thought_signature": "c2ln"}});
    let mut one = piece(0, "a", "tide", "{}");
    one["extra_content"] = extra.clone();
    let bytes = [
        calls(json!([one])),
        calls(json!([{"index": 0, "function": {"arguments": ""}}])),
        finish("tool_calls"),
    ]
    .concat();
    let mut known = HashSet::new();
    let mut reader = Reader::new(Interface::default(), 0, &mut known, &[], false);
    reader.push(bytes.as_bytes());
    let reply = reader.end(None).reply;
    assert_eq!(reply.calls[0].extra_content, Some(extra));
}
