//! Requests that the four protocols accept and refuse.

use model::{AgentId, ThreadId, TurnId};
use serde_json::{Value, json};

use super::field::Field;
use super::*;
use crate::responses::Follows;
use crate::{agui, chat_completions, openai, responses, ui_message};

fn thread(id: &str) -> ThreadId {
    ThreadId::parse(id).unwrap()
}

fn bytes(body: &Value) -> Vec<u8> {
    body.to_string().into_bytes()
}

/// `code param` of a refusal.
fn refused<T: std::fmt::Debug>(outcome: Result<T, BadRequest>) -> String {
    let error = outcome.unwrap_err();
    format!("{} {}", kind(&error), error.param().unwrap_or("-"))
}

fn kind(error: &BadRequest) -> &'static str {
    match error {
        BadRequest::NotAnObject(_) => "invalid_json",
        BadRequest::Missing { .. } => "missing_required_parameter",
        BadRequest::Invalid { .. }
        | BadRequest::InvalidId { .. }
        | BadRequest::InvalidMetadata { .. }
        | BadRequest::UnknownModel { .. } => "invalid_value",
        BadRequest::Unsupported { .. } => "unsupported_parameter",
        BadRequest::NoInput { .. } => "no_input",
        BadRequest::EmptyInput { .. } => "empty_input",
        BadRequest::NoThread { .. } => "no_thread",
    }
}

fn rejection(error: &BadRequest) -> RequestRejection {
    let param = error.param().map(str::to_owned);
    RequestRejection { param, ..RequestRejection::new(400, kind(error), error.to_string()) }
}

/// The body with a field replaced.
fn with(body: &Value, field: &str, value: Value) -> Vec<u8> {
    let mut body = body.clone();
    body[field] = value;
    bytes(&body)
}

mod of_the_ai_sdk {
    use super::*;

    fn body() -> Value {
        json!({
            "id": "t1", "trigger": "submit-message",
            "messages": [
                {"id": "1", "role": "user", "parts": [{"type": "file", "url": "data:,"}]},
                {"id": "2", "role": "assistant", "parts": [{"type": "dynamic-tool", "toolCallId": "a"}]},
                {"id": "3", "role": "user", "metadata": {"x": 1}, "parts": [
                    {"type": "text", "text": "What"}, {"type": "data-place", "data": 7}, {"type": "text", "text": "is it?"}
                ]}
            ]
        })
    }

    fn parse(field: &str, value: Value) -> Result<ui_message::UiMessageRequest, BadRequest> {
        ui_message::UiMessageRequest::parse(&with(&body(), field, value), None)
    }

    #[test]
    fn the_last_message_is_the_input() {
        let request = ui_message::UiMessageRequest::parse(&bytes(&body()), None).unwrap();
        assert_eq!((request.thread, &*request.text), (thread("t1"), "What\nis it?"));
        assert_eq!(request.agent, None);
        assert_eq!(parse("agent", json!("talk")).unwrap().agent, Some(AgentId::parse("talk").unwrap()));
        assert_eq!(request.input_id.as_deref(), Some("3"));
        assert_eq!(request.metadata.get("x"), Some(&json!(1)));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place() {
        let again = with(&body(), "trigger", json!("regenerate-message"));
        let again: Value = serde_json::from_slice(&again).unwrap();
        let regenerates = |body: &[u8]| {
            ui_message::UiMessageRequest::parse(body, None).unwrap().regenerates.unwrap().message
        };
        assert_eq!(regenerates(&bytes(&again)), None);
        assert_eq!(regenerates(&with(&again, "messageId", json!("7"))).as_deref(), Some("7"));
        assert_eq!(refused(parse("trigger", json!("x"))), "invalid_value trigger");
        assert_eq!(refused(parse("messageId", json!("1"))), "unsupported_parameter messageId");
        assert_eq!(refused(parse("id", json!("a.b"))), "invalid_value id");
        assert_eq!(refused(parse("id", json!(null))), "missing_required_parameter id");
        assert_eq!(refused(parse("messages", json!([]))), "no_input messages");
        let last = |message| refused(parse("messages", json!([message])));
        assert_eq!(last(json!({"role": "assistant", "parts": []})), "no_input messages");
        assert_eq!(last(json!({"role": "user", "parts": []})), "empty_input messages[0].parts");
        assert_eq!(last(json!({"role": "user"})), "missing_required_parameter messages[0].parts");
        assert_eq!(last(json!(7)), "invalid_value messages[0]");
        let part = |part| last(json!({"role": "user", "parts": [{"type": "text", "text": "x"}, part]}));
        assert_eq!(
            part(json!({"type": "file", "url": "data:,"})),
            "unsupported_parameter messages[0].parts[1].type"
        );
        assert_eq!(part(json!({"type": "text"})), "missing_required_parameter messages[0].parts[1].text");
        assert_eq!(part(json!({"type": "text", "text": "\0"})), "invalid_value messages[0].parts");
    }

    #[test]
    fn a_refusal_is_what_the_page_shows() {
        let error = ui_message::UiMessageRequest::parse(b"[", None).unwrap_err();
        let body = ui_message::error_body(&rejection(&error));
        assert_eq!(body.content_type, "text/plain; charset=utf-8");
        assert_eq!(body.bytes, "the body must be a JSON object: EOF while parsing a list at line 1 column 1");
    }
}

mod of_responses {
    use super::*;

