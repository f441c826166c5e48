//! Metrics of a gateway, besides those of its HTTP server. Every metric is declared here, once.

use metrics::{Counter, counter, gauge};
use runtime::metrics::MetricDescription;
use store::ReplicaState;

const SUBSCRIBERS: &str = "antiphon_gateway_subscribers";
const FEEDS: &str = "antiphon_gateway_feeds";
const EVENTS: &str = "antiphon_gateway_events_sent_total";
const BYTES: &str = "antiphon_gateway_event_bytes_sent_total";
const OWNER_QUERIES: &str = "antiphon_gateway_owner_queries_total";
const OPEN_MESSAGE_LIMIT: &str = "antiphon_gateway_open_message_limit_total";
const GAPS_FILLED: &str = "antiphon_gateway_gaps_filled_total";
const CHUNKS_SKIPPED: &str = "antiphon_gateway_chunks_skipped_total";
const RESYNCS: &str = "antiphon_gateway_resyncs_total";
const SUBSCRIBERS_ABORTED: &str = "antiphon_gateway_subscribers_aborted_total";
const COMMANDS: &str = "antiphon_gateway_commands_total";
const FRAME_DECODE_ERRORS: &str = "antiphon_gateway_frame_decode_errors_total";
const READS: &str = "antiphon_gateway_reads_total";
const REPLICA_USED: &str = "antiphon_gateway_replica_used";
const REPLICA_LAG: &str = "antiphon_gateway_replica_lag_seconds";
const FEEDBACK: &str = "antiphon_gateway_feedback_total";
const FRAMES_DROPPED: &str = "antiphon_gateway_frames_dropped_total";

/// Kinds of feedback, by its score.
const FEEDBACK_SCORES: [&str; 4] = ["positive", "neutral", "negative", "none"];
/// Kinds of published commands.
const COMMAND_KINDS: [&str; 6] = ["turn", "retry_turn", "task", "act", "note", "replay"];
const STORED: &str = "stored";
const UNCONFIRMED: &str = "unconfirmed";

/// The outcome of a query to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryOutcome {
    Answered,
    NoOwner,
    Timeout,
    Away,
    Undecodable,
}

impl QueryOutcome {
    const ALL: [Self; 5] = [Self::Answered, Self::NoOwner, Self::Timeout, Self::Away, Self::Undecodable];

    fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NoOwner => "no_owner",
            Self::Timeout => "timeout",
            Self::Away => "away",
            Self::Undecodable => "undecodable",
        }
    }
}

impl From<bus::QueryError> for QueryOutcome {
    fn from(error: bus::QueryError) -> Self {
        match error {
            bus::QueryError::NoOwner => Self::NoOwner,
            bus::QueryError::Timeout => Self::Timeout,
            bus::QueryError::Away => Self::Away,
        }
    }
}

/// Why a subscriber's connection was cut without an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbortReason {
    /// More than the allowed lag was queued.
    Lag,
    /// Text of an open message was no longer buffered.
    OverBudget,
    /// The subscriber's protocol cannot retract the shown part of an abandoned attempt.
    Retold,
    /// The feed or the store failed.
    Internal,
}

impl AbortReason {
    const ALL: [Self; 4] = [Self::Lag, Self::OverBudget, Self::Retold, Self::Internal];

    fn name(self) -> &'static str {
        match self {
            Self::Lag => "lag",
            Self::OverBudget => "over_budget",
            Self::Retold => "retold",
            Self::Internal => "internal",
        }
    }
}

pub const METRICS: &[MetricDescription] = &[
    MetricDescription::gauge(SUBSCRIBERS, "Open event streams"),
    MetricDescription::gauge(
        FEEDS,
        "Threads that at least one subscriber follows, or followed until some seconds ago",
    ),
    MetricDescription::counter(EVENTS, "Events sent to subscribers, counted per subscriber"),
    MetricDescription::counter(BYTES, "Bytes of event streams written to the sockets"),
    MetricDescription::counter(
        OWNER_QUERIES,
        "Queries to owners, by `outcome`: `answered`, `no_owner`, `timeout`, `away` (NATS), `undecodable`",
    )
    .by(&["outcome"]),
    MetricDescription::counter(
        OPEN_MESSAGE_LIMIT,
        "Times that a thread had more open messages than are streamed; the others are sent when they end",
    ),
    MetricDescription::counter(
        GAPS_FILLED,
        "Times that frames of a thread were missing and its owner was asked for a snapshot",
    ),
    MetricDescription::counter(
        CHUNKS_SKIPPED,
        "Chunks that were not sent because they had been sent before, or were fenced by a higher attempt",
    ),
    MetricDescription::counter(
        RESYNCS,
        "Times that events may have been missed: an owner changed, NATS was unavailable",
    ),
    MetricDescription::counter(
        SUBSCRIBERS_ABORTED,
        "Subscribers cut without an end, by `reason`: `lag`, `over_budget` (the text of an open message was dropped), \
         `retold` (the protocol cannot revoke an attempt), `internal`; each can resume",
    )
    .by(&["reason"]),
    MetricDescription::counter(
        COMMANDS,
        "Commands published to a partition's stream, by `kind` (`turn`, `retry_turn`, `task`, `act`, `note`, `replay`) and \
         `outcome`: `stored`, or `unconfirmed`, which the sender sees as an error",
    )
    .by(&["kind", "outcome"]),
    MetricDescription::counter(FRAME_DECODE_ERRORS, "Frames or replies of owners that could not be decoded"),
    MetricDescription::counter(
        FEEDBACK,
        "Feedback on messages, by `score`: `positive`, `neutral`, `negative`, `none` (without a score)",
    )
    .by(&["score"]),
    MetricDescription::counter(
        FRAMES_DROPPED,
        "Frames dropped because their thread's feed was behind; it requests what is missing",
    ),
    MetricDescription::counter(
        READS,
        "Reads of lists and history, by the server that answered, `from`: `primary`, `replica`",
    )
    .by(&["from"]),
    MetricDescription::gauge(
        REPLICA_LAG,
        "Maximum age of the data on the standby of `DATABASE_READ_URL`; absent while the standby is not used",
    ),
    MetricDescription::gauge(
        REPLICA_USED,
        "Whether the standby of `DATABASE_READ_URL` is used: 1 while it answers reads that may be slightly old, 0 \
         while the primary does",
    ),
];

