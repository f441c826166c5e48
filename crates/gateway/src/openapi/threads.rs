//! Threads and their turns.

use http_server::error::ErrorCode;
use model::WaitReason;
use serde_json::{Value, json};

use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::batches::{BatchesPage, BatchesQuery};
use crate::api::context::{CompactionsPage, ContextQuery, ContextView, Undone};
use crate::api::events::EventsQuery;
use crate::api::failed_turns::{FailedQuery, FailedTurnsPage};
use crate::api::forks::{ForkBody, ForkedThread};
use crate::api::heartbeats::HeartbeatBody;
use crate::api::history::{HistoryPage, HistoryQuery};
use crate::api::messages::{Accepted, MessageBody};
use crate::api::notes::{NoteAccepted, NoteBody};
use crate::api::threads::{ThreadBody, ThreadDetail};
use crate::api::turns::TurnDetail;
use crate::api::views::ControlResult;
use crate::api::views::{ThreadView, WholeBatch};
use crate::api::{
    audit, batches, context, events, failed_turns, forks, heartbeats, history, messages, notes, threads,
    turns,
};
use crate::openapi::error_codes::{INPUT, PUBLISH, STREAM};
use crate::openapi::events::Stream;
use crate::openapi::examples::{active_turn, audit, batch};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::{THREADS, TURNS};

pub(crate) fn operations() -> Vec<Operation> {
    let mut all = of_threads();
    all.extend(of_what_is_written());
    all.extend(of_turns());
    all
}

fn of_threads() -> Vec<Operation> {
    let place = || json!({ "type": "string", "format": "uri-reference" });
    vec![
        Operation::post("/v1/threads", "createThread", "Create a thread", threads::create)
            .tag(THREADS)
            .description("A thread is also created by its first use. Repeating the same body returns the same thread.")
            .scope(Scope::WriteThreads)
            .body::<ThreadBody>(json!({ "thread_id": "hello", "agent_id": "ann", "busy_policy": "enqueue" }))
            .response::<ThreadView>(201, "Created", thread())
            .with_header("Location", "The URL of the thread.", place())
            .response::<ThreadView>(200, "The thread already existed with the same values", thread())
            .with_header("Location", "The URL of the thread.", place())
            .errors(&[
                ErrorCode::InvalidBusyPolicy,
                ErrorCode::InvalidMetadata,
                ErrorCode::MetadataTooLarge,
                ErrorCode::ThreadExists,
                ErrorCode::ThreadErased,
            ])
            .errors(&[ErrorCode::UnknownThread]),
        Operation::get("/v1/threads/{thread}", "showThread", "Show a thread and its current turns", threads::get)
            .tag(THREADS)
            .scope(Scope::ReadThreads)
            .response::<ThreadDetail>(200, "The thread", thread_now())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable]),
        Operation::post("/v1/threads/{thread}/fork", "forkThread", "Fork a thread: copy all of it, or up to a batch", forks::create)
            .tag(THREADS)
            .description("Copies complete batches, with the compactions in effect at that point. The original is unchanged.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .body::<ForkBody>(json!({ "thread_id": "hello-2", "at": "7524873984012345344" }))
            .response::<ForkedThread>(
                201,
                "The copy",
                json!({ "thread_id": "hello-2", "forked_from": "hello", "at": "7524873984012345344", "message_count": 2 }),
            )
            .with_header("Location", "The URL of the thread.", place())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::UnknownBatch, ErrorCode::InvalidPosition, ErrorCode::ThreadExists, ErrorCode::ThreadErased]),
        Operation::get("/v1/threads/{thread}/events", "followThread", "Stream the events of a thread", events::stream_events)
            .tag(THREADS)
            .description(
                "A new client receives all open messages, then new events. With an event id as `Last-Event-ID` or `after`, the stream continues \
                 directly after that event, on any gateway. It begins with every message that has been stored or has failed since, ordered by \
                 position. Such a request waits up to two seconds for the owner of the thread to confirm the cursor. If it cannot be checked \
                 yet, the stream begins, and sends `restart` should the cursor turn out to be invalid. Comments may appear between events. \
                 By itself the stream ends only after `drain` or `auth_expired`.",
            )
            .scope(Scope::ReadThreads)
            .opened_by_tickets()
            .query::<EventsQuery>()
            .last_event_id_header()
            .response_with(ResponseSpec::stream("The stream", &Stream::Native))
            .errors(&STREAM)
            .errors(&[ErrorCode::InvalidCursor, ErrorCode::UnknownCursor, ErrorCode::CursorAhead])
            .with_schemas_of(Stream::Native),
        Operation::post("/v1/threads/{thread}/messages", "sendMessage", "Send a message and open a turn", messages::send_message)
            .tag(THREADS)
            .description(
                "Returns 202 once the input is durable. With `Accept: text/event-stream` the response is the stream of the answer and ends with \
                 it; `X-Antiphon-Turn` names the turn. A disconnected client repeats the request with `Last-Event-ID` and receives the events after \
                 that one. This works with the same `Idempotency-Key`, or without a key if the id names the answer. A request with \
                 `Last-Event-ID` and without a key never opens a turn.",
            )
            .scope(Scope::WriteThreads)
            .input_headers()
            .last_event_id_header()
            .body::<MessageBody>(json!({ "content": "How is the weather?", "metadata": { "channel": "web" } }))
            .response::<Accepted>(202, "The turn is in progress or pending", accepted())
            .response_with(ResponseSpec::stream("The answer, with `Accept: text/event-stream`", &Stream::Native))
            .with_header("X-Antiphon-Turn", "The id of the turn.", json!({ "type": "string" }))
            .with_schemas_of(Stream::Native)
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&STREAM)
            .errors(&[
                ErrorCode::InvalidBusyPolicy,
                ErrorCode::ThreadBusy,
                ErrorCode::AgentBackingOff,
                ErrorCode::BudgetExceeded,
                ErrorCode::ThreadErased,
            ])
            .errors(&[
                ErrorCode::IdempotencyKeyReused,
                ErrorCode::IdempotencyKeyNeeded,
                ErrorCode::TurnDropped,
                ErrorCode::TurnDeleted,
            ])
            .errors(&[
                ErrorCode::InvalidParameters,
                ErrorCode::ParametersTooLarge,
                ErrorCode::UnsupportedParameter,
            ])
            .errors(&[ErrorCode::InvalidCursor, ErrorCode::UnknownCursor, ErrorCode::CursorAhead]),
        Operation::get("/v1/threads/{thread}/audit", "auditThread", "Show the audit log of a thread: who stopped, retried or dropped turns", audit::of_thread)
            .tag(THREADS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", audit("hello"))
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::InvalidLimit]),
    ]
}

