use super::*;
use crate::testing::assert_events;

fn answer(include_usage: bool) -> ChatCompletions {
    ChatCompletions::new(CompletionOptions {
        message: MessageId::parse("m").unwrap(),
        model: "a".to_owned(),
        created_at: Timestamp(1_999),
        include_usage,
    })
}

/// A chunk with this delta.
macro_rules! delta {
    ($delta:literal) => {
        delta!($delta, "null", "")
    };
    ($delta:literal, $reason:literal, $usage:literal) => {
        concat!(
            r#"{"id":"chatcmpl-m","object":"chat.completion.chunk","created":1,"model":"a","#,
            r#""choices":[{"index":0,"delta":"#,
            $delta,
            r#","logprobs":null,"finish_reason":"#,
            $reason,
            "}]",
            $usage,
            "}"
        )
    };
}

#[test]
fn every_row_of_the_protocol() {
    let mut answer = answer(false);
    assert_events(
        &mut answer,
        &[
            ("open", &[delta!(r#"{"role":"assistant","content":""}"#)]),
            ("think:Hm", &[]),
            ("Hi", &[delta!(r#"{"content":"Hi"}"#)]),
            ("", &[]),
            ("note:{\"x\":1}", &[]),
            ("call:a:{}", &[]),
            ("result:a:one", &[]),
            ("So", &[delta!(r#"{"content":"\n\n"}"#), delta!(r#"{"content":"So"}"#)]),
            ("think:hm", &[]),
            (".", &[delta!(r#"{"content":"."}"#)]),
            ("final:{\"tokens_used\":3,\"finish_reason\":\"tool_calls\"}", &[]),
            ("complete", &[delta!("{}", r#""stop""#, ""), "[DONE]"]),
        ],
    );
    assert_eq!(
        answer.object().unwrap().unwrap(),
        concat!(
            r#"{"id":"chatcmpl-m","object":"chat.completion","created":1,"model":"a","choices":[{"index":0,"#,
            r#""message":{"role":"assistant","content":"Hi\n\nSo.","refusal":null},"#,
            r#""logprobs":null,"finish_reason":"stop"}],"#,
            r#""usage":{"prompt_tokens":0,"completion_tokens":3,"total_tokens":3}}"#
        )
    );
}

#[test]
fn usage_is_a_chunk_of_its_own_and_null_before() {
    assert_events(
        &mut answer(true),
        &[
            ("open", &[delta!(r#"{"role":"assistant","content":""}"#, "null", r#","usage":null"#)]),
            ("call:a:{}", &[]),
            ("final:{\"tokens_used\":3,\"finish_reason\":\"length\"}", &[]),
            (
                "complete",
                &[
                    delta!("{}", r#""length""#, r#","usage":null"#),
                    concat!(
                        r#"{"id":"chatcmpl-m","object":"chat.completion.chunk","created":1,"model":"a","choices":[],"#,
                        r#""usage":{"prompt_tokens":0,"completion_tokens":3,"total_tokens":3}}"#
                    ),
                    "[DONE]",
                ],
            ),
        ],
    );
}

#[test]
fn usage_has_the_parts_that_the_workflow_has_said() {
    let usage = r#"{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens_details":{"reasoning_tokens":2}}"#;
    let chunk = concat!(
        r#"{"id":"chatcmpl-m","object":"chat.completion.chunk","created":1,"model":"a","choices":[],"usage":"#,
        r#"{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":5},"#,
        r#""completion_tokens_details":{"reasoning_tokens":2}}}"#
    );
    assert_events(
        &mut answer(true),
        &[
            ("open", &[delta!(r#"{"role":"assistant","content":""}"#, "null", r#","usage":null"#)]),
            (&format!("final:{{\"usage\":{usage}}}"), &[]),
            ("complete", &[delta!("{}", r#""stop""#, r#","usage":null"#), chunk, "[DONE]"]),
        ],
    );
}

#[test]
fn usage_is_the_sum_of_the_calls_that_the_workflow_lists() {
    let begins = r#"note:{"model_calls":[{"id":"b","input_tokens":999,"estimated":true}]}"#;
    let first = r#"note:{"model_calls":[{"input_tokens":100,"output_tokens":20,"cached_tokens":64}]}"#;
    let last = r#"final:{"model_calls":[{"id":"b","input_tokens":130,"output_tokens":5}]}"#;
    let chunk = concat!(
        r#"{"id":"chatcmpl-m","object":"chat.completion.chunk","created":1,"model":"a","choices":[],"usage":"#,
        r#"{"prompt_tokens":230,"completion_tokens":25,"total_tokens":255,"prompt_tokens_details":{"cached_tokens":64}}}"#
    );
    let mut answer = answer(true);
    assert_events(
        &mut answer,
        &[
            ("open", &[delta!(r#"{"role":"assistant","content":""}"#, "null", r#","usage":null"#)]),
            (first, &[]),
            (begins, &[]),
            (last, &[]),
            ("complete", &[delta!("{}", r#""stop""#, r#","usage":null"#), chunk, "[DONE]"]),
        ],
    );
    let object = String::from_utf8(answer.object().unwrap().unwrap().to_vec()).unwrap();
    assert!(
        object.contains(r#""usage":{"prompt_tokens":230,"completion_tokens":25,"total_tokens":255"#),
        "{object}"
    );
}

#[test]
fn what_was_stopped_ends_like_what_is_whole() {
    assert_events(
        &mut answer(false),
        &[
            ("Hi", &[delta!(r#"{"role":"assistant","content":""}"#), delta!(r#"{"content":"Hi"}"#)]),
            ("stopped", &[delta!("{}", r#""stop""#, ""), "[DONE]"]),
        ],
    );
}

#[test]
fn a_failure_is_an_error_of_the_stream_and_of_the_object() {
    let mut answer = answer(false);
    let error = r#"{"error":{"message":"no more","type":"server_error","param":null,"code":"stalled"}}"#;
    assert_events(
        &mut answer,
        &[("open", &[delta!(r#"{"role":"assistant","content":""}"#)]), ("failed:stalled:no more", &[error])],
    );
    assert_eq!(answer.object().unwrap().unwrap_err().code, "stalled");
}