/// Registers the help texts and initial values of the metrics.
pub(crate) fn describe() {
    runtime::metrics::describe(METRICS);
    register_at_zero();
}

/// Starts counters at zero: if a counter appears with its first increment, rates do not include
/// that increment.
fn register_at_zero() {
    [SUBSCRIBERS, FEEDS].iter().for_each(|name| gauge!(*name).increment(0.0));
    [EVENTS, BYTES, OPEN_MESSAGE_LIMIT, GAPS_FILLED, CHUNKS_SKIPPED]
        .iter()
        .chain(&[RESYNCS, FRAME_DECODE_ERRORS, FRAMES_DROPPED])
        .for_each(|name| counter!(*name).increment(0));
    for score in FEEDBACK_SCORES {
        counter!(FEEDBACK, "score" => score).increment(0);
    }
    for from in ReadFrom::ALL {
        counter!(READS, "from" => from.name()).increment(0);
    }
    for outcome in QueryOutcome::ALL {
        counter!(OWNER_QUERIES, "outcome" => outcome.name()).increment(0);
    }
    for reason in AbortReason::ALL {
        counter!(SUBSCRIBERS_ABORTED, "reason" => reason.name()).increment(0);
    }
    for (kind, outcome) in COMMAND_KINDS.iter().flat_map(|kind| [(*kind, STORED), (*kind, UNCONFIRMED)]) {
        counter!(COMMANDS, "kind" => kind, "outcome" => outcome).increment(0);
    }
}

pub(crate) fn subscribers(change: f64) {
    gauge!(SUBSCRIBERS).increment(change);
}

pub(crate) fn feeds(change: f64) {
    gauge!(FEEDS).increment(change);
}

pub(crate) fn events(count: u64) {
    counter!(EVENTS).increment(count);
}

/// A handle of the byte counter, which each subscriber keeps.
pub(crate) fn bytes() -> Counter {
    counter!(BYTES)
}

pub(crate) fn owner_query(outcome: QueryOutcome) {
    counter!(OWNER_QUERIES, "outcome" => outcome.name()).increment(1);
}

pub(crate) fn command(kind: &'static str, is_stored: bool) {
    let outcome = if is_stored { STORED } else { UNCONFIRMED };
    counter!(COMMANDS, "kind" => kind, "outcome" => outcome).increment(1);
}

pub(crate) fn feed(left_out: u64, gaps_filled: u64, skipped: u64) {
    counter!(OPEN_MESSAGE_LIMIT).increment(left_out);
    counter!(GAPS_FILLED).increment(gaps_filled);
    counter!(CHUNKS_SKIPPED).increment(skipped);
}

pub(crate) fn resync() {
    counter!(RESYNCS).increment(1);
}

pub(crate) fn subscriber_aborted(reason: AbortReason) {
    counter!(SUBSCRIBERS_ABORTED, "reason" => reason.name()).increment(1);
}

pub(crate) fn frame_decode_error() {
    counter!(FRAME_DECODE_ERRORS).increment(1);
}

/// Counts feedback that was stored.
pub(crate) fn feedback(score: Option<f64>) {
    let [positive, neutral, negative, none] = FEEDBACK_SCORES;
    let score = match score {
        Some(score) if score > 0.0 => positive,
        Some(score) if score < 0.0 => negative,
        Some(_) => neutral,
        None => none,
    };
    counter!(FEEDBACK, "score" => score).increment(1);
}

pub(crate) fn frame_dropped() {
    counter!(FRAMES_DROPPED).increment(1);
}

/// The server that answered a read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadFrom {
    Primary,
    Replica,
}

impl ReadFrom {
    const ALL: [Self; 2] = [Self::Primary, Self::Replica];

    fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

pub(crate) fn read(from: ReadFrom) {
    counter!(READS, "from" => from.name()).increment(1);
}

pub(crate) fn replica_lag(state: &ReplicaState) {
    let lag = match state {
        ReplicaState::Behind(lag) => Some(lag.as_secs_f64()),
        ReplicaState::Unusable(_) => None,
    };
    gauge!(REPLICA_USED).set(if lag.is_some() { 1.0 } else { 0.0 });
    gauge!(REPLICA_LAG).set(lag.unwrap_or(f64::NAN));
}
