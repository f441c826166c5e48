//! What the machine reports, as lines in the log.

use model::IdRange;
use partition::{BufferState, Report};

pub(super) fn log(report: &Report) {
    match report {
        Report::Conflict { key, chunk_id, kept, dropped } => tracing::warn!(
            key = %key, chunk_id, kept = format!("{kept:016x}"), dropped = format!("{dropped:016x}"),
            "two chunks with one id and different content: the first stays"
        ),
        Report::GivenUp { key, failure, buffer } => {
            let BufferState { expected, received, released, missing, idle_ms } = buffer;
            tracing::warn!(
                key = %key, code = failure.code(), %failure, expected, received, released,
                missing = ranges(missing), idle_ms, "a message was given up"
            );
        }
        Report::TurnFailed { turn, run, code, text, backoff_ms, buffer } => tracing::warn!(
            %turn, run, code, text, backoff_ms,
            expected = buffer.as_ref().map(|buffer| buffer.expected),
            received = buffer.as_ref().map(|buffer| buffer.received),
            released = buffer.as_ref().map(|buffer| buffer.released),
            missing = buffer.as_ref().map(|buffer| ranges(&buffer.missing)),
            idle_ms = buffer.as_ref().map(|buffer| buffer.idle_ms),
            "a run of a turn failed"
        ),
        Report::NotAsked(key) => {
            tracing::warn!(key = %key, "chunks of a turn came without its token: nobody asked for them");
        }
        Report::Hole { first, last } => tracing::error!(%first, %last, "the stream has lost entries"),
        Report::Deferring(from) => tracing::warn!(%from, "at capacity: new messages wait in the stream"),
    }
}

fn ranges(missing: &[IdRange]) -> String {
    let ranges: Vec<String> = missing.iter().map(IdRange::to_string).collect();
    ranges.join(" ")
}
