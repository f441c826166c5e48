//! Feedback: what users say about messages.

use std::collections::HashMap;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{MessageId, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{
    Feedback, FeedbackCursor, FeedbackFilter, FeedbackOutcome, FeedbackRow, MAX_LABEL, MAX_USER, Store,
    StoreError, check_score, check_text,
};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::views::MessageFeedback;
use crate::app::request_context::RequestContext;
use crate::commands::submit;
use crate::metrics;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    let one = "/v1/threads/{thread}/messages/{message}/feedback";
    vec![
        Operation::put(one, "putFeedback", "Give feedback on a message", put)
            .tag(THREADS)
            .description("Replaces the earlier feedback of the same user on the message.")
            .scope(Scope::WriteThreads)
            .body::<FeedbackBody>(json!({ "score": 1, "label": "helpful", "user_id": "ann" }))
            .response::<FeedbackView>(201, "Stored", feedback_example())
            .response::<FeedbackView>(200, "Replaced the user's earlier feedback", feedback_example())
            .errors(&[
                ErrorCode::InvalidFeedback,
                ErrorCode::ThreadErased,
                ErrorCode::TooMuchFeedback,
                ErrorCode::UnknownMessage,
            ]),
        Operation::delete(one, "deleteFeedback", "Delete feedback on a message", delete)
            .tag(THREADS)
            .scope(Scope::WriteThreads)
            .query::<DeleteQuery>()
            .no_body()
            .response_with(ResponseSpec::nothing("Deleted"))
            .errors(&[ErrorCode::UnknownFeedback]),
        Operation::get("/v1/feedback", "listFeedback", "List feedback, newest first", list)
            .tag(THREADS)
            .scope(Scope::ReadThreads)
            .query::<FeedbackQuery>()
            .response::<FeedbackPage>(
                200,
                "Feedback",
                json!({ "feedback": [feedback_example()], "next": null }),
            )
            .errors(&[ErrorCode::InvalidLimit]),
    ]
}

/// What a user says about a message: at least one of `score`, `label` and `comment`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedbackBody {
    /// From -1 (bad) to 1 (good).
    #[schema(minimum = -1, maximum = 1)]
    score: Option<f64>,
    /// A word to count by, such as `helpful` or `wrong`.
    #[schema(min_length = 1, max_length = 256)]
    label: Option<String>,
    #[schema(min_length = 1, max_length = 4096)]
    comment: Option<String>,
    /// The user who says it; each user gives feedback on a message at most once.
    #[schema(min_length = 1, max_length = 1024)]
    user_id: Option<String>,
}

