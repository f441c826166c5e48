//! The metrics of a workflow service. Every metric is declared here, once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};
use model::ErrorClass;
use runtime::metrics::MetricDescription;

use crate::reader::{Deviation, Deviations};

const TURNS: &str = "antiphon_workflow_turns_total";
const IN_HAND: &str = "antiphon_workflow_turns_in_progress";
const TURN_TIME: &str = "antiphon_workflow_turn_seconds";
const FIRST_CHUNK: &str = "antiphon_workflow_first_chunk_seconds";
const REDELIVERIES: &str = "antiphon_workflow_redeliveries_total";
const GARBAGE: &str = "antiphon_workflow_invalid_requests_total";
const FAILURES: &str = "antiphon_workflow_failures_total";
const FRAMES: &str = "antiphon_workflow_frames_total";
const CHUNKS: &str = "antiphon_workflow_chunks_total";
const SIGNS: &str = "antiphon_workflow_keepalives_total";
const MODEL_CALLS: &str = "antiphon_workflow_model_calls_total";
const MODEL_TOKENS: &str = "antiphon_workflow_model_tokens_total";
const MODEL_RETRIES: &str = "antiphon_workflow_model_retries_total";
const DEVIATIONS: &str = "antiphon_workflow_response_deviations_total";
const TOOL_CALLS: &str = "antiphon_workflow_tool_calls_total";
const TOOL_TIME: &str = "antiphon_workflow_tool_call_seconds";
const UNDECIDED: &str = "antiphon_workflow_undecided_tool_calls";
const SERVED: &str = "antiphon_workflow_script_responses_total";

/// Outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnOutcome {
    /// The complete answer is stored.
    Complete,
    /// An error chunk is stored.
    Failed,
    /// The turn was stopped from outside.
    Stopped,
    /// Handed back: another service gets the request.
    HandedBack,
    /// Lost: another service has the request already.
    Lost,
    /// A script simulated the death of the service.
    Cut,
    /// The chunks could not be stored.
    Unpublished,
    /// Delivered after it expired, so it was not begun.
    Expired,
}

impl TurnOutcome {
    const ALL: [Self; 8] = [
        Self::Complete,
        Self::Failed,
        Self::Stopped,
        Self::HandedBack,
        Self::Lost,
        Self::Cut,
        Self::Unpublished,
        Self::Expired,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::HandedBack => "handed_back",
            Self::Lost => "lost",
            Self::Cut => "cut",
            Self::Unpublished => "unpublished",
            Self::Expired => "expired",
        }
    }
}

/// How a response of the scripted HTTP server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// The response was sent to its end.
    Completed,
    /// An error that the script asked for.
    Error,
    /// The script cut the connection.
    Cut,
    /// The client disconnected before the end.
    Disconnected,
}

impl Served {
    fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Error => "error",
            Self::Cut => "cut",
            Self::Disconnected => "disconnected",
        }
    }
}

/// Descriptions of all metrics of the workflow service.
pub const METRICS: &[MetricDescription] = &[
    MetricDescription::counter(
        TURNS,
        "Deliveries of turn requests that ended, by `outcome`: `complete`, `failed`, `stopped`, \
         `handed_back`, `lost` (another service has it), `cut` (by a script), `unpublished`",
    )
    .by(&["outcome"]),
    MetricDescription::gauge(IN_HAND, "Turn requests in progress"),
    MetricDescription::histogram(TURN_TIME, "Duration from taking a turn request to its end"),
    MetricDescription::histogram(FIRST_CHUNK, "Duration from taking a turn request to publishing its first chunk"),
    MetricDescription::counter(REDELIVERIES, "Turn requests delivered a second time or more often"),
    MetricDescription::counter(GARBAGE, "Payloads that were not turn requests and were dropped"),
    MetricDescription::counter(
        FAILURES,
        "Turns answered with an error, by `class`: `transient`, `permanent`, `auth`",
    )
    .by(&["class"]),
    MetricDescription::counter(FRAMES, "Frames published"),
    MetricDescription::counter(CHUNKS, "Chunks published"),
    MetricDescription::counter(SIGNS, "Metadata chunks that kept a silent turn alive"),
    MetricDescription::counter(
        MODEL_CALLS,
        "Model calls, by `outcome`: `ok`, `transient`, `permanent`, `auth`",
    )
    .by(&["outcome"]),
    MetricDescription::counter(
        MODEL_TOKENS,
        "Tokens that the model reported, by `kind`: `prompt`, `completion`",
    )
    .by(&["kind"]),
    MetricDescription::counter(
        MODEL_RETRIES,
        "Model calls that were retried before the model had sent anything: its endpoint was busy or unavailable, or \
         broke the connection",
    ),
    MetricDescription::counter(
        DEVIATIONS,
        "Model responses that were read although they deviate from the interface, by `kind`, for example \
         `invalid_json`, `content_part`, `call_identity`; deploy/workflow/README.md lists the kinds",
    )
    .by(&["kind"]),
    MetricDescription::counter(
        TOOL_CALLS,
        "Tool calls, by `outcome`: `ok`, `error`, `kept` (not made: an earlier attempt of the turn has the result)",
    )
    .by(&["outcome"]),
    MetricDescription::histogram(TOOL_TIME, "Duration of tool calls"),
    MetricDescription::gauge(UNDECIDED, "Tool calls with an unknown outcome for whose decision a turn waits"),
    MetricDescription::counter(
        SERVED,
        "Responses of the scripted HTTP server, by `outcome`: `completed`, `error`, `cut`, `disconnected` (by the \
         client)",
    )
    .by(&["outcome"]),
];

