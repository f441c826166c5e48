//! Dead letters, ends of saved messages and stream gaps, as arrays.

use model::{Bucket, DeadLetter, DeadLetterSource, FailedMessage, MessageKey, PartitionId};
use serde_json::{Value, json};

use super::columns::{bigint, bucket, column, encoded, numbered, smallint, storable};
use super::submission::Submission;
use crate::statement::Statement;

/// Parameters of `8_dead_letters_spills.sql`.
pub(super) fn dead_letters_spills(statement: Statement, group: &[Submission<'_>]) -> Statement {
    failed(ended(letters(statement, group), group), group)
}

/// Parameters of `8_gone.sql`.
pub(super) fn gone(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<_> = group
        .iter()
        .zip(1_i64..)
        .flat_map(|(s, number)| s.gone.iter().map(move |gone| (number, s.incarnation, gone)))
        .collect();
    statement
        .bind(column(&rows, |(number, ..)| *number))
        .bind(column(&rows, |(_, incarnation, _)| *incarnation))
        .bind(column(&rows, |(.., gone)| bigint(gone.first.0)))
        .bind(column(&rows, |(.., gone)| bigint(gone.last.0)))
        .bind(column(&rows, |_| "the stream jumped over these sequences while it was read"))
}

/// Dead letters: parameters `$1` to `$14`.
fn letters(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<_> = group
        .iter()
        .zip(1_i64..)
        .flat_map(|(s, number)| {
            s.commit.dead_letters.iter().map(move |letter| Letter::new(number, s, letter))
        })
        .collect();
    statement
        .bind(column(&rows, |row| row.number))
        .bind(column(&rows, |row| row.bucket))
        .bind(column(&rows, |row| row.kind))
        .bind(column(&rows, |row| row.key.as_str()))
        .bind(column(&rows, |row| row.partition))
        .bind(column(&rows, |row| row.stream_seq))
        .bind(column(&rows, |row| row.subject.as_deref()))
        .bind(column(&rows, |row| row.message.map(|key| key.thread.as_str())))
        .bind(column(&rows, |row| row.message.map(|key| key.message.as_str())))
        .bind(column(&rows, |row| row.attempt))
        .bind(column(&rows, |row| row.reason))
        .bind(column(&rows, |row| row.detail.as_str()))
        .bind(column(&rows, |row| row.raw.as_slice()))
        .bind(column(&rows, |row| row.owner_bucket))
}

/// Saved messages that have ended: parameters `$15` to `$18`.
fn ended(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &MessageKey)> = numbered(group, |commit| &commit.ended_spills).collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, key)| bucket(key)))
        .bind(column(&rows, |(_, key)| key.thread.as_str()))
        .bind(column(&rows, |(_, key)| key.message.as_str()))
}

/// Failed messages: parameters `$19` to `$30`.
fn failed(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &FailedMessage)> = numbered(group, |commit| &commit.failed_messages).collect();
    let missing = |failed: &FailedMessage| match &failed.failure {
        model::MessageFailure::GapTimeout { missing } => json!(missing).to_string(),
        _ => "[]".to_owned(),
    };
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, failed)| bucket(&failed.key)))
        .bind(column(&rows, |(_, failed)| failed.key.thread.as_str()))
        .bind(column(&rows, |(_, failed)| failed.position.get()))
        .bind(column(&rows, |(_, failed)| failed.key.message.as_str()))
        .bind(column(&rows, |(_, failed)| i64::from(failed.attempt)))
        .bind(column(&rows, |(_, failed)| failed.role.name()))
        .bind(column(&rows, |(_, failed)| failed.batch_type.name()))
        .bind(column(&rows, |(_, failed)| failed.failure.code()))
        .bind(column(&rows, |(_, failed)| storable(&failed.failure.to_string())))
        .bind(column(&rows, |(_, failed)| missing(failed)))
        .bind(column(&rows, |(_, failed)| failed.failure.is_retryable()))
}

/// A row of `dead_letters`. The store must be able to store all its values, because a rejected
/// entry must not stop its partition again.
struct Letter<'a> {
    number: i64,
    bucket: i16,
    /// The bucket of the owner. For an entry it differs from `bucket`, which is the partition
    /// number.
    owner_bucket: i16,
    kind: &'static str,
    key: String,
    partition: i16,
    stream_seq: i64,
    subject: Option<String>,
    message: Option<&'a MessageKey>,
    attempt: Option<i64>,
    reason: &'a str,
    detail: String,
    raw: Vec<u8>,
}

impl<'a> Letter<'a> {
    fn new(number: i64, submission: &Submission<'_>, letter: &'a DeadLetter) -> Self {
        let PartitionId(partition) = submission.commit.partition;
        let (partition, stream_seq) = (smallint(partition), bigint(letter.seq.0));
        match &letter.source {
            DeadLetterSource::Entry { subject, payload, refusal } => Self {
                number,
                bucket: partition,
                owner_bucket: owner_bucket(subject),
                kind: "entry",
                key: storable(&format!("{}:{}", submission.incarnation, letter.seq)),
                partition,
                stream_seq,
                subject: Some(storable(subject)),
                message: None,
                attempt: None,
                reason: refusal.code,
                detail: json!({"text": storable(&refusal.detail)}).to_string(),
                raw: payload.to_vec(),
            },
            DeadLetterSource::Message { key, attempt, chunks, failure } => Self {
                number,
                bucket: bucket(key),
                owner_bucket: bucket(key),
                kind: "message",
                key: key.to_string(),
                partition,
                stream_seq,
                subject: None,
                message: Some(key),
                attempt: Some(i64::from(*attempt)),
                reason: failure.code(),
                detail: detail(failure).to_string(),
                raw: encoded(chunks),
            },
        }
    }
}

/// The bucket of the thread or agent at the end of a subject; a `+` separates the agent from the
/// name of one of its queues.
fn owner_bucket(subject: &str) -> i16 {
    let key = subject.rsplit('.').next().unwrap_or_default();
    smallint(Bucket::of_key(key.split('+').next().unwrap_or_default()).get())
}

fn detail(failure: &model::MessageFailure) -> Value {
    let (text, retryable) = (storable(&failure.to_string()), failure.is_retryable());
    match failure {
        model::MessageFailure::GapTimeout { missing } => {
            json!({"text": text, "retryable": retryable, "missing": missing})
        }
        _ => json!({"text": text, "retryable": retryable}),
    }
}
