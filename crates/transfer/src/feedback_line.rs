//! The format of feedback in an export.

use model::{MessageId, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::{Feedback, FeedbackRow, ImportedFeedback};

/// The end of the year 9999, ms since 1970.
const LATEST_MS: i64 = 253_402_300_799_999;

/// A line of the file; times are in ms since 1970.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedbackLine {
    message_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    created_ms: i64,
    updated_ms: i64,
}

/// Converts feedback into a line.
pub(crate) fn written(row: &FeedbackRow) -> Map<String, Value> {
    let Feedback { message, user, score, label, comment, .. } = row.feedback.clone();
    let line = FeedbackLine {
        message_id: message.as_str().to_owned(),
        user_id: user,
        score,
        label,
        comment,
        created_ms: row.created_at.0,
        updated_ms: row.updated_us.div_euclid(1_000),
    };
    match serde_json::to_value(line) {
        Ok(Value::Object(map)) => map,
        // Unreachable: a plain structure serializes as an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Converts a line into feedback.
///
/// # Errors
/// The line is no feedback that can be stored.
pub(crate) fn read(thread: &ThreadId, row: Map<String, Value>) -> Result<ImportedFeedback, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("feedback of thread {thread} cannot be read: {why}");
    let line: FeedbackLine = serde_json::from_value(Value::Object(row)).map_err(|error| wrong(&error))?;
    let feedback = Feedback {
        thread: thread.clone(),
        message: MessageId::parse(&line.message_id).map_err(|error| wrong(&error))?,
        user: line.user_id,
        score: line.score,
        label: line.label,
        comment: line.comment,
    };
    feedback.check().map_err(|why| wrong(&why))?;
    if [line.created_ms, line.updated_ms].iter().any(|at| !(0..=LATEST_MS).contains(at)) {
        return Err(wrong(&"created_ms and updated_ms must be times from 1970 to 9999"));
    }
    let (created_at, updated_at) = (Timestamp(line.created_ms), Timestamp(line.updated_ms));
    Ok(ImportedFeedback { feedback, created_at, updated_at })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(value: Value) -> Result<ImportedFeedback, String> {
        read(&ThreadId::parse("t").unwrap(), value.as_object().unwrap().clone())
    }

    #[test]
    fn feedback_that_cannot_be_stored_is_refused() {
        let good = json!({"message_id": "m", "score": 1.0, "created_ms": 1, "updated_ms": 2});
        assert_eq!(line(good.clone()).unwrap().feedback.score, Some(1.0));
        for (field, value) in [
            ("score", json!(2)),
            ("score", json!(null)),
            ("label", json!("")),
            ("comment", json!("a\u{0}b")),
            ("message_id", json!("a b")),
            ("other", json!(1)),
            ("created_ms", json!(-1)),
            ("updated_ms", json!(10_000_000_000_000_000_i64)),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let why = line(bad.clone()).unwrap_err();
            assert!(why.starts_with("feedback of thread t cannot be read: "), "{bad}: {why}");
        }
    }
}