fn of_what_is_written() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/threads/{thread}/history",
            "showHistory",
            "List the committed messages of a thread",
            history::list,
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .query::<HistoryQuery>()
        .response::<HistoryPage>(
            200,
            "Messages, oldest first",
            json!({ "thread_id": "hello", "messages": [message()], "next": null }),
        )
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidLimit,
            ErrorCode::InvalidRange,
        ]),
        Operation::get(
            "/v1/threads/{thread}/batches",
            "listBatches",
            "List the batches (turns) of a thread, with the reasons for incomplete ones",
            batches::list,
        )
        .description(
            "The first page begins with the batch of the turn in progress, if any. Its state is `open`, it has no `batch_id` unless it \
             continues a stored batch, and it does not count toward `limit`. `parent_batch` lists the batches within a batch.",
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .query::<BatchesQuery>()
        .response::<BatchesPage>(
            200,
            "Batches, newest first",
            json!({ "thread_id": "hello", "owner_status": "available", "batches": [batch()], "next": null }),
        )
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidLimit,
        ]),
        Operation::get(
            "/v1/threads/{thread}/batches/{batch}",
            "showBatch",
            "Show a batch with its messages and tool calls",
            batches::get,
        )
        .description(
            "The batch is named by its id, or by the id of its first turn, which also works before the commit. While its state is `open` it \
             contains the input and the answer so far. Messages with `created_at` are complete; `incomplete_code` is the reason why the batch \
             would be incomplete if it ended now.",
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .response::<WholeBatch>(200, "The batch", whole_batch())
        .errors(&[ErrorCode::UnknownBatch, ErrorCode::InvalidPosition, ErrorCode::PartitionUnavailable]),
        Operation::post(
            "/v1/threads/{thread}/batches/{batch}/continue",
            "continueBatch",
            "Continue a batch",
            heartbeats::send,
        )
        .tag(THREADS)
        .description(
            "Opens a turn that continues the batch, as an answer with `continuation: true` does. The batch must be complete and the last of \
             its thread, and the thread must have no turn in progress or pending.",
        )
        .scope(Scope::WriteThreads)
        .body::<HeartbeatBody>(json!({ "request_id": "r-1" }))
        .response::<Accepted>(202, "The turn is in progress or pending", accepted())
        .errors(&PUBLISH)
        .errors(&[
            ErrorCode::UnknownBatch,
            ErrorCode::TurnDropped, ErrorCode::BatchNotLast,
            ErrorCode::BatchOpen,
            ErrorCode::BatchIncomplete,
            ErrorCode::InvalidPosition,
            ErrorCode::PartitionUnavailable,
            ErrorCode::AgentBackingOff,
            ErrorCode::BudgetExceeded,
            ErrorCode::ThreadErased,
        ]),
        Operation::post("/v1/threads/{thread}/notes", "putNote", "Add a note to a thread", notes::put)
            .tag(THREADS)
            .description(
                "A note is a message in its own batch, independent of turns: it waits for none and changes none in progress. Models read it, \
                 quoted, in the context of the next turn.",
            )
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<NoteBody>(json!({ "content": "The customer has paid.", "visibility": "hidden" }))
            .response::<NoteAccepted>(
                202,
                "Stored durably",
                json!({ "message_id": "note-0198c4d2e5f57a60b1d3c8a94e27f610", "thread_id": "hello" }),
            )
            .errors(&PUBLISH)
            .errors(&INPUT)
            .errors(&[ErrorCode::ThreadErased]),
        Operation::get(
            "/v1/threads/{thread}/context",
            "showContext",
            "Show the context that a model receives for a thread, and why",
            context::get,
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .query::<ContextQuery>()
        .response::<ContextView>(200, "The context", context())
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidFormat,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidTokens,
        ]),
        Operation::get(
            "/v1/threads/{thread}/compactions",
            "listCompactions",
            "List the compactions of a thread: what was removed from its contexts",
            context::compactions,
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .response::<CompactionsPage>(
            200,
            "Compactions, newest first",
            json!({ "thread_id": "hello", "compactions": [compaction()] }),
        )
        .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable]),
        Operation::post(
            "/v1/threads/{thread}/compactions/undo",
            "undoCompaction",
            "Undo the compaction in effect",
            context::undo,
        )
        .tag(THREADS)
        .description("Contexts become exactly as they were before it.")
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .response::<Undone>(
            200,
            "Undone",
            json!({ "thread_id": "hello", "undone": "7524873984012345344" }),
        )
        .errors(&[ErrorCode::NoCompaction]),
    ]
}