    fn parse(body: Value) -> Result<responses::ResponseRequest, BadRequest> {
        responses::ResponseRequest::parse(&bytes(&body), None)
    }

    #[test]
    fn a_text_or_a_message_is_the_input() {
        let request = parse(json!({
            "model": "talk", "input": "hello", "instructions": null, "stream": true, "background": true,
            "metadata": {"k": "v"}, "store": true, "tools": [], "text": {"format": {"type": "text"}}
        }))
        .unwrap();
        assert_eq!((request.model.as_deref(), request.follows), (Some("talk"), Follows::Nothing));
        assert_eq!(request.text, "hello");
        assert!(request.stream && request.background && request.metadata.get("k").is_some());
        let items = json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        ]);
        let request = parse(json!({"input": items, "conversation": {"id": "t1"}})).unwrap();
        assert_eq!((request.model, request.follows), (None, Follows::Thread(thread("t1"))));
        assert_eq!(request.text, "hello");
        assert!(!request.stream && !request.background);
        let after = parse(json!({"input": "x", "previous_response_id": "resp_m"})).unwrap().follows;
        assert_eq!(after, Follows::Response("resp_m".to_owned()));
        assert_eq!(
            parse(json!({"input": "x", "conversation": "t2"})).unwrap().follows,
            Follows::Thread(thread("t2"))
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place() {
        let refused = |body| refused(parse(body));
        assert_eq!(refused(json!({})), "missing_required_parameter input");
        assert_eq!(refused(json!({"input": ""})), "empty_input input");
        assert_eq!(refused(json!({"input": 7})), "invalid_value input");
        for model in ["", "a\nb", &"m".repeat(257)] {
            assert_eq!(refused(json!({"input": "x", "model": model})), "invalid_value model", "{model:?}");
        }
        assert_eq!(refused(json!({"input": "x", "stream": "yes"})), "invalid_value stream");
        assert_eq!(refused(json!({"input": "x", "tools": [{}]})), "unsupported_parameter tools");
        assert_eq!(refused(json!({"input": "x", "prompt": {"id": "p"}})), "unsupported_parameter prompt");
        let format = json!({"format": {"type": "grammar"}});
        assert_eq!(refused(json!({"input": "x", "text": format})), "unsupported_parameter text.format");
        assert_eq!(refused(json!({"input": "x", "metadata": {"k": "\0"}})), "invalid_value metadata");
        let both = json!({"input": "x", "conversation": "t", "previous_response_id": "r"});
        assert_eq!(refused(both), "unsupported_parameter previous_response_id");
        let terse = json!({"verbosity": "terse"});
        assert_eq!(refused(json!({"input": "x", "text": terse})), "invalid_value text.verbosity");
        let summary = json!({"effort": "low", "summary": "verbose"});
        assert_eq!(
            refused(json!({"input": "x", "reasoning": summary})),
            "unsupported_parameter reasoning.summary"
        );
        let noise = json!({"include_obfuscation": true});
        assert_eq!(
            refused(json!({"input": "x", "stream_options": noise})),
            "unsupported_parameter stream_options.include_obfuscation"
        );
        let result = json!([{"type": "function_call_output", "call_id": "c", "output": "x"}]);
        assert_eq!(refused(json!({"input": result})), "unsupported_parameter input[0].type");
        let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
        assert_eq!(refused(json!({"input": image})), "unsupported_parameter input[0].content[0].type");
        let two = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
        assert_eq!(refused(json!({"input": two, "conversation": "t"})), "unsupported_parameter input");
        assert_eq!(
            refused(json!({"input": two, "previous_response_id": "r"})),
            "unsupported_parameter input"
        );
        let call = json!([{"type": "function_call_output", "call_id": "c", "output": "x"}, {"role": "user", "content": "x"}]);
        assert_eq!(
            refused(json!({"input": call, "conversation": "t"})),
            "unsupported_parameter input[0].type"
        );
    }

    #[test]
    fn what_came_before_is_sent_along_where_its_thread_is_named() {
        let input = json!([
            {"role": "user", "content": "a"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
            {"type": "mcp_call", "id": "mcp_1", "server_label": "antiphon", "name": "f", "arguments": "{}", "output": "1"},
            {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
            {"role": "user", "content": "b"}
        ]);
        let after = json!({"input": input, "previous_response_id": "resp_m"});
        let request = parse(after).unwrap();
        assert_eq!((&*request.text, request.wanted), ("b", Wanted::default()));
        let call = json!({"id": "mcp_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let text = json!([{"type": "text", "text": "A"}]);
        let messages = vec![
            (0, json!({"role": "user", "content": "a"})),
            (2, json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            (2, json!({"role": "tool", "tool_call_id": "mcp_1", "content": "1"})),
            (3, json!({"role": "assistant", "content": text})),
        ];
        for body in [json!({"input": input, "conversation": "t"}), json!({ "input": input })] {
            let request = parse(body).unwrap();
            let history = request.wanted.history.unwrap();
            assert_eq!((&*request.text, &history.messages), ("b", &messages));
            assert_eq!(refused::<()>(Err(history.refusal())), "no_thread input");
        }
    }

    #[test]
    fn items_of_the_threads_answers_may_be_named_by_their_ids() {
        let turn = TurnId::foreground(&thread("t"), "x").unwrap();
        let answer = turn.answer(0);
        let parse = |id: &str, place: Value| {
            let mut body = place;
            body["input"] = json!([
                {"role": "user", "content": "a"}, {"type": "item_reference", "id": id}, {"role": "user", "content": "b"}
            ]);
            parse(body)
        };
        let places =
            [json!({"conversation": "t"}), json!({"previous_response_id": responses::id_of(&answer)})];
        for place in places {
            for kind in ["msg", "rs", "mcp"] {
                let request = parse(&format!("{kind}_{answer}-p1"), place.clone()).unwrap();
                assert_eq!(&*request.text, "b");
            }
            let of_another = TurnId::foreground(&thread("u"), "x").unwrap().answer(0);
            let others = [format!("msg_{of_another}-p1"), format!("msg_{answer}"), format!("fc_{answer}-p1")];
            for id in others.iter().map(String::as_str).chain(["msg_abc", "msg_x-p1"]) {
                assert_eq!(refused(parse(id, place.clone())), "unsupported_parameter input[1].id", "{id}");
            }
        }
        // Without a name the item's own thread is meant.
        let placed = parse(&format!("msg_{answer}-p0"), json!({})).unwrap();
        assert_eq!(placed.follows, responses::Follows::Response(responses::id_of(&answer)));
        assert_eq!(refused(parse("msg_abc", json!({}))), "unsupported_parameter input[1].id");
    }

    #[test]
    fn model_parameters_are_passed_under_common_names() {
        let schema =
            json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
        let input = json!([{"role": "developer", "content": "In French."}, {"role": "user", "content": "x"}]);
        let request = parse(json!({
            "input": input, "instructions": "Be brief.", "max_output_tokens": 20, "reasoning": {"effort": "low"},
            "text": {"format": schema, "verbosity": "low"}
        }));
        let wanted = request.unwrap().wanted;
        assert_eq!(
            wanted.parameters.to_value(),
            json!({
                "max_completion_tokens": 20, "reasoning_effort": "low", "verbosity": "low", "response_format": {
                    "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}},
            })
        );
        let text = "Be brief.\n\nIn French.".to_owned();
        assert_eq!(wanted.instructions, Some(Instructions { param: "instructions".to_owned(), text }));
        assert_eq!(wanted.history, None);
        let empty = parse(json!({"input": "x", "instructions": ""})).unwrap().wanted;
        assert_eq!(empty, Wanted { parameters: Metadata::EMPTY, ..Wanted::default() });
    }
}

mod of_completions {
    use super::*;

    fn body() -> Value {
        json!({
            "model": "talk", "stream": true, "stream_options": {"include_usage": true}, "n": 1,
            "tools": null,
            "messages": [{"role": "user", "content": "hello"}]
        })
    }

    fn parse(field: &str, value: Value) -> Result<chat_completions::CompletionRequest, BadRequest> {
        chat_completions::CompletionRequest::parse(&with(&body(), field, value), None, None)
    }

    #[test]
    fn the_last_message_is_the_input() {
        let request = chat_completions::CompletionRequest::parse(&bytes(&body()), None, None).unwrap();
        assert_eq!((&*request.model, &*request.text, request.thread), ("talk", "hello", None));
        assert!(request.stream && request.include_usage);
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": "x"}]}]);
        let request = parse("messages", parts).unwrap();
        assert_eq!(request.text, "x");
    }

    #[test]
    fn earlier_messages_need_a_thread_in_which_they_were_said() {
        let messages = json!([
            {"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "user", "content": "b"}
        ]);
        let body = json!({"model": "talk", "messages": &messages});
        let parse = |body: &[u8], named| chat_completions::CompletionRequest::parse(body, named, None);
        let history = parse(&bytes(&body), None).unwrap().wanted.history.unwrap();
        assert_eq!(refused::<()>(Err(history.refusal())), "no_thread messages");
        let earlier = messages.as_array().unwrap().iter().cloned().enumerate().take(2);
        assert_eq!(history.messages, earlier.collect::<Vec<_>>());
        let request = parse(&bytes(&body), Some(thread("t1"))).unwrap();
        assert_eq!((request.thread, &*request.text), (Some(thread("t1")), "b"));
        let named = with(&body, "metadata", json!({"thread_id": "t2"}));
        assert_eq!(parse(&named, None).unwrap().thread, Some(thread("t2")));
        assert_eq!(parse(&named, Some(thread("t1"))).unwrap().thread, Some(thread("t1")));
        let wrong = with(&body, "metadata", json!({"thread_id": "a.b"}));
        assert_eq!(refused(parse(&wrong, None)), "invalid_value metadata.thread_id");
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place() {
        assert_eq!(refused(parse("model", json!(null))), "missing_required_parameter model");
        assert_eq!(refused(parse("n", json!(2))), "unsupported_parameter n");
        assert_eq!(refused(parse("tools", json!([{}]))), "unsupported_parameter tools");
        assert_eq!(refused(parse("logprobs", json!(true))), "unsupported_parameter logprobs");
        assert!(parse("logprobs", json!(false)).is_ok() && parse("modalities", json!([])).is_ok());
        assert_eq!(
            refused(parse("response_format", json!({"type": "x"}))),
            "unsupported_parameter response_format"
        );
        assert_eq!(refused(parse("tool_choice", json!("required"))), "invalid_value tool_choice");
        let tool = json!([{"role": "tool", "tool_call_id": "a", "content": "x"}]);
        assert_eq!(refused(parse("messages", tool)), "no_input messages");
        let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        assert_eq!(refused(parse("messages", image)), "unsupported_parameter messages[0].content[0].type");
    }

    #[test]
    fn instructions_are_no_history() {
        let input = json!([
            {"role": "system", "content": [{"type": "text", "text": "be brief"}]}, {"role": "developer", "content": ""},
            {"role": "user", "content": "x"}
        ]);
        let request = parse("messages", input).unwrap();
        let said = Instructions { param: "messages[0].content".to_owned(), text: "be brief".to_owned() };
        assert_eq!(
            (&*request.text, request.wanted.instructions, request.wanted.history),
            ("x", Some(said), None)
        );
        let format = json!({"type": "json_object"});
        let parameters = parse("response_format", format.clone()).unwrap().wanted.parameters;
        assert_eq!(parameters.to_value(), json!({ "response_format": format }));
    }

    #[test]
    fn a_refusal_has_openais_form() {
        let error = parse("n", json!(2)).unwrap_err();
        let body = openai::error_body(&rejection(&error));
        assert_eq!(body.content_type, "application/json");
        assert_eq!(
            body.bytes,
            r#"{"error":{"message":"`n`: a turn has one answer","type":"invalid_request_error","param":"n","code":"unsupported_parameter"}}"#
        );
        let kinds = [400, 401, 403, 404, 409, 429, 500, 503].map(|status| {
            let body = openai::error_body(&RequestRejection::new(status, "c", "m"));
            let body: Value = serde_json::from_slice(&body.bytes).unwrap();
            body["error"]["type"].as_str().unwrap().to_owned()
        });
        let invalid = "invalid_request_error";
        let server = "server_error";
        let (who, may) = ("authentication_error", "permission_error");
        assert_eq!(kinds, [invalid, who, may, invalid, invalid, "rate_limit_error", server, server]);
    }
}

mod of_ag_ui {
    use super::*;

    fn body() -> Value {
        json!({
            "threadId": "t1", "runId": "run 1", "state": {}, "tools": [], "context": [], "forwardedProps": {},
            "messages": [
                {"id": "1", "role": "user", "content": "a"}, {"id": "2", "role": "assistant"},
                {"id": "3", "role": "user", "content": [{"type": "text", "text": "hello"}]}
            ]
        })
    }

    fn parse(field: &str, value: Value) -> Result<agui::AgUiRequest, BadRequest> {
        agui::AgUiRequest::parse(&with(&body(), field, value), None)
    }

    #[test]
    fn the_last_message_is_the_input() {
        let request = agui::AgUiRequest::parse(&bytes(&body()), None).unwrap();
        assert_eq!((request.thread, &*request.run, &*request.text), (thread("t1"), "run 1", "hello"));
        assert_eq!(request.input_id.as_deref(), Some("3"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place() {
        assert_eq!(refused(parse("threadId", json!("a b"))), "invalid_value threadId");
        assert_eq!(refused(parse("runId", json!(null))), "missing_required_parameter runId");
        assert_eq!(refused(parse("messages", json!({}))), "invalid_value messages");
        assert_eq!(refused(parse("resume", json!([{}]))), "unsupported_parameter resume");
        assert_eq!(refused(parse("tools", json!([{"name": "f"}]))), "unsupported_parameter tools");
        assert_eq!(refused(parse("protocolVersion", json!("2.0"))), "unsupported_parameter protocolVersion");
        assert!(parse("protocolVersion", json!("1.0")).is_ok());
        let image = json!([{"id": "1", "role": "user", "content": [{"type": "image"}]}]);
        assert_eq!(refused(parse("messages", image)), "unsupported_parameter messages[0].content[0].type");
    }

    #[test]
    fn a_refusal_is_json_with_the_fields_of_an_error() {
        let body = agui::error_body(&rejection(&parse("runId", json!(7)).unwrap_err()));
        assert_eq!(body.content_type, "application/json");
        assert_eq!(body.bytes, r#"{"message":"`runId` must be a string","code":"invalid_value"}"#);
    }
}

/// The README's word for the handling of a field.
fn said(known: &Known, field: &str) -> String {
    match known.iter().find(|known| known.name == field).map(|known| known.used) {
        Some(Use::Read(_) | Use::Required(_)) => "read".to_owned(),
        Some(Use::Handed(name, _)) if name == field => "handed over".to_owned(),
        Some(Use::Handed(name, _)) => format!("handed over as `{name}`"),
        Some(Use::Only(values, _)) => format!("only `{}`", values.join("` or `")),
        Some(Use::Refused(_)) | None => "refused".to_owned(),
    }
}

/// The tables in the order of the page's columns.
const TABLES: [&Known; 4] = [
    chat_completions::request::FIELDS,
    responses::request::FIELDS,
    ui_message::request::FIELDS,
    agui::request::FIELDS,
];

#[test]
fn every_field_is_in_the_book_with_what_is_done_with_it() {
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/docs/src/reference/client-protocols.md"
    ))
    .unwrap();
    let head = "| field | chat completions | Responses | `/api/chat` | AG-UI |\n";
    let (_, table) = page.split_once(head).unwrap();
    let rows: Vec<_> = table.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    let mut fields: Vec<_> = TABLES.iter().flat_map(|known| known.iter().map(|field| field.name)).collect();
    fields.sort_unstable();
    fields.dedup();
    let expected = fields.iter().map(|field| {
        let [completions, responses, chat, agui] = TABLES.map(|known| said(known, field));
        format!("| `{field}` | {completions} | {responses} | {chat} | {agui} |")
    });
    let expected: Vec<_> = expected.collect();
    assert_eq!(rows, expected, "the page should say:\n{}", expected.join("\n"));
}

/// Values of the shape, and values of other shapes.
fn of_shape(shape: FieldShape) -> (Vec<Value>, Vec<Value>) {
    let (good, bad) = match shape {
        FieldShape::Number(from, to, _) => {
            (json!([from, to, 1]), json!([from - 0.1, to + 0.1, "1", true, [1]]))
        }
        FieldShape::Count => (json!([1, 4_096]), json!([0, -1, 1.5, "1"])),
        FieldShape::Integer => (json!([0, -7, 9_007_199_254_740_992_i64]), json!([1.5, "1", {}])),
        FieldShape::Flag => (json!([true, false]), json!([0, "true"])),
        FieldShape::Text => (json!(["x"]), json!(["", 1, ["x"]])),
        FieldShape::OneOf(all, _) => (json!(all), json!(["other", "", 1, {"type": "function"}])),
        FieldShape::Texts => (
            json!(["x", ["x"], ["a", "b", "c", "d"]]),
            json!(["", [], [""], ["a", 1], 7, ["a", "b", "c", "d", "e"]]),
        ),
        FieldShape::NumberMap => (json!([{"50256": -100}]), json!([{"50256": "x"}, [1], 1])),
        FieldShape::Object => (json!([{"a": {"b": [1]}}]), json!([[1], "x", 1])),
    };
    (good.as_array().unwrap().clone(), bad.as_array().unwrap().clone())
}

#[test]
fn every_field_is_treated_as_its_table_says() {
    let completion = json!({"model": "talk", "messages": [{"role": "user", "content": "x"}]});
    let response = json!({"model": "talk", "input": "x"});
    let chat = json!({"id": "t1", "messages": [{"id": "3", "role": "user", "parts": [{"type": "text", "text": "x"}]}]});
    let run =
        json!({"threadId": "t1", "runId": "r", "messages": [{"id": "3", "role": "user", "content": "x"}]});
    type Parse = fn(&[u8]) -> Result<Wanted, BadRequest>;
    let protocols: [(Value, Parse); 4] = [
        (completion, |body| {
            chat_completions::CompletionRequest::parse(body, None, None).map(|request| request.wanted)
        }),
        (response, |body| responses::ResponseRequest::parse(body, None).map(|request| request.wanted)),
        (chat, |body| ui_message::UiMessageRequest::parse(body, None).map(|request| request.wanted)),
        (run, |body| agui::AgUiRequest::parse(body, None).map(|request| request.wanted)),
    ];
    for (known, (body, parse)) in TABLES.into_iter().zip(protocols) {
        let unsupported = |field: &str, value| {
            assert_eq!(refused(parse(&with(&body, field, value))), format!("unsupported_parameter {field}"));
        };
        unsupported("no_such_field", json!("x"));
        unsupported("no_such_field", json!(false));
        for Field { name: field, used, .. } in known {
            let parse = |value: &Value| parse(&with(&body, field, value.clone()));
            match used {
                Use::Read(_) | Use::Required(_) => {}
                Use::Handed(name, shape) => {
                    let (good, bad) = of_shape(*shape);
                    for value in good {
                        let parameters = parse(&value).unwrap().parameters.to_value();
                        assert_eq!(parameters, json!({ *name: value }), "{field}");
                    }
                    for value in bad {
                        assert_eq!(refused(parse(&value)), format!("invalid_value {field}"), "{value}");
                    }
                }
                Use::Only(values, _) => {
                    for value in *values {
                        let wanted = parse(&serde_json::from_str(value).unwrap());
                        assert_eq!(wanted, Ok(Wanted::default()), "{field}");
                    }
                    for value in [json!("other"), json!(false), json!(2), json!(["audio"])] {
                        unsupported(field, value);
                    }
                }
                Use::Refused(_) => {
                    for value in
                        [json!("x"), json!(0), json!(0.5), json!(true), json!(["x"]), json!({"x": 1})]
                    {
                        unsupported(field, value);
                    }
                }
            }
            // Libraries write null for unset fields. A required field is then reported as missing
            // and not as unsupported.
            let null = parse(&Value::Null);
            assert!(!matches!(null, Err(BadRequest::Unsupported { .. })), "{field}");
        }
    }
}

#[test]
fn whatever_bytes_come_there_is_an_answer() {
    let nasty: [&[u8]; 7] =
        [b"", b"null", b"[]", b"{", b"\xff", b"{\"messages\":[[]],\"id\":\"t\"}", b"{\"input\":[[]]}"];
    for body in nasty {
        assert!(ui_message::UiMessageRequest::parse(body, None).is_err());
        assert!(responses::ResponseRequest::parse(body, None).is_err());
        assert!(chat_completions::CompletionRequest::parse(body, None, None).is_err());
        assert!(agui::AgUiRequest::parse(body, None).is_err());
    }
    let deep = format!("{}1{}", "{\"a\":".repeat(500), "}".repeat(500));
    assert!(responses::ResponseRequest::parse(deep.as_bytes(), None).is_err());
}
