//! The codes of errors, in one table: name, status, whether to try again, and what the code means.
//!
//! Entry type: [`ErrorCode`]. Problems, the OpenAPI document, metrics and logs read the table; a
//! code is written nowhere else.

use axum::http::StatusCode;
use protocols::request::BadRequest;

/// One row of the table: a code and its properties.
struct CodeRow {
    name: &'static str,
    status: StatusCode,
    retry_after_s: Option<u32>,
    meaning: &'static str,
}

/// The same request fails again.
const NEVER: Option<u32> = None;

/// The same request may succeed after this many seconds. A problem may set a longer pause.
const fn after(seconds: u32) -> Option<u32> {
    Some(seconds)
}

macro_rules! error_codes {
    ($($code:ident => $name:literal, $status:ident, $retry:expr, $meaning:literal;)+) => {
        /// Why a request is refused. Declared in the order of the names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $code,)+
        }

        impl ErrorCode {
            /// All codes, sorted by name.
            pub const ALL: &'static [Self] = &[$(Self::$code),+];

            const fn row(self) -> CodeRow {
                match self {
                    $(Self::$code => CodeRow {
                        name: $name,
                        status: StatusCode::$status,
                        retry_after_s: $retry,
                        meaning: $meaning,
                    },)+
                }
            }
        }
    };
}