/// Help texts for the metrics endpoint.
pub(crate) fn describe() {
    runtime::metrics::describe(METRICS);
    // Counters start at zero here: `rate` would miss the increment that creates a counter.
    [REDELIVERIES, GARBAGE, FRAMES, CHUNKS, SIGNS, MODEL_RETRIES]
        .iter()
        .for_each(|name| counter!(*name).increment(0));
    gauge!(IN_HAND).increment(0.0);
    gauge!(UNDECIDED).increment(0.0);
    for class in [ErrorClass::Transient, ErrorClass::Permanent, ErrorClass::Auth] {
        counter!(FAILURES, "class" => class.name()).increment(0);
        counter!(MODEL_CALLS, "outcome" => class.name()).increment(0);
    }
    counter!(MODEL_CALLS, "outcome" => "ok").increment(0);
    for deviation in Deviation::ALL {
        counter!(DEVIATIONS, "kind" => deviation.name()).increment(0);
    }
    for outcome in TurnOutcome::ALL {
        counter!(TURNS, "outcome" => outcome.name()).increment(0);
    }
}

/// A turn in progress. It is counted until it is dropped, also when its task panics.
pub(crate) struct Taken(Instant);

pub(crate) fn taken(is_redelivery: bool) -> Taken {
    gauge!(IN_HAND).increment(1);
    counter!(REDELIVERIES).increment(u64::from(is_redelivery));
    Taken(Instant::now())
}

impl Taken {
    pub(crate) fn ended(self, outcome: TurnOutcome) {
        counter!(TURNS, "outcome" => outcome.name()).increment(1);
        histogram!(TURN_TIME).record(self.0.elapsed().as_secs_f64());
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        gauge!(IN_HAND).decrement(1);
    }
}

pub(crate) fn first_chunk(after: Duration) {
    histogram!(FIRST_CHUNK).record(after.as_secs_f64());
}

pub(crate) fn garbage() {
    counter!(GARBAGE).increment(1);
}

pub(crate) fn failure(class: ErrorClass) {
    counter!(FAILURES, "class" => class.name()).increment(1);
}

pub(crate) fn frame(chunks: usize) {
    counter!(FRAMES).increment(1);
    counter!(CHUNKS).increment(chunks as u64);
}

pub(crate) fn keepalive() {
    counter!(SIGNS).increment(1);
}

pub(crate) fn model_call(failed: Option<ErrorClass>) {
    counter!(MODEL_CALLS, "outcome" => failed.map_or("ok", ErrorClass::name)).increment(1);
}

pub(crate) fn model_tokens(prompt: u64, completion: u64) {
    counter!(MODEL_TOKENS, "kind" => "prompt").increment(prompt);
    counter!(MODEL_TOKENS, "kind" => "completion").increment(completion);
}

pub(crate) fn model_retry() {
    counter!(MODEL_RETRIES).increment(1);
}

/// The deviations logged so far, one bit each.
static LOGGED: AtomicU32 = AtomicU32::new(0);

/// Counts the deviations of a response and logs each kind once per process.
pub(crate) fn deviations(deviations: Deviations) {
    for deviation in deviations.iter() {
        counter!(DEVIATIONS, "kind" => deviation.name()).increment(1);
        let bit = 1 << deviation as u32;
        if LOGGED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let consequence = deviation.consequence();
            tracing::warn!(
                kind = deviation.name(),
                "the model's endpoint deviates from its interface: {consequence}; later ones of this kind are only counted"
            );
        }
    }
}

pub(crate) fn tool_call(is_error: bool, duration: Duration) {
    counter!(TOOL_CALLS, "outcome" => if is_error { "error" } else { "ok" }).increment(1);
    histogram!(TOOL_TIME).record(duration.as_secs_f64());
}

pub(crate) fn kept_tool_call() {
    counter!(TOOL_CALLS, "outcome" => "kept").increment(1);
}

/// A tool call that waits for a person. It is counted until it is dropped.
pub(crate) struct Undecided(());

pub(crate) fn undecided_tool_call() -> Undecided {
    gauge!(UNDECIDED).increment(1);
    Undecided(())
}

impl Drop for Undecided {
    fn drop(&mut self) {
        gauge!(UNDECIDED).decrement(1);
    }
}

pub(crate) fn served(outcome: Served) {
    counter!(SERVED, "outcome" => outcome.name()).increment(1);
}
