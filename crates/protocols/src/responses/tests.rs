use model::{MessageId, Metadata, ThreadId, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::AnswerEvent;
use crate::testing::assert_events;

fn answer(background: bool) -> Responses {
    Responses::new(terms(background), Resume::Start)
}

fn terms(background: bool) -> ResponseOptions {
    ResponseOptions {
        thread: ThreadId::parse("t").unwrap(),
        message: MessageId::parse("m").unwrap(),
        model: "a".to_owned(),
        created_at: Timestamp(1_999),
        background,
        previous_response_id: None,
        metadata: Metadata::EMPTY,
        shown: Metadata::EMPTY,
    }
}

/// An event with its number and the following fields.
macro_rules! event {
    ($name:literal, $number:literal, $rest:expr) => {
        concat!(
            "event: response.",
            $name,
            "\ndata: {\"type\":\"response.",
            $name,
            "\",\"sequence_number\":",
            $number,
            ",",
            $rest,
            "}"
        )
    };
}

/// An event with the response in this state.
macro_rules! lifecycle {
    ($name:literal, $number:literal, $status:literal, $error:literal, $output:expr, $usage:literal) => {
        event!($name, $number, concat!("\"response\":", object!($status, "false", $error, $output, $usage)))
    };
    ($name:literal, $number:literal, $status:literal) => {
        event!($name, $number, concat!("\"response\":", object!($status, "true", "null", "", "null")))
    };
}

macro_rules! object {
    ($status:literal, $background:literal, $error:literal, $output:expr, $usage:literal) => {
        concat!(
            r#"{"id":"resp_m","object":"response","created_at":1,"status":""#,
            $status,
            r#"","background":"#,
            $background,
            r#","conversation":{"id":"t"},"error":"#,
            $error,
            r#","incomplete_details":null,"instructions":null,"max_output_tokens":null,"metadata":{},"#,
            r#""model":"a","output":["#,
            $output,
            r#"],"parallel_tool_calls":true,"previous_response_id":null,"store":true,"temperature":null,"#,
            r#""text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":null,"#,
            r#""truncation":"auto","usage":"#,
            $usage,
            "}"
        )
    };
}

macro_rules! message {
    ($status:literal, $content:expr) => {
        concat!(
            r#"{"type":"message","id":"msg_m-p0","status":""#,
            $status,
            r#"","role":"assistant","content":["#,
            $content,
            "]}"
        )
    };
}

macro_rules! text {
    ($text:literal) => {
        concat!(r#"{"type":"output_text","text":""#, $text, r#"","annotations":[],"logprobs":[]}"#)
    };
}

macro_rules! call {
    ($status:literal, $arguments:literal, $output:literal) => {
        concat!(
            r#"{"type":"mcp_call","id":"mcp_m-p1","status":""#,
            $status,
            r#"","server_label":"antiphon","name":"f","arguments":""#,
            $arguments,
            r#"","output":"#,
            $output,
            r#","error":null}"#
        )
    };
}

#[test]
fn every_row_of_the_protocol() {
    assert_events(
        &mut answer(false),
        &[
            (
                "open",
                &[
                    lifecycle!("created", 0, "in_progress", "null", "", "null"),
                    lifecycle!("in_progress", 1, "in_progress", "null", "", "null"),
                ],
            ),
            (
                "Hi",
                &[
                    event!(
                        "output_item.added",
                        2,
                        concat!(r#""output_index":0,"item":"#, message!("in_progress", ""))
                    ),
                    event!(
                        "content_part.added",
                        3,
                        concat!(
                            r#""item_id":"msg_m-p0","output_index":0,"content_index":0,"part":"#,
                            text!("")
                        )
                    ),
                    event!(
                        "output_text.delta",
                        4,
                        r#""item_id":"msg_m-p0","output_index":0,"content_index":0,"delta":"Hi","logprobs":[]"#
                    ),
                ],
            ),
            ("", &[]),
            ("note:{\"x\":1}", &[]),
            (
                "call:c:{",
                &[
                    event!(
                        "output_text.done",
                        5,
                        r#""item_id":"msg_m-p0","output_index":0,"content_index":0,"text":"Hi","logprobs":[]"#
                    ),
                    event!(
                        "content_part.done",
                        6,
                        concat!(
                            r#""item_id":"msg_m-p0","output_index":0,"content_index":0,"part":"#,
                            text!("Hi")
                        )
                    ),
                    event!(
                        "output_item.done",
                        7,
                        concat!(r#""output_index":0,"item":"#, message!("completed", text!("Hi")))
                    ),
                    event!(
                        "output_item.added",
                        8,
                        concat!(r#""output_index":1,"item":"#, call!("in_progress", "", "null"))
                    ),
                    event!("mcp_call.in_progress", 9, r#""item_id":"mcp_m-p1","output_index":1"#),
                    event!(
                        "mcp_call_arguments.delta",
                        10,
                        r#""item_id":"mcp_m-p1","output_index":1,"delta":"{""#
                    ),
                ],
            ),
            (
                "call:c:}",
                &[
                    event!(
                        "mcp_call_arguments.delta",
                        11,
                        r#""item_id":"mcp_m-p1","output_index":1,"delta":"}""#
                    ),
                    event!(
                        "mcp_call_arguments.done",
                        12,
                        r#""item_id":"mcp_m-p1","output_index":1,"arguments":"{}""#
                    ),
                ],
            ),
            ("result:c:one", &[]),
            (
                "final:{\"tokens_used\":3}",
                &[
                    event!("mcp_call.completed", 13, r#""item_id":"mcp_m-p1","output_index":1"#),
                    event!(
                        "output_item.done",
                        14,
                        concat!(r#""output_index":1,"item":"#, call!("completed", "{}", "\"one\""))
                    ),
                ],
            ),
            (
                "complete",
                &[lifecycle!(
                    "completed",
                    15,
                    "completed",
                    "null",
                    concat!(message!("completed", text!("Hi")), ",", call!("completed", "{}", "\"one\"")),
                    r#"{"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":3}"#
                )],
            ),
        ],
    );
}

#[test]
fn reasoning_is_an_item_too() {
    let mut answer = answer(false);
    answer.apply(AnswerEvent::Opened);
    let place = r#""item_id":"rs_m-p0","output_index":0,"content_index":0,"#;
    let added = r#"{"type":"reasoning","id":"rs_m-p0","status":"in_progress","summary":[],"content":[]}"#;
    let events = [
        format!("output_item.added 2 \"output_index\":0,\"item\":{added}"),
        format!("content_part.added 3 {place}\"part\":{{\"type\":\"reasoning_text\",\"text\":\"\"}}"),
        format!("reasoning_text.delta 4 {place}\"delta\":\"Hm\""),
    ];
    let events = events.map(|event| {
        let [name, number, rest] = event.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{event}") };
        format!("event: response.{name}\ndata: {{\"type\":\"response.{name}\",\"sequence_number\":{number},{rest}}}")
    });
    assert_events(&mut answer, &[("think:Hm", &events.each_ref().map(String::as_str))]);
}

#[test]
fn only_background_responses_are_queued_until_work_begins() {
    let begun = |background, is_running| Responses::under_way(terms(background), is_running);
    assert_eq!(begun(true, false), object!("queued", "true", "null", "", "null"));
    assert_eq!(begun(true, true), object!("in_progress", "true", "null", "", "null"));
    assert_eq!(begun(false, false), object!("in_progress", "false", "null", "", "null"));
}

#[test]
fn in_the_background_it_is_queued_until_something_comes() {
    let mut answer = answer(true);
    assert_events(
        &mut answer,
        &[
            ("open", &[lifecycle!("created", 0, "queued"), lifecycle!("queued", 1, "queued")]),
            ("note:{}", &[lifecycle!("in_progress", 2, "in_progress")]),
        ],
    );
    assert_eq!(answer.object(), object!("in_progress", "true", "null", "", "null"));
    // Nothing of the answer was shown, so the number stays.
    assert_events(&mut answer, &[("reset:1", &[])]);
    assert_events(&mut answer, &[("stopped", &[lifecycle!("incomplete", 1000000003, "cancelled")])]);
    assert_eq!(answer.object(), object!("cancelled", "true", "null", "", "null"));
}

#[test]
fn a_failure_is_in_the_object() {
    let mut answer = answer(false);
    assert_events(
        &mut answer,
        &[
            (
                "open",
                &[
                    lifecycle!("created", 0, "in_progress", "null", "", "null"),
                    lifecycle!("in_progress", 1, "in_progress", "null", "", "null"),
                ],
            ),
            (
                "failed:stalled:no more",
                &[lifecycle!(
                    "failed",
                    2,
                    "failed",
                    r#"{"code":"server_error","message":"stalled: no more","type":"server_error"}"#,
                    "",
                    "null"
                )],
            ),
        ],
    );
}

#[test]
fn answer_read_again_from_history_has_higher_numbers() {
    let events_after = |resume| {
        let mut answer = Responses::new(terms(false), resume);
        answer.recall();
        let mut all = Vec::new();
        for happening in [
            AnswerEvent::Opened,
            AnswerEvent::Chunk { attempt: 0, chunk: &model::Chunk::content(0, "Hi there", true) },
            AnswerEvent::Complete { position: model::Position::from_stored(7) },
        ] {
            all.extend_from_slice(&answer.apply(happening).bytes);
        }
        let text = String::from_utf8(all).unwrap();
        let events = text.split_terminator("\n\n").map(|event| {
            let data = event.split_once("data: ").unwrap().1;
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            (
                data["type"].as_str().unwrap().trim_start_matches("response.").to_owned(),
                data["sequence_number"].as_u64().unwrap(),
            )
        });
        events.collect::<Vec<_>>()
    };
    let all = events_after(Resume::Again);
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expected);
    assert_eq!((all[0].1, all[1].1), (0, 1));
    assert!(all[2..].iter().all(|(_, number)| *number > 1_000_000_000_000), "{all:?}");
    assert!(
        all.is_sorted_by_key(|(_, number)| *number) && all.iter().all(|(_, number)| *number < 1 << 53),
        "{all:?}"
    );
    // The client that opened the turn reads the pieces.
    assert!(events_after(Resume::Start).iter().any(|(name, _)| name == "output_text.delta"));
    let after = events_after(Resume::After(3));
    assert_eq!(after.len(), 1, "{after:?}");
}

#[test]
fn options_of_the_request_are_repeated() {
    let asked = json!({"instructions": "Be brief.", "max_output_tokens": 64, "parallel_tool_calls": false, "reasoning": {"effort": "low"},
        "temperature": 0.25, "text": {"verbosity": "low"}, "tool_choice": "none", "top_p": 0.5});
    let mut body = asked.clone();
    for (name, value) in [("model", json!("a")), ("input", json!("x")), ("user", json!("ada"))] {
        body[name] = value;
    }
    let shown = ResponseRequest::parse(body.to_string().as_bytes(), None).unwrap().shown;
    let terms = ResponseOptions { shown, ..terms(false) };
    let response: Value = serde_json::from_slice(&Responses::under_way(terms, true)).unwrap();
    for (name, value) in asked.as_object().unwrap().iter().filter(|(name, _)| *name != "text") {
        assert_eq!(response[name], *value, "{name}");
    }
    assert_eq!(response["text"], json!({"format": {"type": "text"}, "verbosity": "low"}));
    assert_eq!(response.get("user"), None);
    let nulls = br#"{"model": "a", "input": "x", "instructions": null, "temperature": null, "text": null}"#;
    assert_eq!(ResponseRequest::parse(nulls, None).unwrap().shown, Metadata::EMPTY);
}

#[test]
fn usage_has_the_parts_that_the_workflow_has_said() {
    let metadata = json!({"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 2}}});
    let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
    let chunk = model::Chunk { metadata, ..model::Chunk::content(0, "Hi", true) };
    let mut answer = answer(false);
    answer.apply(AnswerEvent::Opened);
    answer.apply(AnswerEvent::Chunk { attempt: 0, chunk: &chunk });
    answer.apply(AnswerEvent::Complete { position: model::Position::from_stored(7) });
    let response: Value = serde_json::from_slice(&answer.object()).unwrap();
    let details = |name: &str| response["usage"][name].clone();
    assert_eq!(details("input_tokens_details"), json!({"cached_tokens": 5, "cache_write_tokens": 0}));
    assert_eq!(details("output_tokens_details"), json!({"reasoning_tokens": 2}));
}

#[test]
fn usage_is_the_sum_of_the_calls_that_the_workflow_lists() {
    let lists = |id: u32, calls: Value| {
        let metadata = Metadata::new(json!({ "model_calls": calls }).as_object().unwrap().clone()).unwrap();
        let kind = model::ChunkKind::Metadata;
        model::Chunk { kind, metadata, ..model::Chunk::content(id, "", false) }
    };
    let usage = |ending: AnswerEvent<'_>| {
        let mut answer = answer(false);
        answer.apply(AnswerEvent::Opened);
        let begins = json!([{"id": "b", "input_tokens": 30, "estimated": true}]);
        let chunks = [
            lists(0, json!([{"input_tokens": 100, "output_tokens": 20}])),
            lists(1, begins),
            model::Chunk::content(2, "sixteen bytes...", false),
        ];
        for chunk in &chunks {
            answer.apply(AnswerEvent::Chunk { attempt: 0, chunk });
        }
        answer.apply(ending);
        let response: Value = serde_json::from_slice(&answer.object()).unwrap();
        ["input_tokens", "output_tokens", "total_tokens"].map(|name| response["usage"][name].clone())
    };
    assert_eq!(usage(AnswerEvent::Complete { position: model::Position::from_stored(7) }), [130, 25, 155]);
    assert_eq!(usage(AnswerEvent::Stopped), [130, 25, 155], "a call that was cut, as the ledger has it");
}

#[test]
fn ids_lead_to_answers_and_back() {
    let message = MessageId::parse("u0001-x-a1").unwrap();
    assert_eq!(id_of(&message), "resp_u0001-x-a1");
    assert_eq!(message_of("resp_u0001-x-a1"), Some(message));
    assert_eq!((message_of("chatcmpl-1"), message_of("resp_"), message_of("resp_a.b")), (None, None, None));
}