error_codes! {
    AgentBackingOff => "agent_backing_off", CONFLICT, after(1),
        "the agent backs off after failures and takes no messages until it tries again";
    AgentChanged => "agent_changed", CONFLICT, NEVER, "the agent was erased and created again just now";
    AliasTaken => "alias_taken", CONFLICT, NEVER, "another agent of the tenant has the alias";
    AnswerGoesOn => "answer_goes_on", SERVICE_UNAVAILABLE, NEVER,
        "the gateway stops while the turn goes on; the same request would open another turn";
    BatchIncomplete => "batch_incomplete", CONFLICT, NEVER,
        "the batch is incomplete, so it cannot be continued";
    BatchNotLast => "batch_not_last", CONFLICT, NEVER, "the batch is not the last one of its thread";
    BatchOpen => "batch_open", CONFLICT, after(1), "a turn of the thread is running or waiting";
    BodyTimeout => "body_timeout", REQUEST_TIMEOUT, NEVER, "the body did not arrive in time";
    BodyTooLarge => "body_too_large", PAYLOAD_TOO_LARGE, NEVER, "the body is too large";
    BudgetExceeded => "budget_exceeded", TOO_MANY_REQUESTS, after(1),
        "a budget of the agent, the user or the tenant is spent";
    CompressionNotApplied => "compression_not_applied", SERVICE_UNAVAILABLE, NEVER,
        "the compression was undone, but the contexts of its thread have not changed yet; repeat the request only with its request_id";
    CredentialsUnavailable => "credentials_unavailable", SERVICE_UNAVAILABLE, after(1),
        "credentials cannot be checked at the moment";
    CursorAhead => "cursor_ahead", CONFLICT, NEVER, "the cursor is ahead of everything that the thread has";
    DatabaseBusy => "database_busy", SERVICE_UNAVAILABLE, after(1),
        "too many expensive reads or imports are running";
    DatabaseUnavailable => "database_unavailable", SERVICE_UNAVAILABLE, after(1),
        "the database cannot be reached at the moment";
    DeadLetterBusy => "dead_letter_busy", CONFLICT, after(60),
        "the dead letter is being replayed";
    DeadLetterNotReplayable => "dead_letter_not_replayable", CONFLICT, NEVER,
        "the dead letter is a message that failed, or has no subject";
    DeadLetterReplayed => "dead_letter_replayed", CONFLICT, NEVER,
        "the dead letter was replayed already";
    DefaultTenantOnly => "default_tenant_only", FORBIDDEN, NEVER,
        "this concerns the installation, and requires a credential of the default tenant";
    Draining => "draining", SERVICE_UNAVAILABLE, after(1), "the gateway is stopping; try another one";
    EmptyInput => "empty_input", BAD_REQUEST, NEVER, "the input has no text";
    FollowUpEnded => "follow_up_ended", CONFLICT, NEVER, "the follow-up does not wait any more";
    HostNotAllowed => "host_not_allowed", MISDIRECTED_REQUEST, NEVER,
        "with --insecure the Host must be localhost or a loopback address";
    IdempotencyKeyNeeded => "idempotency_key_needed", CONFLICT, NEVER,
        "Last-Event-ID says that the input was sent before, but names no answer to it";
    IdempotencyKeyReused => "idempotency_key_reused", UNPROCESSABLE_ENTITY, NEVER,
        "the Idempotency-Key was used with another input";
    IncompleteBody => "incomplete_body", BAD_REQUEST, NEVER, "the body ended too early";
    InputTooLarge => "input_too_large", PAYLOAD_TOO_LARGE, NEVER, "the input is too large";
    InputUnconfirmed => "input_unconfirmed", SERVICE_UNAVAILABLE, NEVER,
        "it is not known whether the input was stored; the same request may open another turn";
    InsufficientScope => "insufficient_scope", FORBIDDEN, NEVER,
        "the credential does not grant the scope that this needs";
    InternalError => "internal_error", INTERNAL_SERVER_ERROR, NEVER,
        "something is wrong here; the log says what";
    InvalidActor => "invalid_actor", BAD_REQUEST, NEVER,
        "X-Antiphon-Actor is not 1 to 128 visible characters";
    InvalidBody => "invalid_body", BAD_REQUEST, NEVER,
        "the body has an unknown field, or a field of the wrong type";
    InvalidBudget => "invalid_budget", BAD_REQUEST, NEVER, "a field of the budget is out of its range";
    InvalidBusyPolicy => "invalid_busy_policy", BAD_REQUEST, NEVER, "there is no such busy policy";
    InvalidCommand => "invalid_command", BAD_REQUEST, NEVER,
        "the worker of the thread or agent would refuse this command";
    InvalidContent => "invalid_content", BAD_REQUEST, NEVER,
        "the text contains a character that cannot be stored";
    InvalidCorrelationId => "invalid_correlation_id", BAD_REQUEST, NEVER,
        "X-Correlation-Id is not 1 to 255 visible characters";
    InvalidCursor => "invalid_cursor", BAD_REQUEST, NEVER, "this is not the id of an event";
    InvalidDecision => "invalid_decision", BAD_REQUEST, NEVER,
        "this is not a valid decision about a tool call";
    InvalidFact => "invalid_fact", BAD_REQUEST, NEVER, "a field of the fact is out of its range";
    InvalidFeedback => "invalid_feedback", BAD_REQUEST, NEVER, "a field of the feedback is out of its range";
    InvalidFormat => "invalid_format", BAD_REQUEST, NEVER, "there is no such format";
    InvalidHost => "invalid_host", BAD_REQUEST, NEVER, "the request does not name exactly one host";
    InvalidId => "invalid_id", BAD_REQUEST, NEVER,
        "an id contains a character that ids do not have, or is too long";
    InvalidIdempotencyKey => "invalid_idempotency_key", BAD_REQUEST, NEVER,
        "Idempotency-Key is not 1 to 255 visible characters";
    InvalidIfMatch => "invalid_if_match", BAD_REQUEST, NEVER, "If-Match is not the ETag of this resource";
    InvalidImport => "invalid_import", BAD_REQUEST, NEVER, "a line of the import is refused";
    InvalidJson => "invalid_json", BAD_REQUEST, NEVER, "the body is not JSON";
    InvalidKey => "invalid_key", BAD_REQUEST, NEVER, "a field of the key is out of its range";
    InvalidLimit => "invalid_limit", BAD_REQUEST, NEVER, "the limit is out of its range";
    InvalidMetadata => "invalid_metadata", BAD_REQUEST, NEVER,
        "the metadata contains a value or a key that is not allowed";
    InvalidNotBefore => "invalid_not_before", BAD_REQUEST, NEVER,
        "this is not a time that a task can wait for";
    InvalidOnDisconnect => "invalid_on_disconnect", BAD_REQUEST, NEVER,
        "X-Antiphon-On-Disconnect is neither `continue` nor `stop`";
    InvalidParameters => "invalid_parameters", BAD_REQUEST, NEVER,
        "the parameters contain a value that is not allowed";
    InvalidPosition => "invalid_position", BAD_REQUEST, NEVER, "this is not a position";
    InvalidQuery => "invalid_query", BAD_REQUEST, NEVER,
        "the query has an unknown parameter or an invalid value";
    InvalidRange => "invalid_range", BAD_REQUEST, NEVER, "after is above before";
    InvalidSchedule => "invalid_schedule", BAD_REQUEST, NEVER, "a field of the schedule is invalid";
    InvalidSettings => "invalid_settings", BAD_REQUEST, NEVER, "a setting is unknown or has an invalid value";
    InvalidSnooze => "invalid_snooze", BAD_REQUEST, NEVER, "this is not a time that a follow-up can wait for";
    InvalidTicket => "invalid_ticket", BAD_REQUEST, NEVER, "the lifetime of the ticket is out of its range";
    InvalidTitle => "invalid_title", BAD_REQUEST, NEVER, "this is not a title";
    InvalidTokens => "invalid_tokens", BAD_REQUEST, NEVER, "the number of tokens is out of its range";
    InvalidValue => "invalid_value", BAD_REQUEST, NEVER, "a field has another type or value";
    KeyNotRotatable => "key_not_rotatable", CONFLICT, NEVER,
        "the key has ended, or the secret before its last rotation is still valid";
    MetadataTooLarge => "metadata_too_large", PAYLOAD_TOO_LARGE, NEVER, "the metadata is too large";
    MethodNotAllowed => "method_not_allowed", METHOD_NOT_ALLOWED, NEVER,
        "this address does not take that method; Allow says which it takes";
    MissingRequiredParameter => "missing_required_parameter", BAD_REQUEST, NEVER, "a field is missing";
    NatsUnavailable => "nats_unavailable", SERVICE_UNAVAILABLE, after(1),
        "NATS cannot be reached at the moment";
    NoCompaction => "no_compaction", NOT_FOUND, NEVER, "there is no compaction in this thread that counts";
    NoCompression => "no_compression", NOT_FOUND, NEVER,
        "the session has no compression to undo";
    NoInput => "no_input", BAD_REQUEST, NEVER, "the last message is not the user's";
    NoThread => "no_thread", BAD_REQUEST, NEVER, "earlier messages were sent along, and no thread was named";
    NotAcceptable => "not_acceptable", NOT_ACCEPTABLE, NEVER, "this file is available with gzip only";
    NotReady => "not_ready", SERVICE_UNAVAILABLE, after(1), "the database has not been reached yet";
    NotTheLastResponse => "not_the_last_response", CONFLICT, NEVER,
        "only the last response of its thread can be followed";
    OriginNotAllowed => "origin_not_allowed", FORBIDDEN, NEVER,
        "pages of this origin may not call the gateway";
    ParametersTooLarge => "parameters_too_large", PAYLOAD_TOO_LARGE, NEVER,
        "the parameters for the model are too large";
    PartitionUnavailable => "partition_unavailable", SERVICE_UNAVAILABLE, after(1),
        "no worker answers for the thread or agent at the moment";
    RateLimited => "rate_limited", TOO_MANY_REQUESTS, after(1), "the tenant has reached its rate limit";
    RequestIdReused => "request_id_reused", UNPROCESSABLE_ENTITY, NEVER,
        "the request_id was used for another change of the session";
    RequestTimeout => "request_timeout", REQUEST_TIMEOUT, NEVER, "the request took too long";
    SessionChanged => "session_changed", CONFLICT, NEVER,
        "the session has changed in between";
    StreamAborted => "stream_aborted", SERVICE_UNAVAILABLE, after(1), "the answer goes on; ask again for it";
    StreamFull => "stream_full", SERVICE_UNAVAILABLE, after(5), "the stream takes nothing at the moment";
    TaskConflict => "task_conflict", CONFLICT, NEVER,
        "the agent knows a task of that id with another payload";
    TenantBeingErased => "tenant_being_erased", CONFLICT, after(60),
        "something of the tenant may be left, so its name cannot be reopened";
    TenantErased => "tenant_erased", GONE, NEVER,
        "the tenant was erased; an operator can reopen its name";
    ThreadBusy => "thread_busy", CONFLICT, after(1),
        "a turn of the thread is running, and the busy policy is `reject`";
    ThreadChanged => "thread_changed", PRECONDITION_FAILED, NEVER,
        "the thread has another version than If-Match names";
    ThreadErased => "thread_erased", GONE, NEVER, "the thread was erased";
    ThreadExists => "thread_exists", CONFLICT, NEVER, "there is another thread of that id";
    TooManyBudgets => "too_many_budgets", CONFLICT, NEVER, "the tenant has the maximum number of budgets";
    TooManyDelayedTasks => "too_many_delayed_tasks", CONFLICT, NEVER,
        "the agent has the maximum number of delayed tasks";
    TooManyErasures => "too_many_erasures", TOO_MANY_REQUESTS, after(60),
        "the tenant has the maximum number of erasures that have not ended";
    TooManyFeeds => "too_many_feeds", SERVICE_UNAVAILABLE, after(1),
        "this gateway follows the maximum number of threads; try another one";
    TooManyRequests => "too_many_requests", TOO_MANY_REQUESTS, after(1),
        "the address has the maximum number of requests running";
    TooManySchedules => "too_many_schedules", CONFLICT, NEVER,
        "the agent has the maximum number of schedules";
    TooManyStreams => "too_many_streams", SERVICE_UNAVAILABLE, after(1),
        "this gateway has the maximum number of requests running; try another one";
    TooManySubscribers => "too_many_subscribers", SERVICE_UNAVAILABLE, after(1),
        "the thread has the maximum number of subscribers at this gateway; try another one";
    TooManyUnknownKeys => "too_many_unknown_keys", TOO_MANY_REQUESTS, after(1),
        "the address has sent too many unknown keys";
    TooMuchFeedback => "too_much_feedback", CONFLICT, NEVER,
        "the message has feedback from the maximum number of users";
    ToolIncidentDecided => "tool_incident_decided", CONFLICT, NEVER, "this tool call is decided already";
    TurnDeleted => "turn_deleted", GONE, NEVER,
        "the turn of this key has ended, and the retention of its agent has deleted it";
    TurnDropped => "turn_dropped", GONE, NEVER, "the turn of this key failed, and an operator dropped it";
    TurnEnded => "turn_ended", CONFLICT, NEVER, "the turn has ended";
    TurnFailed => "turn_failed", BAD_GATEWAY, NEVER,
        "the turn failed; clients are shown the code of its failure";
    Unauthenticated => "unauthenticated", UNAUTHORIZED, NEVER, "there is no credential, or it is not valid";
    UnexpectedBody => "unexpected_body", BAD_REQUEST, NEVER, "this request takes no body";
    UnknownAddress => "unknown_address", NOT_FOUND, NEVER, "there is nothing at this address";
    UnknownAgent => "unknown_agent", NOT_FOUND, NEVER, "there is no such agent";
    UnknownBatch => "unknown_batch", NOT_FOUND, NEVER, "there is no such batch in this thread";
    UnknownBudget => "unknown_budget", NOT_FOUND, NEVER, "there is no such budget";
    UnknownCursor => "unknown_cursor", NOT_FOUND, NEVER, "the cursor is not one of this thread";
    UnknownDeadLetter => "unknown_dead_letter", NOT_FOUND, NEVER,
        "there is no such dead letter";
    UnknownErasure => "unknown_erasure", NOT_FOUND, NEVER, "there is no such erasure";
    UnknownFact => "unknown_fact", NOT_FOUND, NEVER,
        "the agent remembers no such fact, or another one has taken its place";
    UnknownFailedTurn => "unknown_failed_turn", NOT_FOUND, NEVER,
        "there is no such failed turn in this thread";
    UnknownFeedback => "unknown_feedback", NOT_FOUND, NEVER, "the user has no feedback on this message";
    UnknownFollowUp => "unknown_follow_up", NOT_FOUND, NEVER, "there is no such follow-up in this thread";
    UnknownKey => "unknown_key", NOT_FOUND, NEVER, "there is no such key";
    UnknownMessage => "unknown_message", NOT_FOUND, NEVER,
        "there is no such message in the thread or the reasoning session";
    UnknownResponse => "unknown_response", NOT_FOUND, NEVER, "there is no such response";
    UnknownSchedule => "unknown_schedule", NOT_FOUND, NEVER, "the agent has no such schedule";
    UnknownSession => "unknown_session", NOT_FOUND, NEVER, "there is no such reasoning session";
    UnknownTask => "unknown_task", NOT_FOUND, NEVER, "the agent has no such task";
    UnknownTenant => "unknown_tenant", NOT_FOUND, NEVER, "the tenant is not marked as erased";
    UnknownThread => "unknown_thread", NOT_FOUND, NEVER, "there is no such thread";
    UnknownToolIncident => "unknown_tool_incident", NOT_FOUND, NEVER,
        "there is no such tool call of unknown outcome";
    UnknownTurn => "unknown_turn", NOT_FOUND, NEVER, "there is no such turn";
    UnsupportedMediaType => "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, NEVER,
        "the body has another Content-Type than required, or is compressed";
    UnsupportedParameter => "unsupported_parameter", BAD_REQUEST, NEVER,
        "a field asks for something that is not supported here";
}

