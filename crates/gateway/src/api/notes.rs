//! Notes: texts of operators and agents in threads, independent of turns.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use model::{CommandId, MessageId, Note, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::commands::{digest_name, publish, submit, validate};
use crate::openapi::error_codes::{INPUT, PUBLISH};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::post("/v1/threads/{thread}/notes", "putNote", "Add a note to a thread", put)
            .tag(THREADS)
            .description(
                "A note is a message in its own batch, independent of turns. Models read it, \
                 quoted, in the context of the next turn.",
            )
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<NoteBody>(json!({ "content": "The customer has paid.", "visibility": "hidden" }))
            .response::<NoteAccepted>(
                202,
                "Stored durably",
                json!({ "message_id": "note-0198c4d2e5f5", "thread_id": "hello" }),
            )
            .errors(&PUBLISH)
            .errors(&INPUT)
            .errors(&[ErrorCode::ThreadErased]),
    ]
}

/// A note to add to a thread.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoteBody {
    #[schema(value_type = schemas::InputSchema)]
    content: String,
    /// `shown`: people see the note in streams and histories. `hidden`: only models read it, and
    /// histories show it with `synthetic=true`.
    #[schema(value_type = Option<schemas::VisibilitySchema>)]
    visibility: Option<String>,
    /// An id of the request: a repeated one yields the same note, whatever else it contains.
    /// Generated when absent.
    #[schema(value_type = Option<schemas::RequestIdSchema>)]
    request_id: Option<String>,
}

impl MaxBodySize for NoteBody {
    const MAX_BYTES: usize = validate::MAX_INPUT_BODY;
}

/// A note that is stored durably.
#[derive(Serialize, ToSchema)]
pub(crate) struct NoteAccepted {
    /// The id of the note's message, which is a separate batch.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
}

pub(crate) async fn put(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NoteBody>,
) -> Result<Response, Problem> {
    let (thread, author) = (ctx.thread(&thread)?, ctx.actor(&headers)?);
    validate::content(&body.content)?;
    let is_hidden = match body.visibility.as_deref() {
        None | Some("shown") => false,
        Some("hidden") => true,
        Some(_) => return Err(Problem::new(ErrorCode::InvalidBody, "visibility must be shown or hidden")),
    };
    let request = body.request_id.unwrap_or_else(|| Uuid::now_v7().simple().to_string());
    let request = path::id("request_id", &request, CommandId::parse)?;
    let backend = ctx.backend()?;
    submit::refuse_erased(backend, &thread).await?;
    let message = message_of(&thread, &request)?;
    let note = Note { thread, message, content: body.content, author: author.into(), is_hidden };
    publish::publish_note(backend, &note).await?;
    let accepted = NoteAccepted {
        message_id: note.message.as_str().to_owned(),
        thread_id: note.thread.name().to_owned(),
    };
    Ok((StatusCode::ACCEPTED, json_no_store(accepted)).into_response())
}

fn message_of(thread: &ThreadId, request: &CommandId) -> Result<MessageId, Problem> {
    let name = digest_name(&Sha256::digest(format!("{thread}\0{request}")));
    path::id("request_id", &format!("note-{name}"), MessageId::parse)
}
