use super::*;
use crate::testing::assert_events;

fn answer() -> UiMessage {
    UiMessage::new(MessageId::parse("m").unwrap())
}

#[test]
fn every_row_of_the_protocol() {
    assert_events(
        &mut answer(),
        &[
            ("open", &[r#"{"type":"start","messageId":"m"}"#]),
            (
                "think:Hm",
                &[
                    r#"{"type":"start-step"}"#,
                    r#"{"type":"reasoning-start","id":"p0"}"#,
                    r#"{"type":"reasoning-delta","id":"p0","delta":"Hm"}"#,
                ],
            ),
            (
                "Hi",
                &[
                    r#"{"type":"reasoning-end","id":"p0"}"#,
                    r#"{"type":"text-start","id":"p1"}"#,
                    r#"{"type":"text-delta","id":"p1","delta":"Hi"}"#,
                ],
            ),
            (" you", &[r#"{"type":"text-delta","id":"p1","delta":" you"}"#]),
            ("", &[]),
            ("note:{}", &[]),
            ("note:{\"x\":1}", &[r#"{"type":"message-metadata","messageMetadata":{"x":1}}"#]),
            (
                "call:a:{\"q\":",
                &[
                    r#"{"type":"text-end","id":"p1"}"#,
                    r#"{"type":"tool-input-start","toolCallId":"a","toolName":"f","providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"{\"q\":"}"#,
                ],
            ),
            (
                "call:a: 1 }",
                &[
                    r#"{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":" 1 }"}"#,
                    r#"{"type":"tool-input-available","toolCallId":"a","toolName":"f","input":{"q":1},"providerExecuted":true,"dynamic":true}"#,
                ],
            ),
            (
                "call:b=g:",
                &[
                    r#"{"type":"tool-input-start","toolCallId":"b","toolName":"g","providerExecuted":true,"dynamic":true}"#,
                ],
            ),
            (
                "result:a:one",
                &[
                    r#"{"type":"tool-output-available","toolCallId":"a","output":"one","providerExecuted":true,"dynamic":true}"#,
                ],
            ),
            ("result:a:, two", &[]),
            (
                "fault:b:no",
                &[
                    r#"{"type":"tool-input-available","toolCallId":"b","toolName":"g","input":{},"providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"tool-output-error","toolCallId":"b","errorText":"no","providerExecuted":true,"dynamic":true}"#,
                ],
            ),
            (
                "So",
                &[
                    r#"{"type":"tool-output-available","toolCallId":"a","output":"one, two","providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"finish-step"}"#,
                    r#"{"type":"start-step"}"#,
                    r#"{"type":"text-start","id":"p4"}"#,
                    r#"{"type":"text-delta","id":"p4","delta":"So"}"#,
                ],
            ),
            (
                "final:{\"finish_reason\":\"content_filter\",\"tokens_used\":3}",
                &[r#"{"type":"text-end","id":"p4"}"#, r#"{"type":"finish-step"}"#],
            ),
            (
                "complete",
                &[
                    r#"{"type":"finish","finishReason":"content-filter","messageMetadata":{"finish_reason":"content_filter","tokens_used":3}}"#,
                    "[DONE]",
                ],
            ),
        ],
    );
}

#[test]
fn an_end_before_the_final_chunk_closes_what_is_open() {
    assert_events(
        &mut answer(),
        &[
            ("open", &[r#"{"type":"start","messageId":"m"}"#]),
            (
                "call:a:[",
                &[
                    r#"{"type":"start-step"}"#,
                    r#"{"type":"tool-input-start","toolCallId":"a","toolName":"f","providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"["}"#,
                ],
            ),
            (
                "done:b:{}",
                &[
                    r#"{"type":"tool-input-start","toolCallId":"b","toolName":"f","providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"tool-input-delta","toolCallId":"b","inputTextDelta":"{}"}"#,
                    r#"{"type":"tool-input-available","toolCallId":"b","toolName":"f","input":{},"providerExecuted":true,"dynamic":true}"#,
                ],
            ),
            (
                "stopped",
                &[
                    r#"{"type":"tool-input-error","toolCallId":"a","toolName":"f","input":"[","errorText":"the arguments are no JSON: EOF while parsing a list at line 1 column 1","providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"tool-output-error","toolCallId":"b","errorText":"the answer ended before a result came","providerExecuted":true,"dynamic":true}"#,
                    r#"{"type":"finish-step"}"#,
                    r#"{"type":"abort"}"#,
                    "[DONE]",
                ],
            ),
        ],
    );
}

#[test]
fn a_failure_has_no_finish_and_no_done() {
    let error = r#"{"type":"error","errorText":"stalled: no chunk arrived for too long"}"#;
    let start = r#"{"type":"start","messageId":"m"}"#;
    assert_events(&mut answer(), &[("failed:stalled:no chunk arrived for too long", &[start, error])]);
}

#[test]
fn an_empty_answer_and_one_that_began_again_unseen() {
    let finish = r#"{"type":"finish","finishReason":"stop"}"#;
    assert_events(
        &mut answer(),
        &[
            ("open", &[r#"{"type":"start","messageId":"m"}"#]),
            ("reset:1", &[]),
            ("final:{}", &[]),
            ("complete", &[finish, "[DONE]"]),
        ],
    );
    assert_eq!(answer().headers(), [("x-vercel-ai-ui-message-stream", "v1")]);
}

#[test]
fn every_reason_is_one_that_the_protocol_has() {
    let reasons = ["stop", "length", "content_filter", "tool_calls", "error", "end_turn", ""].map(reason);
    assert_eq!(reasons, ["stop", "length", "content-filter", "tool-calls", "error", "other", "other"]);
}
