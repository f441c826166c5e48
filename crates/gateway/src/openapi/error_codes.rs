//! The codes of errors: the status of each, and when it is given.

use axum::http::StatusCode;

/// What is said of a code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code {
    pub(crate) name: &'static str,
    pub(crate) status: StatusCode,
    /// The same request may succeed later; then `Retry-After` says when.
    pub(crate) is_retryable: bool,
    pub(crate) text: &'static str,
}

/// Every secured operation may say these.
pub(crate) const SECURED: [&str; 15] = [
    "unauthenticated",
    "credentials_unavailable",
    "insufficient_scope",
    "rate_limited",
    "too_many_requests",
    "too_many_streams",
    "too_many_unknown_keys",
    "invalid_host",
    "host_not_allowed",
    "origin_not_allowed",
    "invalid_id",
    "not_ready",
    "database_unavailable",
    "internal_error",
    "tenant_erased",
];

/// What a body may lead to.
pub(crate) const BODY: [&str; 7] = [
    "unsupported_media_type",
    "body_too_large",
    "body_timeout",
    "incomplete_body",
    "invalid_json",
    "invalid_body",
    "internal_error",
];

/// What an act or an order may lead to, which goes through the stream.
pub(crate) const PUBLISH: [&str; 2] = ["nats_unavailable", "stream_full"];

/// What an input may lead to.
pub(crate) const INPUT: [&str; 5] =
    ["empty_input", "invalid_content", "input_too_large", "invalid_metadata", "metadata_too_large"];

/// What a stream of events may lead to.
pub(crate) const STREAM: [&str; 3] = ["too_many_subscribers", "too_many_feeds", "draining"];

/// What a request of another protocol may lead to.
pub(crate) const PROTOCOL: [&str; 11] = [
    "missing_required_parameter",
    "invalid_value",
    "unsupported_parameter",
    "no_input",
    "empty_input",
    "no_thread",
    "invalid_json",
    "unsupported_media_type",
    "body_too_large",
    "body_timeout",
    "incomplete_body",
];

const fn code(name: &'static str, status: StatusCode, text: &'static str) -> Code {
    let is_retryable = matches!(status, StatusCode::SERVICE_UNAVAILABLE);
    Code { name, status, is_retryable, text }
}

const fn retryable(name: &'static str, status: StatusCode, text: &'static str) -> Code {
    Code { is_retryable: true, ..code(name, status, text) }
}

