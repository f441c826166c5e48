//! Dead letters: inputs that could not be processed.

use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{DeadLetterCursor, DeadLetterId, ReplayClaim, StoredDeadLetter};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::commands::{control, publish};
use crate::openapi::error_codes::PUBLISH;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::AGENTS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/dead-letters",
            "listDeadLetters",
            "List dead letters: inputs that could not be processed, with the reason",
            list,
        )
        .tag(AGENTS)
        .scope(Scope::ReadDeadLetters)
        .query::<DeadLettersQuery>()
        .response::<DeadLettersPage>(
            200,
            "Dead letters, newest first",
            json!({ "dead_letters": [dead_letter_example()], "next": "1795000000000000:entry:3:7f3a:17" }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::InvalidId]),
        Operation::get("/v1/dead-letters/{letter}", "showDeadLetter", "Show a dead letter with its whole payload", get)
            .tag(AGENTS)
            .scope(Scope::ReadDeadLetters)
            .response::<WholeDeadLetter>(200, "The dead letter", whole_dead_letter_example())
            .errors(&[ErrorCode::UnknownDeadLetter]),
        Operation::post(
            "/v1/dead-letters/{letter}/replay",
            "replayDeadLetter",
            "Replay a dead letter: publish its payload to its stream again",
            replay,
        )
        .tag(AGENTS)
        .description("A dead letter is replayed once, and the ids in its payload ensure that it is processed once. Failed messages cannot be replayed.")
        .scope(Scope::OperateDeadLetters)
        .actor_header()
        .no_body()
        .response::<ReplayedDeadLetter>(
            200,
            "The payload is in the stream",
            json!({ "id": "entry:3:7f3a:17", "replayed": true, "stream": "PARTITION_3", "stream_seq": 18 }),
        )
        .errors(&PUBLISH)
        .errors(&[ErrorCode::InputTooLarge, ErrorCode::UnknownDeadLetter, ErrorCode::DeadLetterReplayed, ErrorCode::DeadLetterBusy, ErrorCode::DeadLetterNotReplayable]),
        Operation::delete("/v1/dead-letters/{letter}", "dropDeadLetter", "Delete a dead letter", delete)
            .tag(AGENTS)
            .scope(Scope::OperateDeadLetters)
            .actor_header()
            .no_body()
            .response::<DroppedDeadLetter>(200, "Deleted", json!({ "id": "entry:3:7f3a:17", "dropped": true }))
            .errors(&[ErrorCode::UnknownDeadLetter]),
    ]
}

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
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// An input that could not be processed.
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
    /// The beginning of the payload, if it is text.
    preview: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    /// When the payload was published to the stream again; null if it was not.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    replayed_at: Option<String>,
}

/// A dead letter with its whole payload.
#[derive(Serialize, ToSchema)]
pub(crate) struct WholeDeadLetter {
    #[serde(flatten)]
    letter: DeadLetter,
    /// The payload, if it is text.
    #[schema(required)]
    text: Option<String>,
    /// The payload in hexadecimal digits.
    hex: String,
}

/// A replayed dead letter: its payload is in its stream again.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReplayedDeadLetter {
    id: String,
    /// False: a concurrent request replayed it, with the same effect.
    replayed: bool,
    stream: String,
    stream_seq: u64,
}

/// A deleted dead letter.
#[derive(Serialize, ToSchema)]
pub(crate) struct DroppedDeadLetter {
    id: String,
    dropped: bool,
}

/// For how long the claim of a replay holds.
const CLAIM_SECONDS: u32 = 60;

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownDeadLetter)
}

fn letter_id(text: &str) -> Result<DeadLetterId, Problem> {
    let detail = "letter: the id of a dead letter is <kind>:<number>:<key>";
    DeadLetterId::parse(text).ok_or_else(|| Problem::new(ErrorCode::InvalidId, detail))
}

