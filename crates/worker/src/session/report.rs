//! Writes reports of the machine to the log.

use model::{IdRange, RejectedEntry, Seq};
use partition::{BufferState, MachineReport};

use super::log_throttle::LogThrottle;
use super::turn_log::FailedRun;

static GIVEN_UP: LogThrottle = LogThrottle::new();
static CONFLICTS: LogThrottle = LogThrottle::new();
static NOT_ASKED: LogThrottle = LogThrottle::new();
static REFUSED: LogThrottle = LogThrottle::new();
static OTHER_ROLES: LogThrottle = LogThrottle::new();

/// Logs an unusable entry, which becomes a dead letter.
pub(crate) fn refused(subject: &str, seq: Seq, refusal: &RejectedEntry) {
    if let Some(left_out) = REFUSED.count() {
        tracing::warn!(left_out, subject, %seq, code = refusal.code, detail = refusal.detail, "entries became dead letters");
    }
}

/// Logs the number of lines left out since the last line of each kind.
pub(super) fn log_left_out() {
    let kinds = [
        ("messages were given up", &GIVEN_UP),
        ("conflicts of chunks", &CONFLICTS),
        ("chunks without a valid token", &NOT_ASKED),
        ("entries became dead letters", &REFUSED),
        ("chunks of another role", &OTHER_ROLES),
    ];
    for (kind, limited) in kinds {
        let left_out = limited.take_left_out();
        if left_out > 0 {
            tracing::warn!(kind, left_out, "lines were left out of the log");
        }
    }
}

/// True if the log shows reports about single chunks.
pub(super) fn shows_chunks() -> bool {
    tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::DEBUG
}

pub(super) fn log(report: &MachineReport) {
    match report {
        MachineReport::Conflict { key, chunk_id, kept, dropped } => {
            if let Some(left_out) = CONFLICTS.count() {
                tracing::warn!(
                    left_out, key = %key, chunk_id, kept = format!("{kept:016x}"), dropped = format!("{dropped:016x}"),
                    "two chunks with one id and different content: the first stays"
                );
            }
        }
        MachineReport::GivenUp { key, failure, buffer, correlation_id } => {
            let Some(left_out) = GIVEN_UP.count() else { return };
            let BufferState { expected, received, released, missing, idle_ms } = buffer;
            tracing::warn!(
                left_out, key = %key, code = failure.code(), %failure, expected, received, released,
                missing = ranges(missing), idle_ms, correlation_id = correlation_id.as_deref(), "a message was given up"
            );
        }
        MachineReport::TurnFailed { .. } => log_failed_run(report, None),
        MachineReport::OutOfOrder { key, chunk_id, buffer } => {
            tracing::debug!(
                key = %key, missing = ranges(&buffer.missing),
                "out-of-order chunk received: expected {}, got {chunk_id}; waiting for missing chunks", buffer.expected
            );
        }
        MachineReport::Finalized { key, chunks, tokens, bytes } => {
            let tokens = tokens.map_or("unknown".to_owned(), |tokens| tokens.to_string());
            tracing::debug!(key = %key, "message {} finalized: {chunks} chunks, {tokens} tokens, {bytes} bytes", key.message);
        }
        MachineReport::InvalidFacts { turn, invalid } => {
            tracing::info!(%turn, count = invalid.count, text = invalid.text, "facts of a memory task cannot be used and are left out");
        }
        MachineReport::Timer { timer, outcome, by } => {
            tracing::debug!(%timer, outcome = outcome.name(), by, "something became of a timer");
        }
        MachineReport::Unauthorized(key) => {
            if let Some(left_out) = NOT_ASKED.count() {
                tracing::warn!(left_out, key = %key, "chunks of a turn came without a valid token");
            }
        }
        MachineReport::OtherRole(key) => {
            if let Some(left_out) = OTHER_ROLES.count() {
                tracing::warn!(left_out, key = %key, "chunks name another role than their message has: they are dropped");
            }
        }
        MachineReport::Hole { first, last } => tracing::error!(%first, %last, "the stream has lost entries"),
        MachineReport::Deferring(from) => {
            tracing::warn!(%from, "at capacity: new messages wait in the stream")
        }
    }
}

/// Logs a failed run; `failed`: what its owner knows about the run.
pub(super) fn log_failed_run(report: &MachineReport, failed: Option<&FailedRun>) {
    let MachineReport::TurnFailed {
        turn,
        run,
        thread,
        agent,
        code,
        text,
        backoff_ms,
        buffer,
        correlation_id,
    } = report
    else {
        return;
    };
    tracing::warn!(
        %turn, run, %thread, %agent, code, text, backoff_ms,
        trace_id = failed.and_then(|failed| failed.trace_id.as_deref()), correlation_id = correlation_id.as_deref(),
        waited_ms = failed.and_then(|failed| failed.waited_ms), ran_ms = failed.map(|failed| failed.ran_ms),
        expected = buffer.as_ref().map(|buffer| buffer.expected),
        received = buffer.as_ref().map(|buffer| buffer.received),
        released = buffer.as_ref().map(|buffer| buffer.released),
        missing = buffer.as_ref().map(|buffer| ranges(&buffer.missing)),
        idle_ms = buffer.as_ref().map(|buffer| buffer.idle_ms),
        "a run of a turn failed"
    );
}

fn ranges(missing: &[IdRange]) -> String {
    let ranges: Vec<String> = missing.iter().map(IdRange::to_string).collect();
    ranges.join(" ")
}
