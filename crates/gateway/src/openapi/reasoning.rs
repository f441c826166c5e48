//! Reasoning sessions.

use http_server::error::ErrorCode;
use serde_json::json;

use crate::api::reasoning;
use crate::api::reasoning::{ReasoningMessageView, ReasoningQuery, ReasoningSessionView, UndoneCompression};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::AGENTS;

pub(crate) fn operations() -> Vec<Operation> {
    let original = json!({
        "message_id": "rm-2", "number": 2, "role": "assistant", "content": "I'll search...", "chars": 14, "thinking": null,
        "tool_calls": [{ "id": "c1", "name": "search" }], "tool_call_id": null,
    });
    let layer = json!({
        "layer": 1, "previous": 0, "summary_id": "rm-4", "summary": "Searched: nothing.", "summary_chars": 18, "count": 1, "skipped": 0, "originals": [original],
        "actor": "key:0123456789abcdef", "at": "2026-11-22T12:00:00Z", "undone_by": null, "undone_at": null,
    });
    let call = json!({ "id": "c1", "name": "search", "arguments": "{\"q\":\"x\"}", "signature": null });
    let message = json!({
        "message_id": "rm-2", "number": 2, "role": "assistant", "content": "I'll search...", "thinking": null,
        "thinking_signature": null, "tool_calls": [call], "tool_call_id": null, "tool_name": null,
    });
    let source = json!({
        "thread_id": "hello", "from_batch": null, "to_batch": null, "as_of": "7524873984012345344",
        "first_number": 1, "last_number": 2,
    });
    let session = json!({
        "session_id": "s1", "agent_id": "ann", "created_by": "key:0123456789abcdef",
        "created_at": "2026-11-22T12:00:00Z", "sources": [source], "messages": 2,
        "view": "Reasoning Thread (2 messages):\n…", "head_layer": 1, "layers": [layer], "next": null,
    });
    vec![
        Operation::get(
            "/v1/reasoning/{session}",
            "showReasoningSession",
            "Show a reasoning session and the messages that its compressions replaced",
            reasoning::get,
        )
        .tag(AGENTS)
        .description("Agents change their sessions over MCP.")
        .scope(Scope::ReadReasoning)
        .query::<ReasoningQuery>()
        .response::<ReasoningSessionView>(200, "The session, with a page of its replaced messages", session)
        .errors(&[ErrorCode::UnknownSession, ErrorCode::InvalidLimit, ErrorCode::InvalidId]),
        Operation::get(
            "/v1/reasoning/{session}/messages/{number}",
            "showReasoningMessage",
            "Show one message of a reasoning session in full",
            reasoning::message,
        )
        .tag(AGENTS)
        .description("Works for visible and compressed messages. Numbers are those of the session.")
        .scope(Scope::ReadReasoning)
        .response::<ReasoningMessageView>(200, "The message", message)
        .errors(&[ErrorCode::UnknownSession, ErrorCode::UnknownMessage, ErrorCode::InvalidId]),
        Operation::post(
            "/v1/reasoning/{session}/undo",
            "undoReasoningCompression",
            "Undo the newest compression of a reasoning session",
            reasoning::undo,
        )
        .tag(AGENTS)
        .description("The replaced messages return to the agent's view and to the contexts of the thread that the session applies to.")
        .scope(Scope::WriteReasoning)
        .actor_header()
        .no_body()
        .response::<UndoneCompression>(200, "Undone", json!({ "session_id": "s1", "undone": "rm-4" }))
        .errors(&[ErrorCode::UnknownSession, ErrorCode::NoCompression, ErrorCode::SessionChanged, ErrorCode::CompressionNotApplied]),
    ]
}
