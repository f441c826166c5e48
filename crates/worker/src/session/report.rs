//! What the machine reports, as lines in the log.

use partition::{BufferState, Report};

pub(super) fn log(report: &Report) {
    match report {
        Report::Conflict { key, chunk_id, kept, dropped } => tracing::warn!(
            key = %key, chunk_id, kept = format!("{kept:016x}"), dropped = format!("{dropped:016x}"),
            "two chunks with one id and different content: the first stays"
        ),
        Report::GivenUp { key, failure, buffer: BufferState { expected, received, released, idle_ms } } => {
            tracing::warn!(
                key = %key, code = failure.code(), %failure, expected, received, released, idle_ms,
                "a message was given up"
            );
        }
        Report::TurnFailed { turn, run, code, text, backoff_ms, buffer } => tracing::warn!(
            %turn, run, code, text, backoff_ms,
            expected = buffer.map(|buffer| buffer.expected), received = buffer.map(|buffer| buffer.received),
            released = buffer.map(|buffer| buffer.released), idle_ms = buffer.map(|buffer| buffer.idle_ms),
            "a run of a turn failed"
        ),
        Report::NotAsked(key) => {
            tracing::warn!(key = %key, "chunks of a turn came without its token: nobody asked for them");
        }
        Report::Hole { first, last } => tracing::error!(%first, %last, "the stream has lost entries"),
        Report::Deferring(from) => tracing::warn!(%from, "at capacity: new messages wait in the stream"),
    }
}
