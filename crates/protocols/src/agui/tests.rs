use super::*;
use crate::testing::assert_events;

fn answer() -> AgUi {
    AgUi::new(ThreadId::parse("t").unwrap(), "r", MessageId::parse("m").unwrap())
}

const STARTED: &str = r#"{"type":"RUN_STARTED","threadId":"t","runId":"r","protocolVersion":"1.0"}"#;

#[test]
fn every_row_of_the_protocol() {
    assert_events(
        &mut answer(),
        &[
            ("open", &[STARTED]),
            (
                "think:Hm",
                &[
                    r#"{"type":"REASONING_START","messageId":"m-p0"}"#,
                    r#"{"type":"REASONING_MESSAGE_START","messageId":"m-p0","role":"reasoning"}"#,
                    r#"{"type":"REASONING_MESSAGE_CONTENT","messageId":"m-p0","delta":"Hm"}"#,
                ],
            ),
            (
                "Hi",
                &[
                    r#"{"type":"REASONING_MESSAGE_END","messageId":"m-p0"}"#,
                    r#"{"type":"REASONING_END","messageId":"m-p0"}"#,
                    r#"{"type":"TEXT_MESSAGE_START","messageId":"m-s0","role":"assistant"}"#,
                    r#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"m-s0","delta":"Hi"}"#,
                ],
            ),
            ("", &[]),
            ("note:{}", &[]),
            ("note:{\"x\":1}", &[r#"{"type":"CUSTOM","name":"chunk_metadata","value":{"x":1}}"#]),
            (
                "call:a:{\"q\":",
                &[
                    r#"{"type":"TEXT_MESSAGE_END","messageId":"m-s0"}"#,
                    r#"{"type":"TOOL_CALL_START","toolCallId":"m-a","toolCallName":"f","parentMessageId":"m-s0"}"#,
                    r#"{"type":"TOOL_CALL_ARGS","toolCallId":"m-a","delta":"{\"q\":"}"#,
                ],
            ),
            (
                "call:b=g:",
                &[
                    r#"{"type":"TOOL_CALL_START","toolCallId":"m-b","toolCallName":"g","parentMessageId":"m-s0"}"#,
                ],
            ),
            (
                "call:a:1}",
                &[
                    r#"{"type":"TOOL_CALL_ARGS","toolCallId":"m-a","delta":"1}"}"#,
                    r#"{"type":"TOOL_CALL_END","toolCallId":"m-a"}"#,
                ],
            ),
            ("result:b:one", &[r#"{"type":"TOOL_CALL_END","toolCallId":"m-b"}"#]),
            ("result:b:, two", &[]),
            ("fault:a:no", &[]),
            (
                "So",
                &[
                    r#"{"type":"TOOL_CALL_RESULT","messageId":"m-s0-r1","toolCallId":"m-a","content":"no","role":"tool"}"#,
                    r#"{"type":"TOOL_CALL_RESULT","messageId":"m-s0-r2","toolCallId":"m-b","content":"one, two","role":"tool"}"#,
                    r#"{"type":"TEXT_MESSAGE_START","messageId":"m-s1","role":"assistant"}"#,
                    r#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"m-s1","delta":"So"}"#,
                ],
            ),
            ("final:{\"tokens_used\":3}", &[r#"{"type":"TEXT_MESSAGE_END","messageId":"m-s1"}"#]),
            (
                "complete",
                &[concat!(
                    r#"{"type":"RUN_FINISHED","threadId":"t","runId":"r","outcome":{"type":"success"},"#,
                    r#""usage":[{"inputTokens":0,"outputTokens":3,"totalTokens":3}],"metadata":{"tokens_used":3}}"#
                )],
            ),
        ],
    );
}

#[test]
fn usage_is_the_sum_of_the_calls_that_the_workflow_lists() {
    let list = r#"note:{"model_calls":[{"input_tokens":100,"output_tokens":20},{"input_tokens":130,"output_tokens":5}]}"#;
    let end = concat!(
        r#"{"type":"RUN_FINISHED","threadId":"t","runId":"r","outcome":{"type":"success"},"#,
        r#""usage":[{"inputTokens":230,"outputTokens":25,"totalTokens":255}]}"#
    );
    let mut answer = answer();
    answer.apply(AnswerEvent::Opened);
    assert_events(&mut answer, &[(list, &[]), ("final:{}", &[]), ("complete", &[end])]);
}

#[test]
fn a_run_that_was_stopped_is_cancelled_with_nothing_open() {
    assert_events(
        &mut answer(),
        &[
            ("open", &[STARTED]),
            (
                "call:a:{",
                &[
                    r#"{"type":"TOOL_CALL_START","toolCallId":"m-a","toolCallName":"f","parentMessageId":"m-s0"}"#,
                    r#"{"type":"TOOL_CALL_ARGS","toolCallId":"m-a","delta":"{"}"#,
                ],
            ),
            (
                "stopped",
                &[
                    r#"{"type":"TOOL_CALL_END","toolCallId":"m-a"}"#,
                    r#"{"type":"TOOL_CALL_RESULT","messageId":"m-s0-r1","toolCallId":"m-a","content":"","role":"tool"}"#,
                    r#"{"type":"RUN_FINISHED","threadId":"t","runId":"r","outcome":{"type":"cancelled"}}"#,
                ],
            ),
        ],
    );
}

#[test]
fn a_run_that_failed_says_why() {
    let error = r#"{"type":"RUN_ERROR","message":"no chunk arrived for too long","code":"stalled"}"#;
    assert_events(&mut answer(), &[("failed:stalled:no chunk arrived for too long", &[STARTED, error])]);
    assert_eq!(answer().headers(), []);
}