impl MaxBodySize for FeedbackBody {
    const MAX_BYTES: usize = 64 << 10;
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeleteQuery {
    /// The user whose feedback it is; absent: feedback that names no user.
    #[param(min_length = 1, max_length = 1024)]
    user_id: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedbackQuery {
    /// Only feedback on answers of this agent.
    #[param(value_type = Option<schemas::AgentIdSchema>)]
    agent_id: Option<String>,
    /// Only feedback with this label.
    #[param(min_length = 1, max_length = 256)]
    label: Option<String>,
    /// Only scores up to this one.
    #[param(minimum = -1, maximum = 1)]
    max_score: Option<f64>,
    /// `next` of the previous page.
    #[param(max_length = 2048)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of feedback.
#[derive(Serialize, ToSchema)]
pub(crate) struct FeedbackPage {
    feedback: Vec<FeedbackView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// Feedback on a message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedbackView {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    /// The agent that answered, as far as it is known.
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    #[serde(flatten)]
    said: MessageFeedback,
}

impl From<&FeedbackRow> for FeedbackView {
    fn from(row: &FeedbackRow) -> Self {
        Self {
            thread_id: row.feedback.thread.name().to_owned(),
            message_id: row.feedback.message.as_str().to_owned(),
            agent_id: row.agent.name().to_owned(),
            said: MessageFeedback::from(row),
        }
    }
}

/// The feedback on messages of a thread, by the ids of the messages.
pub(crate) type FeedbackOfMessages = HashMap<MessageId, Vec<MessageFeedback>>;

/// The feedback on these messages of a thread.
pub(crate) async fn of_messages(
    store: &Store,
    thread: &ThreadId,
    messages: &[MessageId],
) -> Result<FeedbackOfMessages, StoreError> {
    let mut found = FeedbackOfMessages::new();
    for row in store.feedback_of(thread, messages).await? {
        found.entry(row.feedback.message.clone()).or_default().push(MessageFeedback::from(&row));
    }
    Ok(found)
}

fn invalid_query(detail: String) -> Problem {
    Problem::new(ErrorCode::InvalidQuery, detail)
}

pub(crate) async fn put(
    ctx: RequestContext,
    PathParam((thread, message)): PathParam<(String, String)>,
    JsonBody(body): JsonBody<FeedbackBody>,
) -> Result<Response, Problem> {
    let feedback = Feedback {
        thread: ctx.thread(&thread)?,
        message: path::id("message", &message, MessageId::parse)?,
        user: body.user_id,
        score: body.score,
        label: body.label,
        comment: body.comment,
    };
    feedback.check().map_err(|detail| Problem::new(ErrorCode::InvalidFeedback, detail))?;
    let backend = ctx.backend()?;
    match backend.store().put_feedback(&feedback).await? {
        FeedbackOutcome::Stored(row, is_new) => {
            metrics::feedback(row.feedback.score);
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, json_no_store(FeedbackView::from(&row))).into_response())
        }
        FeedbackOutcome::UnknownMessage => {
            submit::refuse_erased(backend, &feedback.thread).await?;
            let detail = "the thread has no stored message of this id; an answer is stored when it has ended";
            Err(Problem::new(ErrorCode::UnknownMessage, detail))
        }
        FeedbackOutcome::Full => Err(Problem::from(ErrorCode::TooMuchFeedback)),
    }
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam((thread, message)): PathParam<(String, String)>,
    QueryParams(query): QueryParams<DeleteQuery>,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    let message = path::id("message", &message, MessageId::parse)?;
    check_text("user_id", query.user_id.as_deref(), MAX_USER).map_err(invalid_query)?;
    match ctx.store()?.delete_feedback(&thread, &message, query.user_id.as_deref()).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(Problem::from(ErrorCode::UnknownFeedback)),
    }
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(asked): QueryParams<FeedbackQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(asked.limit.as_deref())?;
    check_text("label", asked.label.as_deref(), MAX_LABEL).map_err(invalid_query)?;
    check_score("max_score", asked.max_score).map_err(invalid_query)?;
    let filter = FeedbackFilter {
        agent: asked.agent_id.map(|id| ctx.agent_in("agent_id", &id)).transpose()?,
        label: asked.label,
        max_score: asked.max_score,
        after: asked.next.map(|next| cursor(&ctx, &next)).transpose()?,
    };
    let tenant = ctx.tenant().cloned();
    let (filter, owner) = (&filter, &tenant);
    let mut rows = ctx
        .read(|store| async move {
            store.for_tenant(owner.clone()).list_feedback(owner.as_ref(), filter, limit + 1).await
        })
        .await?;
    let next = query::next(&mut rows, limit, |last| encoded(&last.cursor()));
    Ok(json_no_store(FeedbackPage { feedback: rows.iter().map(FeedbackView::from).collect(), next }))
}

/// `<time>.<thread>.<message>.<user>`: ids have no dots, and the name of a user is last.
fn encoded(at: &FeedbackCursor) -> String {
    let user = at.user.as_deref().unwrap_or_default();
    format!("{}.{}.{}.{user}", at.updated_us, at.thread.name(), at.message.as_str())
}

fn cursor(ctx: &RequestContext, text: &str) -> Result<FeedbackCursor, Problem> {
    let parse = || {
        let mut parts = text.splitn(4, '.');
        let updated_us = parts.next()?.parse().ok().filter(|at| (0..1 << 53).contains(at))?;
        let thread = ctx.thread(parts.next()?).ok()?;
        let message = MessageId::parse(parts.next()?).ok()?;
        let user = parts.next()?;
        let user = (!user.is_empty() && !user.contains('\0')).then(|| user.to_owned());
        Some(FeedbackCursor { updated_us, thread, message, user })
    };
    parse().ok_or_else(|| Problem::new(ErrorCode::InvalidQuery, "next is not from a page of this list"))
}

fn feedback_example() -> Value {
    json!({
        "thread_id": "hello", "message_id": "u01f3-0198c4d2e5f5-a", "agent_id": "ann", "user_id": "ann", "score": 1.0,
        "label": "helpful", "comment": null, "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z",
    })
}