fn of_turns() -> Vec<Operation> {
    let failed = "/v1/threads/{thread}/failed-turns";
    vec![
        Operation::get("/v1/turns/{turn}", "getTurn", "Show a turn and its state", turns::get)
            .tag(TURNS)
            .scope(Scope::ReadThreads)
            .response::<TurnDetail>(200, "The turn", turn())
            .errors(&[ErrorCode::UnknownTurn, ErrorCode::PartitionUnavailable]),
        Operation::post("/v1/turns/{turn}/stop", "stopTurn", "Stop a turn", turns::stop)
            .tag(TURNS)
            .description("The partial answer is stored and marked. The request waits a few seconds for a worker that owns the turn.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownTurn, ErrorCode::TurnEnded, ErrorCode::PartitionUnavailable]),
        Operation::get(failed, "listFailedTurns", "List failed turns with their inputs", failed_turns::list)
            .tag(TURNS)
            .scope(Scope::ReadThreads)
            .query::<FailedQuery>()
            .response::<FailedTurnsPage>(200, "Failed turns, ordered by id", failed_turns())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::InvalidLimit]),
        Operation::post("/v1/threads/{thread}/failed-turns/{turn}/retry", "retryFailedTurn", "Retry a failed turn", failed_turns::retry)
            .tag(TURNS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .response::<Accepted>(202, "The next run is in progress or pending", accepted())
            .errors(&PUBLISH)
            .errors(&INPUT)
            .errors(&[ErrorCode::UnknownFailedTurn]),
        Operation::delete("/v1/threads/{thread}/failed-turns/{turn}", "dropFailedTurn", "Drop a failed turn", failed_turns::delete)
            .tag(TURNS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownFailedTurn]),
    ]
}

