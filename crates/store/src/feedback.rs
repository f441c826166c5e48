//! What users say about messages: scores, labels and comments.
//!
//! Entry points: [`Store::put_feedback`], [`Store::feedback_of`] and [`Store::list_feedback`].

use model::{AgentId, MessageId, Tenant, ThreadId, Timestamp};
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::error::StoreError;
use crate::row::{count, message_id, parse_column};
use crate::store::Store;

/// Maximum length of a label, in bytes.
pub const MAX_LABEL: usize = 256;
/// Maximum length of a comment, in bytes.
const MAX_COMMENT: usize = 4 << 10;
/// Maximum length of the name of a user, in bytes.
pub const MAX_USER: usize = 1_024;
/// Maximum number of users whose feedback is shown with a message, so that a history stays small.
const MAX_SHOWN: i64 = 10;
/// Maximum number of users whose feedback on one message is stored.
const MAX_FEEDBACK_OF_MESSAGE: i64 = 100;

/// What a user says about a message. At least one of score, label and comment is set.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    pub thread: ThreadId,
    pub message: MessageId,
    /// `None`: no user was named.
    pub user: Option<String>,
    /// From -1 (bad) to 1 (good).
    pub score: Option<f64>,
    /// At most [`MAX_LABEL`] bytes.
    pub label: Option<String>,
    /// Any text of at most 4 KiB.
    pub comment: Option<String>,
}

/// Feedback as it is stored, with its times.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackRow {
    pub feedback: Feedback,
    /// The agent that answered, as far as it is known.
    pub agent: AgentId,
    /// When it was given first (database clock).
    pub created_at: Timestamp,
    /// When it was given last, in microseconds since 1970 (database clock).
    pub updated_us: i64,
}

/// Feedback of an export, with its times there.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedFeedback {
    pub feedback: Feedback,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The outcome of giving feedback.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedbackOutcome {
    /// It is stored; true: it is the user's first on this message.
    Stored(FeedbackRow, bool),
    /// No message of the thread has this id.
    UnknownMessage,
    /// The maximum number of users have given feedback on the message.
    Full,
}

/// A place in a list of feedback, from which the next page continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedbackCursor {
    pub updated_us: i64,
    pub thread: ThreadId,
    pub message: MessageId,
    pub user: Option<String>,
}

/// What a list of feedback is restricted to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeedbackFilter {
    /// Only feedback on answers of this agent.
    pub agent: Option<AgentId>,
    /// Only feedback with this label.
    pub label: Option<String>,
    /// Only scores up to this one.
    pub max_score: Option<f64>,
    /// Only feedback after this place.
    pub after: Option<FeedbackCursor>,
}

impl Feedback {
    /// Checks whether the feedback can be stored.
    ///
    /// # Errors
    /// The requirement that it breaks: "score must be from -1 to 1".
    pub fn check(&self) -> Result<(), String> {
        check_score("score", self.score)?;
        check_text("user_id", self.user.as_deref(), MAX_USER)?;
        check_text("label", self.label.as_deref(), MAX_LABEL)?;
        check_text("comment", self.comment.as_deref(), MAX_COMMENT)?;
        match self.score.is_none() && self.label.is_none() && self.comment.is_none() {
            true => Err("score, label or comment must be given".to_owned()),
            false => Ok(()),
        }
    }

    /// Bytes of its texts.
    pub fn size(&self) -> u64 {
        let texts = [&self.user, &self.label, &self.comment];
        texts.into_iter().flatten().map(|text| text.len() as u64).sum()
    }
}

/// Checks a score.
///
/// # Errors
/// It is not from -1 to 1.
pub fn check_score(name: &str, score: Option<f64>) -> Result<(), String> {
    match score {
        Some(score) if !(-1.0..=1.0).contains(&score) => Err(format!("{name} must be from -1 to 1")),
        _ => Ok(()),
    }
}

/// Checks a text.
///
/// # Errors
/// It is empty, too long, or has a character that cannot be stored.
pub fn check_text(name: &str, text: Option<&str>, max_bytes: usize) -> Result<(), String> {
    match text {
        Some(text) if !(1..=max_bytes).contains(&text.len()) || text.contains('\0') => {
            Err(format!("{name} must be 1 to {max_bytes} bytes without NUL"))
        }
        _ => Ok(()),
    }
}

impl ImportedFeedback {
    /// The row, for the statement that imports a thread.
    pub(crate) fn row(&self) -> Value {
        let Feedback { message, user, score, label, comment, .. } = &self.feedback;
        json!({
            "message_id": message.as_str(), "user_id": user.as_deref().unwrap_or_default(), "score": score, "label": label,
            "comment": comment, "created_ms": self.created_at.0, "updated_ms": self.updated_at.0,
        })
    }
}

impl FeedbackRow {
    /// The place of this feedback in a list.
    pub fn cursor(&self) -> FeedbackCursor {
        let Feedback { thread, message, user, .. } = &self.feedback;
        let (thread, message, user) = (thread.clone(), message.clone(), user.clone());
        FeedbackCursor { updated_us: self.updated_us, thread, message, user }
    }
}

impl Store {
    /// Stores feedback in place of the user's earlier feedback on the same message.
    pub async fn put_feedback(&self, feedback: &Feedback) -> Result<FeedbackOutcome, StoreError> {
        let statement = sqlx::query(include_str!("feedback/put.sql"))
            .bind(feedback.thread.bucket().get() as i16)
            .bind(feedback.thread.as_str())
            .bind(feedback.message.as_str())
            .bind(feedback.user.as_deref().unwrap_or_default())
            .bind(feedback.score)
            .bind(feedback.label.as_deref())
            .bind(feedback.comment.as_deref())
            .bind(MAX_FEEDBACK_OF_MESSAGE);
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        if !row.try_get::<bool, _>("is_known")? {
            return Ok(FeedbackOutcome::UnknownMessage);
        }
        match row.try_get::<Option<bool>, _>("is_new")? {
            Some(is_new) => Ok(FeedbackOutcome::Stored(feedback_row(row)?, is_new)),
            None => Ok(FeedbackOutcome::Full),
        }
    }