/// All of them, by their names.
pub(crate) const ALL: &[Code] = &[
    retryable(
        "agent_backing_off",
        StatusCode::CONFLICT,
        "the agent backs off and takes no messages meanwhile",
    ),
    code("agent_changed", StatusCode::CONFLICT, "the agent has just been erased and named anew"),
    Code {
        is_retryable: false,
        ..code(
            "answer_goes_on",
            StatusCode::SERVICE_UNAVAILABLE,
            "the gateway stops, and the turn goes on; the same request would open another",
        )
    },
    code("batch_incomplete", StatusCode::CONFLICT, "the batch is incomplete, so it cannot go on"),
    code("batch_not_last", StatusCode::CONFLICT, "the batch is not the last of its thread"),
    retryable("batch_open", StatusCode::CONFLICT, "a turn runs or waits in the thread"),
    code("body_timeout", StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    code("body_too_large", StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
    retryable(
        "budget_exceeded",
        StatusCode::TOO_MANY_REQUESTS,
        "a budget of the agent, the user or the tenant is spent",
    ),
    Code {
        is_retryable: false,
        ..code(
            "compression_not_applied",
            StatusCode::SERVICE_UNAVAILABLE,
            "the compression was taken back, but the contexts of its thread have not changed yet; do not repeat the request",
        )
    },
    code(
        "credentials_unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "credentials cannot be checked right now",
    ),
    code("cursor_ahead", StatusCode::CONFLICT, "the cursor is ahead of all that the thread has"),
    code("database_busy", StatusCode::SERVICE_UNAVAILABLE, "too many expensive reads are running; try again"),
    code(
        "database_unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "the database cannot be reached at the moment",
    ),
    retryable("dead_letter_busy", StatusCode::CONFLICT, "the dead letter is being replayed"),
    code(
        "dead_letter_not_replayable",
        StatusCode::CONFLICT,
        "the dead letter is a message that failed, or has no subject",
    ),
    code("dead_letter_replayed", StatusCode::CONFLICT, "the dead letter was replayed already"),
    code(
        "default_tenant_only",
        StatusCode::FORBIDDEN,
        "this concerns the installation, and requires a credential of the default tenant",
    ),
    code("draining", StatusCode::SERVICE_UNAVAILABLE, "the gateway is about to stop"),
    code("empty_input", StatusCode::BAD_REQUEST, "the input has no text"),
    code("follow_up_ended", StatusCode::CONFLICT, "the follow-up does not wait any more"),
    code(
        "host_not_allowed",
        StatusCode::MISDIRECTED_REQUEST,
        "with --insecure the Host must be localhost or a loopback address",
    ),
    code(
        "idempotency_key_needed",
        StatusCode::CONFLICT,
        "Last-Event-ID says that the input is sent again, and names no answer to it",
    ),
    code("idempotency_key_reused", StatusCode::UNPROCESSABLE_ENTITY, "the key was used with another input"),
    code("incomplete_body", StatusCode::BAD_REQUEST, "the body ended too early"),
    code("input_too_large", StatusCode::PAYLOAD_TOO_LARGE, "the input is too large"),
    Code {
        is_retryable: false,
        ..code(
            "input_unconfirmed",
            StatusCode::SERVICE_UNAVAILABLE,
            "it is not known whether the input was stored; the same request may open another turn",
        )
    },
    code("insufficient_scope", StatusCode::FORBIDDEN, "the credential does not allow this"),
    code("internal_error", StatusCode::INTERNAL_SERVER_ERROR, "something is wrong here; the log says what"),
    code("invalid_actor", StatusCode::BAD_REQUEST, "X-Antiphon-Actor is not 1 to 128 visible characters"),
    code("invalid_body", StatusCode::BAD_REQUEST, "the body has other fields or types"),
    code("invalid_budget", StatusCode::BAD_REQUEST, "no budget can be like this"),
    code("invalid_busy_policy", StatusCode::BAD_REQUEST, "there is no such policy"),
    code("invalid_content", StatusCode::BAD_REQUEST, "the text holds what cannot be stored"),
    code(
        "invalid_correlation_id",
        StatusCode::BAD_REQUEST,
        "X-Correlation-Id is not 1 to 255 visible characters",
    ),
    code("invalid_cursor", StatusCode::BAD_REQUEST, "this is no id of an event"),
    code("invalid_decision", StatusCode::BAD_REQUEST, "a tool call cannot be decided like this"),
    code("invalid_fact", StatusCode::BAD_REQUEST, "no fact can be like this"),
    code("invalid_format", StatusCode::BAD_REQUEST, "there is no such format"),
    code("invalid_host", StatusCode::BAD_REQUEST, "there is not exactly one Host"),
    code("invalid_id", StatusCode::BAD_REQUEST, "an id holds what ids do not hold"),
    code(
        "invalid_idempotency_key",
        StatusCode::BAD_REQUEST,
        "Idempotency-Key is not 1 to 255 visible characters",
    ),
    code("invalid_json", StatusCode::BAD_REQUEST, "the body is no JSON"),
    code("invalid_key", StatusCode::BAD_REQUEST, "no key can be like this"),
    code("invalid_limit", StatusCode::BAD_REQUEST, "the limit is not in its range"),
    code("invalid_metadata", StatusCode::BAD_REQUEST, "the metadata holds what cannot be kept"),
    code("invalid_not_before", StatusCode::BAD_REQUEST, "a task cannot wait for such a time"),
    code("invalid_parameters", StatusCode::BAD_REQUEST, "the parameters hold what cannot be kept"),
    code("invalid_position", StatusCode::BAD_REQUEST, "this is no position"),
    code("invalid_query", StatusCode::BAD_REQUEST, "the query has other fields or values"),
    code("invalid_range", StatusCode::BAD_REQUEST, "after is beyond before"),
    code("invalid_schedule", StatusCode::BAD_REQUEST, "no schedule can be like this"),
    code("invalid_settings", StatusCode::BAD_REQUEST, "a setting is not what it may be"),
    code("invalid_snooze", StatusCode::BAD_REQUEST, "a follow-up cannot wait for such a time"),
    code("invalid_ticket", StatusCode::BAD_REQUEST, "no ticket can be like this"),
    code("invalid_tokens", StatusCode::BAD_REQUEST, "the number of tokens is not in its range"),
    code("invalid_value", StatusCode::BAD_REQUEST, "a field has another type or value"),
    code("metadata_too_large", StatusCode::PAYLOAD_TOO_LARGE, "the metadata is too large"),
    code("missing_required_parameter", StatusCode::BAD_REQUEST, "a field is missing"),
    code("nats_unavailable", StatusCode::SERVICE_UNAVAILABLE, "NATS cannot be reached at the moment"),
    code("no_compaction", StatusCode::NOT_FOUND, "no compaction counts in this thread"),
    code("no_compression", StatusCode::NOT_FOUND, "the session has no compression to take back"),
    code("no_input", StatusCode::BAD_REQUEST, "the last message is not the user's"),
    code("no_thread", StatusCode::BAD_REQUEST, "earlier messages were sent along, and no thread was named"),
    code("not_acceptable", StatusCode::NOT_ACCEPTABLE, "this is there with gzip only"),
    code("not_ready", StatusCode::SERVICE_UNAVAILABLE, "the gateway has not reached the database yet"),
    code(
        "not_the_last_response",
        StatusCode::CONFLICT,
        "only the last response of its thread can be followed",
    ),
    code("origin_not_allowed", StatusCode::FORBIDDEN, "pages of this origin may not do this"),
    code("parameters_too_large", StatusCode::PAYLOAD_TOO_LARGE, "what is asked of the model is too large"),
    code(
        "partition_unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "no worker owns the partition at the moment",
    ),
    retryable("rate_limited", StatusCode::TOO_MANY_REQUESTS, "the tenant asks for more than it may"),
    code("session_changed", StatusCode::CONFLICT, "the session has changed meanwhile"),
    code(
        "stream_aborted",
        StatusCode::SERVICE_UNAVAILABLE,
        "the answer goes on; the same request goes on with it",
    ),
    code("stream_full", StatusCode::SERVICE_UNAVAILABLE, "the stream is full"),
    code("task_conflict", StatusCode::CONFLICT, "the agent knows a task of that id with another payload"),
    code(
        "tenant_erased",
        StatusCode::GONE,
        "the tenant was erased, and nothing is read or written for it until an operator reopens its name",
    ),
    retryable(
        "thread_busy",
        StatusCode::CONFLICT,
        "the thread has a turn under way, and its policy is `reject`",
    ),
    code("thread_erased", StatusCode::GONE, "the thread was erased"),
    code("thread_exists", StatusCode::CONFLICT, "there is a thread of that id, and it is another one"),
    code("too_many_budgets", StatusCode::CONFLICT, "the tenant has as many budgets as it may"),
    code(
        "too_many_delayed_tasks",
        StatusCode::CONFLICT,
        "as many tasks of the agent wait for their time as may",
    ),
    code("too_many_feeds", StatusCode::SERVICE_UNAVAILABLE, "this gateway follows as many threads as it may"),
    retryable(
        "too_many_requests",
        StatusCode::TOO_MANY_REQUESTS,
        "the address has more requests under way than it may",
    ),
    code("too_many_schedules", StatusCode::CONFLICT, "the agent has as many schedules as it may"),
    code(
        "too_many_streams",
        StatusCode::SERVICE_UNAVAILABLE,
        "this gateway has as many requests under way as it may",
    ),
    code(
        "too_many_subscribers",
        StatusCode::SERVICE_UNAVAILABLE,
        "the thread has as many subscribers here as it may have",
    ),
    retryable(
        "too_many_unknown_keys",
        StatusCode::TOO_MANY_REQUESTS,
        "the address has sent too many unknown keys",
    ),
    code("tool_incident_decided", StatusCode::CONFLICT, "this tool call is decided already"),
    code(
        "turn_deleted",
        StatusCode::GONE,
        "the turn of this key was done, and the retention of its agent has deleted it",
    ),
    code("turn_dropped", StatusCode::GONE, "the turn of this key failed, and an operator dropped it"),
    code("turn_ended", StatusCode::CONFLICT, "the turn has ended"),
    code("unauthenticated", StatusCode::UNAUTHORIZED, "there is no credential, or it does not count"),
    code("unexpected_body", StatusCode::BAD_REQUEST, "this request takes no body"),
    code("unknown_address", StatusCode::NOT_FOUND, "there is nothing at this address"),
    code("unknown_agent", StatusCode::NOT_FOUND, "there is no such agent"),
    code("unknown_answer", StatusCode::NOT_FOUND, "there is no such answer any more"),
    code("unknown_batch", StatusCode::NOT_FOUND, "there is no such batch in this thread"),
    code("unknown_budget", StatusCode::NOT_FOUND, "there is no such budget"),
    code("unknown_cursor", StatusCode::NOT_FOUND, "the cursor is not one of this thread"),
    code("unknown_dead_letter", StatusCode::NOT_FOUND, "there is no such dead letter"),
    code("unknown_fact", StatusCode::NOT_FOUND, "the agent remembers no such fact"),
    code("unknown_failed_turn", StatusCode::NOT_FOUND, "there is no such failed turn in this thread"),
    code("unknown_follow_up", StatusCode::NOT_FOUND, "there is no such follow-up in this thread"),
    code("unknown_key", StatusCode::NOT_FOUND, "there is no such key"),
    code("unknown_message", StatusCode::NOT_FOUND, "there is no message of that number"),
    code("unknown_response", StatusCode::NOT_FOUND, "there is no such response"),
    code("unknown_schedule", StatusCode::NOT_FOUND, "the agent has no such schedule"),
    code("unknown_session", StatusCode::NOT_FOUND, "there is no such reasoning session"),
    code("unknown_task", StatusCode::NOT_FOUND, "the agent has no such task"),
    code("unknown_thread", StatusCode::NOT_FOUND, "there is no such thread"),
    code("unknown_tool_incident", StatusCode::NOT_FOUND, "there is no such tool call of unknown outcome"),
    code("unknown_turn", StatusCode::NOT_FOUND, "there is no such turn"),
    code("unsupported_media_type", StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body is not application/json"),
    code(
        "unsupported_parameter",
        StatusCode::BAD_REQUEST,
        "the protocol has this field, and it cannot be done here",
    ),
];

/// What is said of a code; a test holds that every code which an operation names is there.
pub(crate) fn of(name: &str) -> Option<&'static Code> {
    ALL.iter().find(|code| code.name == name)
}
