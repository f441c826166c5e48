//! Dead letters: inputs that were given up on.

use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{DeadLetterCursor, StoredDeadLetter};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{schemas, views};
use crate::app::request_context::RequestContext;

/// Bytes of a payload shown in the list.
const PREVIEW_BYTES: usize = 2_048;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadLettersQuery {
    /// Only dead letters with this reason code.
    reason: Option<String>,
    /// `next` of the previous page.
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of dead letters, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLettersPage {
    dead_letters: Vec<DeadLetter>,
    /// Value of `next` for the next page; null on the last page.
    #[schema(required)]
    next: Option<String>,
}

/// An input that was given up on. The command `antiphon dead-letters` shows its whole payload,
/// replays it and drops it.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLetter {
    id: String,
    /// `entry`: an entry of a stream that could not be used; `message`: a message that failed.
    kind: String,
    partition: u16,
    /// Sequence number of the entry in the partition's stream.
    stream_seq: u64,
    #[schema(required)]
    subject: Option<String>,
    /// The thread of the input, or for a task the id of its agent; null when unknown.
    #[schema(required)]
    thread_id: Option<String>,
    #[schema(required)]
    message_id: Option<String>,
    /// The reason as a code.
    reason: String,
    /// The reason as readable text in `text`, with further details.
    #[schema(value_type = Object)]
    detail: Value,
    /// Size of the payload in bytes.
    bytes: usize,
    /// The beginning of the payload, as far as it is text.
    preview: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    /// When the payload was put into the stream again; null when it was not.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    replayed_at: Option<String>,
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<DeadLettersQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(query.limit.as_deref())?;
    let parse = |text: &str| DeadLetterCursor::parse(text);
    let before = query.next.as_deref().map(|text| {
        parse(text)
            .ok_or_else(|| Problem::new(ErrorCode::InvalidId, "next: no page ended like this".to_owned()))
    });
    let before = before.transpose()?;
    let (reason, before) = (query.reason.as_deref(), before.as_ref());
    let letters =
        ctx.read(move |store| async move { store.list_dead_letters(reason, before, limit + 1).await });
    let mut letters = letters.await?;
    let next = query::next(&mut letters, limit, |last| last.cursor().text());
    Ok(json_no_store(DeadLettersPage {
        dead_letters: letters.into_iter().map(DeadLetter::from).collect(),
        next,
    }))
}

impl From<StoredDeadLetter> for DeadLetter {
    fn from(letter: StoredDeadLetter) -> Self {
        let beginning = letter.raw.get(..PREVIEW_BYTES).unwrap_or(&letter.raw);
        let owner = letter.owner().and_then(|owner| model::ThreadId::parse(&owner).ok());
        Self {
            id: letter.id.text(),
            partition: letter.partition.0,
            stream_seq: letter.seq.0,
            thread_id: owner.map(|owner| owner.name().to_owned()),
            message_id: letter.message,
            bytes: letter.raw.len(),
            preview: String::from_utf8_lossy(beginning).into_owned(),
            kind: letter.id.kind,
            subject: letter.subject,
            reason: letter.reason,
            detail: letter.detail,
            created_at: views::rfc3339(letter.created_at),
            replayed_at: letter.replayed_at.and_then(views::rfc3339),
        }
    }
}