impl ErrorCode {
    /// The name of the code for programs, which never changes.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    pub const fn status(self) -> StatusCode {
        self.row().status
    }

    /// After how many seconds the same request may succeed; `None`: it fails again.
    pub const fn retry_after_s(self) -> Option<u32> {
        self.row().retry_after_s
    }

    /// The meaning of the code: one sentence for people.
    pub const fn meaning(self) -> &'static str {
        self.row().meaning
    }
}

impl From<&BadRequest> for ErrorCode {
    fn from(bad: &BadRequest) -> Self {
        match bad {
            BadRequest::NotAnObject(_) => Self::InvalidJson,
            BadRequest::Missing { .. } => Self::MissingRequiredParameter,
            BadRequest::Invalid { .. }
            | BadRequest::InvalidId { .. }
            | BadRequest::InvalidMetadata { .. }
            | BadRequest::UnknownModel { .. } => Self::InvalidValue,
            BadRequest::Unsupported { .. } => Self::UnsupportedParameter,
            BadRequest::NoInput { .. } => Self::NoInput,
            BadRequest::EmptyInput { .. } => Self::EmptyInput,
            BadRequest::NoThread { .. } => Self::NoThread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A code is its variant in snake case.
    #[test]
    fn names_are_those_of_the_variants_in_their_order() {
        let names: Vec<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert!(names.is_sorted(), "{names:?}");
        for code in ErrorCode::ALL {
            let variant = format!("{code:?}").to_lowercase();
            assert_eq!(code.name().replace('_', ""), variant);
            assert!(code.status().is_client_error() || code.status().is_server_error(), "{variant}");
        }
    }
}
