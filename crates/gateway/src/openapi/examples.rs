//! Examples that several resources show.

use serde_json::{Value, json};

pub(crate) fn accepted_example() -> Value {
    let turn = "u01f3-0198c4d2e5f5";
    json!({
        "turn_id": turn, "thread_id": "hello", "run": 0, "message_id": format!("{turn}-a"),
        "input_message_id": format!("{turn}-u"), "stop_url": format!("/v1/turns/{turn}/stop"),
        "events_url": format!("/v1/threads/hello/events?message={turn}-a"),
    })
}

pub(crate) fn message_example() -> Value {
    json!({
        "position": "7524873984012345345", "message_id": "u01f3-0198c4d2e5f5-a",
        "batch_id": "7524873984012345344", "sequence_num": 1, "number": 2, "batch_type": "user_request", "role": "assistant",
        "content": "Sunny.", "tool_calls": null, "tool_call_id": null, "metadata": {}, "token_count": 3,
        "finish_reason": "stop", "usage": {"input_tokens": 120, "output_tokens": 3, "cached_tokens": 64},
        "parent_id": null, "created_at": "2026-11-22T11:49:47.300Z", "started_at": "2026-11-22T11:49:45.012Z",
    })
}
