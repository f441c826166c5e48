//! What the four protocols take and refuse.

use model::{AgentId, ThreadId};
use serde_json::{Value, json};

use super::*;
use crate::responses::Follows;
use crate::{agui, chat_completions, openai, responses, ui_message};

fn thread(id: &str) -> ThreadId {
    ThreadId::parse(id).unwrap()
}

fn bytes(body: &Value) -> Vec<u8> {
    body.to_string().into_bytes()
}

/// `code param` of what is refused.
fn refused<T: std::fmt::Debug>(outcome: Result<T, BadRequest>) -> String {
    let error = outcome.unwrap_err();
    format!("{} {}", error.code(), error.param().unwrap_or("-"))
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

    fn parse(field: &str, value: Value) -> Result<ui_message::Request, BadRequest> {
        ui_message::Request::parse(&with(&body(), field, value), None)
    }

    #[test]
    fn the_last_message_is_the_input() {
        let request = ui_message::Request::parse(&bytes(&body()), None).unwrap();
        assert_eq!((request.thread, &*request.text), (thread("t1"), "What\nis it?"));
        assert_eq!(request.input_id.as_deref(), Some("3"));
        assert_eq!(request.metadata.get("x"), Some(&json!(1)));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place() {
        assert_eq!(refused(parse("trigger", json!("regenerate-message"))), "unsupported_parameter trigger");
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
        let error = ui_message::Request::parse(b"[", None).unwrap_err();
        let body = ui_message::error_body(&error.rejection());
        assert_eq!(body.content_type, "text/plain; charset=utf-8");
        assert_eq!(body.bytes, "the body must be a JSON object: EOF while parsing a list at line 1 column 1");
    }
}

mod of_responses {
    use super::*;

    fn parse(body: Value) -> Result<responses::Request, BadRequest> {
        responses::Request::parse(&bytes(&body), None)
    }

    #[test]
    fn a_text_or_a_message_is_the_input() {
        let request = parse(json!({
            "model": "talk", "input": "hello", "instructions": "be brief", "stream": true, "background": true,
            "metadata": {"k": "v"}, "store": false, "temperature": 0.5, "tools": [], "text": {"format": {"type": "text"}}
        }))
        .unwrap();
        assert_eq!(
            (request.agent, request.follows),
            (Some(AgentId::parse("talk").unwrap()), Follows::Nothing)
        );
        assert_eq!((&*request.text, request.instructions.as_deref()), ("hello", Some("be brief")));
        assert!(request.stream && request.background && request.metadata.get("k").is_some());
        let items = json!([
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        ]);
        let request = parse(json!({"input": items, "conversation": {"id": "t1"}})).unwrap();
        assert_eq!((request.agent, request.follows), (None, Follows::Thread(thread("t1"))));
        assert_eq!((&*request.text, request.instructions.as_deref()), ("hello", Some("be brief")));
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
        assert_eq!(refused(json!({"input": "x", "model": "gpt-4.1"})), "invalid_value model");
        assert_eq!(refused(json!({"input": "x", "stream": "yes"})), "invalid_value stream");
        assert_eq!(refused(json!({"input": "x", "tools": [{}]})), "unsupported_parameter tools");
        assert_eq!(refused(json!({"input": "x", "prompt": {"id": "p"}})), "unsupported_parameter prompt");
        let format = json!({"format": {"type": "json_schema"}});
        assert_eq!(refused(json!({"input": "x", "text": format})), "unsupported_parameter text.format");
        assert_eq!(refused(json!({"input": "x", "metadata": {"k": "\0"}})), "invalid_value metadata");
        let both = json!({"input": "x", "conversation": "t", "previous_response_id": "r"});
        assert_eq!(refused(both), "unsupported_parameter previous_response_id");
        let result = json!([{"type": "function_call_output", "call_id": "c", "output": "x"}]);
        assert_eq!(refused(json!({"input": result})), "unsupported_parameter input[0].type");
        let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
        assert_eq!(refused(json!({"input": image})), "unsupported_parameter input[0].content[0].type");
        let two = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
        assert_eq!(refused(json!({"input": two, "conversation": "t"})), "unsupported_parameter input");
        assert_eq!(refused(json!({"input": two})), "no_thread input");
    }
}

mod of_completions {
    use super::*;

    fn body() -> Value {
        json!({
            "model": "talk", "stream": true, "stream_options": {"include_usage": true}, "temperature": 1, "n": 1,
            "response_format": {"type": "text"}, "tools": null,
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
        })
    }

    fn parse(field: &str, value: Value) -> Result<chat_completions::Request, BadRequest> {
        chat_completions::Request::parse(&with(&body(), field, value), None, None)
    }

    #[test]
    fn the_last_message_is_the_input() {
        let request = chat_completions::Request::parse(&bytes(&body()), None, None).unwrap();
        assert_eq!((request.agent.as_str(), &*request.text, request.thread), ("talk", "hello", None));
        assert_eq!(request.instructions.as_deref(), Some("be brief"));
        assert!(request.stream && request.include_usage);
        let parts = json!([{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]);
        let request = parse("messages", parts).unwrap();
        assert_eq!((&*request.text, request.instructions), ("x", None));
    }

    #[test]
    fn earlier_messages_need_a_thread_in_which_they_were_said() {
        let messages = json!([
            {"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "user", "content": "b"}
        ]);
        let body = json!({"model": "talk", "messages": messages});
        let parse = |body: &[u8], named| chat_completions::Request::parse(body, named, None);
        assert_eq!(refused(parse(&bytes(&body), None)), "no_thread messages");
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
        assert!(parse("logprobs", json!(false)).is_ok());
        let format = json!({"type": "json_object"});
        assert_eq!(refused(parse("response_format", format)), "unsupported_parameter response_format");
        let tool = json!([{"role": "tool", "tool_call_id": "a", "content": "x"}]);
        assert_eq!(refused(parse("messages", tool)), "no_input messages");
        let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        assert_eq!(refused(parse("messages", image)), "unsupported_parameter messages[0].content[0].type");
    }

    #[test]
    fn a_refusal_has_openais_form() {
        let error = parse("n", json!(2)).unwrap_err();
        let body = openai::error_body(&error.rejection());
        assert_eq!(body.content_type, "application/json");
        assert_eq!(
            body.bytes,
            r#"{"error":{"message":"`n`: a turn has one answer","type":"invalid_request_error","param":"n","code":"unsupported_parameter"}}"#
        );
        let kinds = [400, 401, 403, 404, 409, 429, 500, 503].map(|status| {
            let body = openai::error_body(&Rejection::new(status, "c", "m"));
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
            "threadId": "t1", "runId": "run 1", "state": {}, "tools": [{"name": "f"}], "context": [], "forwardedProps": {},
            "messages": [
                {"id": "1", "role": "user", "content": "a"}, {"id": "2", "role": "assistant"},
                {"id": "3", "role": "user", "content": [{"type": "text", "text": "hello"}]}
            ]
        })
    }

    fn parse(field: &str, value: Value) -> Result<agui::Request, BadRequest> {
        agui::Request::parse(&with(&body(), field, value), None)
    }

    #[test]
    fn the_last_message_is_the_input() {
        let request = agui::Request::parse(&bytes(&body()), None).unwrap();
        assert_eq!((request.thread, &*request.run, &*request.text), (thread("t1"), "run 1", "hello"));
        assert_eq!(request.input_id.as_deref(), Some("3"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place() {
        assert_eq!(refused(parse("threadId", json!("a b"))), "invalid_value threadId");
        assert_eq!(refused(parse("runId", json!(null))), "missing_required_parameter runId");
        assert_eq!(refused(parse("messages", json!({}))), "invalid_value messages");
        assert_eq!(refused(parse("resume", json!([{}]))), "unsupported_parameter resume");
        let image = json!([{"id": "1", "role": "user", "content": [{"type": "image"}]}]);
        assert_eq!(refused(parse("messages", image)), "unsupported_parameter messages[0].content[0].type");
    }

    #[test]
    fn a_refusal_is_json_with_the_fields_of_an_error() {
        let body = agui::error_body(&parse("runId", json!(7)).unwrap_err().rejection());
        assert_eq!(body.content_type, "application/json");
        assert_eq!(body.bytes, r#"{"message":"`runId` must be a string","code":"invalid_value"}"#);
    }
}

#[test]
fn whatever_bytes_come_there_is_an_answer() {
    let nasty: [&[u8]; 7] =
        [b"", b"null", b"[]", b"{", b"\xff", b"{\"messages\":[[]],\"id\":\"t\"}", b"{\"input\":[[]]}"];
    for body in nasty {
        assert!(ui_message::Request::parse(body, None).is_err());
        assert!(responses::Request::parse(body, None).is_err());
        assert!(chat_completions::Request::parse(body, None, None).is_err());
        assert!(agui::Request::parse(body, None).is_err());
    }
    let deep = format!("{}1{}", "{\"a\":".repeat(500), "}".repeat(500));
    assert!(responses::Request::parse(deep.as_bytes(), None).is_err());
}