impl Operation {
    /// The answers of an act.
    pub(crate) fn acts(self) -> Self {
        let act =
            |status: &str| json!({ "command_id": "0198c4d2e5f57a60b1d3c8a94e27f610", "status": status });
        self.response::<ControlResult>(200, "Done, or rejected by the owner", act("done"))
            .response::<ControlResult>(
                202,
                "Not confirmed yet: it will be executed, and the audit log shows it",
                act("pending"),
            )
            .errors(&PUBLISH)
    }
}

fn thread() -> Value {
    json!({
        "thread_id": "hello", "agent_id": "ann", "busy_policy": "enqueue", "metadata": {}, "message_count": 2,
        "last_position": "7524873984012345345", "created_at": "2026-11-22T11:49:44.123Z",
    })
}

fn thread_now() -> Value {
    let mut thread = thread();
    thread["owner_status"] = json!("available");
    thread["active_turn"] = active_turn();
    thread["waiting_turns"] = json!([]);
    thread["open_messages"] = json!([{
        "message_id": "m-7", "expected": 3, "received": 4, "released": 3, "missing": [{ "first": 3, "last": 3 }],
        "until": "2026-11-22T11:50:14.123Z",
    }]);
    thread
}

fn accepted() -> Value {
    let turn = "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610";
    json!({
        "turn_id": turn, "thread_id": "hello", "run": 0, "message_id": format!("{turn}-a"),
        "input_message_id": format!("{turn}-u"), "stop_url": format!("/v1/turns/{turn}/stop"),
        "events_url": format!("/v1/threads/hello/events?message={turn}-a"),
    })
}

fn turn() -> Value {
    let turn = "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610";
    json!({
        "turn_id": turn, "thread_id": "hello", "state": "running", "run": 0, "message_id": format!("{turn}-a"),
        "waiting": {"reason": "no_workflow", "until": null, "message": WaitReason::NoWorkflow.message()},
        "follow_up": null, "finish_reason": null, "usage": null, "created_at": "2026-11-22T11:49:44.123Z",
        "started_at": "2026-11-22T11:49:44.125Z", "ended_at": null,
    })
}

fn message() -> Value {
    json!({
        "position": "7524873984012345345", "message_id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a",
        "batch_id": "7524873984012345344", "sequence_num": 1, "number": 2, "batch_type": "user_request", "role": "assistant",
        "content": "Sunny.", "tool_calls": null, "tool_call_id": null, "metadata": {}, "token_count": 3,
        "finish_reason": "stop", "usage": {"input_tokens": 120, "output_tokens": 3, "cached_tokens": 64},
        "parent_id": null, "created_at": "2026-11-22T11:49:47.300Z", "started_at": "2026-11-22T11:49:45.012Z",
    })
}

fn whole_batch() -> Value {
    let mut batch = batch();
    batch["messages"] = json!([message()]);
    batch["is_cut"] = json!(false);
    batch["calls"] = json!([{
        "tool_call_id": "call-1", "name": "weather", "call_at": "7524873984012345345",
        "result_at": "7524873984012345346", "is_answered": true,
    }]);
    batch
}

fn compaction() -> Value {
    json!({
        "compaction_id": "7524873984012345344", "strategy": "drop_oldest", "through": "7524873984012345000",
        "kept": [], "summary": null, "batches": 3, "messages": 9, "tokens_before": 30_000, "tokens_after": 18_000,
        "previous": null, "undone_at": null, "state": "counts", "actor": "antiphon",
        "created_at": "2026-11-22T11:49:44.123Z",
    })
}

fn context() -> Value {
    json!({
        "thread_id": "hello", "agent_id": "ann", "at": null, "tokens": 12, "budget": 32_000, "tokenizer": "estimate",
        "compaction": null, "older": { "code": "nothing" }, "system": null,
        "batches": [{
            "batch_id": "7524873984012345344", "in": true, "code": null, "why": null, "message_count": 2,
            "first_number": 1, "last_number": 2, "tokens": 12,
        }],
        "messages": [{ "role": "user", "content": "How is the weather?" }, { "role": "assistant", "content": "Sunny." }],
        "repairs": [], "memory": null, "complaints": [],
    })
}

fn failed_turns() -> Value {
    let failed = json!({
        "turn_id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610", "agent_id": "ann", "run": 0,
        "message_id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a", "content": "How is the weather?", "metadata": {},
        "code": "deadline", "message": "the workflow made no progress within its deadline", "retryable": true, "partial": "Sun",
        "failed_at": "2026-11-22T11:49:44.123Z",
    });
    json!({ "thread_id": "hello", "failed_turns": [failed], "next": null })
}
