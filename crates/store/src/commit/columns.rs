//! Converts commits to arrays, one per column, in the order of the parameters of their part.

use std::fmt::Debug;

use model::{AgentId, Bucket, Message, MessageKey, Metadata, ThreadId};
use partition::Commit;
use serde::Serialize;
use serde_json::Value;

use super::submission::Submission;
use crate::statement::Statement;

/// Parameters of `1_fence.sql`, which precedes all parts.
pub(super) fn fence(statement: Statement, owner: &str, group: &[Submission<'_>]) -> Statement {
    statement
        .bind(owner)
        .bind(column(group, |s| smallint(s.commit.partition.0)))
        .bind(column(group, |s| bigint(s.commit.epoch)))
        .bind(column(group, |s| bigint(s.commits)))
        .bind(column(group, |s| bigint(s.commit.checkpoint.0)))
        .bind(column(group, |s| s.commit.position_high_water.0))
        .bind(column(group, |s| s.read.map_or(0, |mark| bigint(mark.seq.0))))
        .bind(column(group, |s| s.read.map(|mark| mark.stored_at_ns)))
        .bind(column(group, |s| bigint(s.saves)))
}

/// Parameters of `3_new_messages.sql`.
pub(super) fn messages(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<_> =
        numbered(group, |commit| &commit.messages).map(|(number, message)| (number, None, message)).collect();
    placed(statement, &rows)
}

/// Parameters of `3_new_messages_of_turns.sql`: messages without a turn, and messages of turns with
/// the number of their turn.
pub(super) fn messages_of_turns(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let bare = numbered(group, |commit| &commit.messages).map(|(number, message)| (number, None, message));
    let of_turns =
        numbered(group, |commit| &commit.turns).zip(1_i64..).flat_map(|((number, write), turn)| {
            write.messages.iter().map(move |message| (number, Some(turn), message))
        });
    let rows: Vec<_> = bare.chain(of_turns).collect();
    placed(statement, &rows).bind(column(&rows, |(_, turn, _)| *turn))
}

fn placed(statement: Statement, rows: &[(i64, Option<i64>, &Message)]) -> Statement {
    statement
        .bind(column(rows, |(number, _, _)| *number))
        .bind(column(rows, |(_, _, m)| smallint(m.bucket().get())))
        .bind(column(rows, |(_, _, m)| m.key.thread.as_str()))
        .bind(column(rows, |(_, _, m)| m.placement.position.get()))
        .bind(column(rows, |(_, _, m)| m.key.message.as_str()))
        .bind(column(rows, |(_, _, m)| m.placement.batch_id.get()))
        .bind(column(rows, |(_, _, m)| m.placement.sequence_num))
        .bind(column(rows, |(_, _, m)| m.placement.batch_type.name()))
        .bind(column(rows, |(_, _, m)| m.role.name()))
        .bind(column(rows, |(_, _, m)| m.content.as_str()))
        .bind(column(rows, |(_, _, m)| m.tool_calls.as_ref().map(Value::to_string)))
        .bind(column(rows, |(_, _, m)| m.tool_call_id.as_deref()))
        .bind(column(rows, |(_, _, m)| object(&m.metadata)))
        .bind(column(rows, |(_, _, m)| m.token_count))
        .bind(column(rows, |(_, _, m)| i64::from(m.attempt)))
        .bind(column(rows, |(_, _, m)| m.times.created_at.map(|at| at.0)))
        .bind(column(rows, |(_, _, m)| m.times.started_at.map(|at| at.0)))
}

/// The items of all commits, with the numbers of their commits from 1.
pub(super) fn numbered<'a, T: 'a>(
    group: &'a [Submission<'a>],
    items: fn(&Commit) -> &Vec<T>,
) -> impl Iterator<Item = (i64, &'a T)> {
    group
        .iter()
        .zip(1_i64..)
        .flat_map(move |(s, number)| items(s.commit).iter().map(move |item| (number, item)))
}

/// The result of `fold` for each commit, with the commit's number.
pub(super) fn folded_of<'a, T: 'a>(
    group: &'a [Submission<'a>],
    fold: fn(&'a Commit) -> Vec<T>,
) -> Vec<(i64, T)> {
    let of_commit = |(submission, number): (&'a Submission<'a>, i64)| {
        fold(submission.commit).into_iter().map(move |item| (number, item))
    };
    group.iter().zip(1_i64..).flat_map(of_commit).collect()
}

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