/// The letter, if it belongs to the tenant. A letter without a known owner belongs to the default
/// tenant.
async fn own_letter(ctx: &RequestContext, id: &DeadLetterId) -> Result<StoredDeadLetter, Problem> {
    let letter = ctx.store()?.dead_letter(id).await?.ok_or_else(unknown)?;
    if ctx.owns(letter.tenant()) { Ok(letter) } else { Err(unknown()) }
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(letter): PathParam<String>,
) -> Result<Response, Problem> {
    let letter = own_letter(&ctx, &letter_id(&letter)?).await?;
    let text = std::str::from_utf8(&letter.raw).ok().map(str::to_owned);
    let hex = letter.raw.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(json_no_store(WholeDeadLetter { letter: DeadLetter::from(letter), text, hex }))
}

pub(crate) async fn replay(
    ctx: RequestContext,
    PathParam(letter): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (id, actor, backend) = (letter_id(&letter)?, ctx.actor(&headers)?, ctx.backend()?);
    let letter = own_letter(&ctx, &id).await?;
    let Some(subject) = letter.subject.as_deref().filter(|_| id.kind == "entry") else {
        let detail = "only entries with a subject are replayed; clients of a message that failed were told so, and what it lacks is still missing";
        return Err(Problem::new(ErrorCode::DeadLetterNotReplayable, detail));
    };
    match backend.store().claim_replay(&id).await? {
        ReplayClaim::Claimed => {}
        ReplayClaim::Replayed => return Err(Problem::from(ErrorCode::DeadLetterReplayed)),
        ReplayClaim::Busy => {
            let detail = "the dead letter is being replayed; look again in a minute";
            return Err(Problem::new(ErrorCode::DeadLetterBusy, detail));
        }
        ReplayClaim::Unknown => return Err(unknown()),
    }
    // The number of partitions may have changed, or the publisher may not have known it.
    let place = wire::subject::in_fleet(backend.count, subject);
    let subject = place.as_ref().map_or(subject, |(_, subject)| subject.as_str());
    // If the process fails between this statement and the next, a retry within two minutes stores
    // nothing: the stream drops the repeated publication. After that, the ids in the payload
    // prevent a second effect.
    let publication = format!("replay.{}", id.text());
    // The claim lasts for a minute, so a retry before then is refused as busy.
    let stored = publish::publish_again(backend, subject, letter.raw.clone(), &publication)
        .await
        .map_err(|problem| problem.retry_after(CLAIM_SECONDS))?;
    let replayed = backend.store().replayed(&letter, &control::new_id()?, &actor).await?;
    tracing::info!(letter = id.text(), actor, "a dead letter was replayed");
    let (stream, stream_seq) = (stored.stream, stored.seq.0);
    Ok(json_no_store(ReplayedDeadLetter { id: id.text(), replayed, stream, stream_seq }))
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam(letter): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (id, actor) = (letter_id(&letter)?, ctx.actor(&headers)?);
    let letter = own_letter(&ctx, &id).await?;
    if !ctx.store()?.drop_dead_letter(&letter, &control::new_id()?, &actor).await? {
        return Err(unknown());
    }
    tracing::info!(letter = id.text(), actor, "a dead letter was dropped");
    Ok(json_no_store(DroppedDeadLetter { id: id.text(), dropped: true }))
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
        let owner = letter.owner.as_deref().and_then(|owner| model::ThreadId::parse(owner).ok());
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

fn dead_letter_example() -> Value {
    json!({
        "id": "entry:3:7f3a:17", "kind": "entry", "partition": 3, "stream_seq": 17, "subject": "chunks.3.hello", "thread_id": "hello",
        "message_id": null, "reason": "malformed", "detail": { "text": "it is neither JSON nor protobuf" }, "bytes": 4,
        "preview": "oops", "created_at": "2026-11-22T11:49:44.123Z", "replayed_at": null,
    })
}

fn whole_dead_letter_example() -> Value {
    let mut letter = dead_letter_example();
    letter["text"] = json!("oops");
    letter["hex"] = json!("6f6f7073");
    letter
}