    /// Deletes the user's feedback on a message. False if there was none.
    pub async fn delete_feedback(
        &self,
        thread: &ThreadId,
        message: &MessageId,
        user: Option<&str>,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "WITH gone AS (
                 DELETE FROM feedback WHERE bucket = $1 AND thread_id = $2 AND message_id = $3 AND user_id = $4 RETURNING 1
             ) SELECT count(*) AS count FROM gone",
        )
        .bind(thread.bucket().get() as i16)
        .bind(thread.as_str())
        .bind(message.as_str())
        .bind(user.unwrap_or_default());
        Ok(count(&self.rows(statement).await?)? > 0)
    }

    /// The newest feedback on each of these messages of a thread, at most [`MAX_SHOWN`] of each,
    /// oldest first.
    pub async fn feedback_of(
        &self,
        thread: &ThreadId,
        messages: &[MessageId],
    ) -> Result<Vec<FeedbackRow>, StoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {COLUMNS} FROM unnest($3::text[]) AS k (message_id)
             CROSS JOIN LATERAL (
                 SELECT * FROM feedback AS o
                 WHERE o.bucket = $1 AND o.thread_id = $2 AND o.message_id = k.message_id
                 ORDER BY o.updated_at DESC LIMIT {MAX_SHOWN}
             ) AS f
             ORDER BY f.created_at, f.user_id"
        );
        let statement = sqlx::query(AssertSqlSafe(sql))
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str())
            .bind(messages.iter().map(|message| message.as_str().to_owned()).collect::<Vec<_>>());
        self.rows(statement).await?.iter().map(feedback_row).collect()
    }

    /// At most `limit` feedback on messages of a thread after `after`, ordered by message and user.
    pub async fn feedback_of_thread(
        &self,
        thread: &ThreadId,
        after: Option<&FeedbackCursor>,
        limit: u32,
    ) -> Result<Vec<FeedbackRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM feedback AS f
             WHERE f.bucket = $1 AND f.thread_id = $2 AND (f.message_id, f.user_id) > ($3, $4)
             ORDER BY f.message_id, f.user_id
             LIMIT $5"
        );
        let statement = sqlx::query(AssertSqlSafe(sql))
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str())
            .bind(after.map_or("", |after| after.message.as_str()))
            .bind(after.and_then(|after| after.user.as_deref()).unwrap_or_default())
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(feedback_row).collect()
    }

    /// At most `limit` feedback of a tenant, newest first.
    pub async fn list_feedback(
        &self,
        tenant: Option<&Tenant>,
        filter: &FeedbackFilter,
        limit: u32,
    ) -> Result<Vec<FeedbackRow>, StoreError> {
        let by_agent = if filter.agent.is_some() { "f.agent_id = $2" } else { "$2::text IS NULL" };
        let by_label = if filter.label.is_some() { "f.label = $3" } else { "$3::text IS NULL" };
        let after = filter.after.as_ref();
        let sql = format!(
            "SELECT {COLUMNS} FROM feedback AS f
             WHERE f.tenant = $1 AND {by_agent}
               AND {by_label} AND ($4::double precision IS NULL OR f.score <= $4)
               -- A message may be deleted while feedback on it is stored.
               AND EXISTS (SELECT FROM messages AS m WHERE m.bucket = f.bucket AND m.thread_id = f.thread_id
                                                       AND m.message_id = f.message_id OFFSET 0)
               AND (f.updated_at, f.thread_id, f.message_id, f.user_id)
                   < (to_timestamp(0) + $5 * interval '1 microsecond', $6, $7, $8)
             ORDER BY f.updated_at DESC, f.thread_id DESC, f.message_id DESC, f.user_id DESC
             LIMIT $9"
        );
        let statement = sqlx::query(AssertSqlSafe(sql))
            .bind(tenant.map_or("-", Tenant::as_str))
            .bind(filter.agent.as_ref().map(AgentId::as_str))
            .bind(filter.label.as_deref())
            .bind(filter.max_score)
            // A time far in the future, which timestamps can hold.
            .bind(after.map_or(i64::from(u32::MAX) * 1_000_000, |after| after.updated_us))
            .bind(after.map_or("", |after| after.thread.as_str()))
            .bind(after.map_or("", |after| after.message.as_str()))
            .bind(after.and_then(|after| after.user.as_deref()).unwrap_or_default())
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(feedback_row).collect()
    }
}

const COLUMNS: &str = "f.thread_id, f.message_id, f.user_id, f.agent_id, f.score, f.label, f.comment,
    (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms,
    (extract(epoch FROM f.updated_at) * 1000000)::bigint AS updated_us";

fn feedback_row(row: &PgRow) -> Result<FeedbackRow, StoreError> {
    let user: String = row.try_get("user_id")?;
    let feedback = Feedback {
        thread: parse_column(row, "thread_id", ThreadId::parse)?,
        message: message_id(row)?,
        user: Some(user).filter(|user| !user.is_empty()),
        score: row.try_get("score")?,
        label: row.try_get("label")?,
        comment: row.try_get("comment")?,
    };
    Ok(FeedbackRow {
        feedback,
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        created_at: Timestamp(row.try_get("created_ms")?),
        updated_us: row.try_get("updated_us")?,
    })
}
