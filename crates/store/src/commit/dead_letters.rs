//! Inputs that were given up: rows of `dead_letters`.

use model::{Bucket, DeadLetter, DeadLetterSource, PartitionId};
use serde_json::{Value, json};

use super::columns::{bigint, bucket, encoded, smallint, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts =
    TableParts::new(&[NewDeadLetterRow::ROWS], include_str!("dead_letters.sql"));

row! {
    /// A dead letter. The store must be able to store all its values, because a rejected entry must
    /// not stop its partition again.
    struct NewDeadLetterRow<'a> as dead_letter_rows of dead_letters {
        bucket: i16,
        kind: &'a str,
        key: String,
        partition_id: i16,
        stream_seq: i64,
        subject: Option<String>,
        thread_id: Option<&'a str>,
        message_id: Option<&'a str>,
        attempt: Option<i64>,
        reason: &'a str,
        detail: String,
        raw: Vec<u8>,
        /// The bucket of the owner. For an entry it differs from `bucket`, which is the partition
        /// number.
        owner_bucket: i16,
    }
}

fn dead_letters(given: Given<'_>) -> impl Iterator<Item = NewDeadLetterRow<'_>> {
    given.submission.commit.dead_letters.iter().map(move |letter| dead_letter(given, letter))
}

fn dead_letter<'a>(given: Given<'_>, letter: &'a DeadLetter) -> NewDeadLetterRow<'a> {
    let PartitionId(partition) = given.submission.commit.partition;
    let (partition_id, stream_seq) = (smallint(partition), bigint(letter.seq.0));
    match &letter.source {
        DeadLetterSource::Entry { subject, payload, refusal } => NewDeadLetterRow {
            bucket: partition_id,
            kind: "entry",
            key: storable(&format!("{}:{}", given.submission.incarnation, letter.seq)),
            partition_id,
            stream_seq,
            subject: Some(storable(subject)),
            thread_id: None,
            message_id: None,
            attempt: None,
            reason: refusal.code,
            detail: json!({"text": storable(&refusal.detail)}).to_string(),
            raw: payload.to_vec(),
            owner_bucket: owner_bucket(subject),
        },
        DeadLetterSource::Message { key, attempt, chunks, failure } => NewDeadLetterRow {
            bucket: bucket(key),
            kind: "message",
            key: key.to_string(),
            partition_id,
            stream_seq,
            subject: None,
            thread_id: Some(key.thread.as_str()),
            message_id: Some(key.message.as_str()),
            attempt: Some(i64::from(*attempt)),
            reason: failure.code(),
            detail: detail(failure).to_string(),
            raw: encoded(chunks),
            owner_bucket: bucket(key),
        },
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
