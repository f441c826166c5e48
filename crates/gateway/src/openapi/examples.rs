//! Examples that several resources show.

use model::WaitReason;
use serde_json::{Value, json};

pub(crate) fn audit(subject: &str) -> Value {
    let act = json!({
        "command_id": "0198c4d2e5f57a60b1d3c8a94e27f610", "actor": "ann@example.org", "action": "stop_turn",
        "target": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610", "detail": null, "status": "done", "error": null,
        "created_at": "2026-11-22T11:49:44.123Z",
    });
    json!({ "subject_id": subject, "entries": [act], "next": null })
}

pub(crate) fn active_turn() -> Value {
    json!({
        "turn_id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610", "thread_id": "hello", "run": 0,
        "message_id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a", "idle_ms": 40,
        "fails_at": "2026-11-22T11:51:44.123Z",
        "request": {"deliveries": 0, "handed_back": 0, "again_at": null, "alive_at": null},
        "waiting": {"reason": "no_workflow", "until": "2026-11-22T11:51:44.123Z", "message": WaitReason::NoWorkflow.message()},
    })
}

pub(crate) fn batch() -> Value {
    json!({
        "batch_id": "7524873984012345344", "turn_id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610", "batch_type": "user_request", "state": "complete",
        "incomplete_code": null, "incomplete": null, "abandoned_since": null, "parent_batch": null, "message_count": 2, "tokens": 12,
        "finish_reason": "stop", "usage": {"input_tokens": 120, "output_tokens": 3},
        "input": "How is the weather?", "created_at": "2026-11-22T11:49:44.123Z", "started_at": "2026-11-22T11:49:44.125Z",
        "last_at": "2026-11-22T11:49:47.300Z",
    })
}
