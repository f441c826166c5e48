//! Conversions to values that Postgres can store.

use std::fmt::Debug;

use model::{AgentId, Bucket, MessageKey, Metadata, ThreadId};
use serde::Serialize;

pub(super) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

pub(super) fn object(metadata: &Metadata) -> String {
    serde_json::to_string(metadata).unwrap_or_else(|_| "{}".to_owned())
}

/// JSON, or the debug format if that fails: a dead letter or saved part must not lose its content.
pub(super) fn encoded<T: Serialize + Debug>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| format!("{value:?}").into_bytes())
}

pub(super) fn bucket(key: &MessageKey) -> i16 {
    bucket_of(&key.thread)
}

pub(super) fn bucket_of(thread: &ThreadId) -> i16 {
    smallint(thread.bucket().get())
}

pub(super) fn agent_bucket(agent: &AgentId) -> i16 {
    smallint(Bucket::of_key(agent.as_str()).get())
}

/// Converts a bucket or partition; both are below 1,024.
pub(super) fn smallint(value: u16) -> i16 {
    i16::try_from(value).unwrap_or(i16::MAX)
}

/// Converts an epoch or stream sequence; both stay far below 2^63.
pub(super) fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a run or a count of failures; both stay far below 2^31.
pub(super) fn integer(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Converts a digest and keeps all of its 64 bits.
pub(super) fn bits(value: u64) -> i64 {
    i64::from_ne_bytes(value.to_ne_bytes())
}

/// Replaces NUL, which Postgres can store neither as text nor in jsonb.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
