//! The protocols of other clients, on top of the same turns.
//!
//! Each handler parses its protocol's request ([`protocols`]), and opens or finds the turn as the
//! native API does. It answers with a fold over the turn's live stream, or over its messages in the
//! history.

pub(crate) mod agui;
pub(crate) mod client_history;
pub(crate) mod completions;
pub(crate) mod last;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod ui_message;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use feed::Subscription;
use http_server::error;
use http_server::error::{ErrorCode, Problem, Retry};
use http_server::extract::body;
use http_server::extract::headers;
use http_server::transport::extensions::ConnectionHandle;
use model::{MessageId, Metadata, QueryTarget, QueueStatus, ThreadId, TurnError, TurnId, TurnOptions};
use protocols::request::{ErrorBody, RequestRejection};
use protocols::ui_message::CLIENT_MESSAGE_ID;
use protocols::{AnswerEvent, Cursor, Protocol, StoredAnswer, StreamError};
use sha2::{Digest, Sha256};
use store::{RunFailure, TurnState};
use uuid::Uuid;

use crate::api::answer_stream;
use crate::api::answer_stream::ClientConnection;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::submit;
use crate::commands::submit::{Input, Submission};
use crate::commands::{digest_name, owner_query, publish, validate};
use crate::openapi::error_codes::{INPUT, PUBLISH, STREAM};
use crate::openapi::events::Stream;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::streaming::response;
use crate::streaming::send_queue::SendQueueBody;
use crate::streaming::store_reads;
use crate::streaming::transcode;
use crate::streaming::transcode::Transcoder;

/// Errors of a message in every protocol.
const OPENED: [ErrorCode; 7] = [
    ErrorCode::AgentBackingOff,
    ErrorCode::BudgetExceeded,
    ErrorCode::ThreadBusy,
    ErrorCode::ThreadErased,
    ErrorCode::IdempotencyKeyReused,
    ErrorCode::TurnDeleted,
    ErrorCode::TurnDropped,
];

impl Operation {
    /// Adds the parts that all operations that open a turn have in common.
    pub(super) fn opens(self) -> Self {
        self.scope(Scope::WriteThreads)
            .input_headers()
            .disconnect_header()
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&STREAM)
            .errors(&OPENED)
            .errors(&[ErrorCode::InvalidParameters, ErrorCode::ParametersTooLarge, ErrorCode::StreamAborted])
            .errors(&[ErrorCode::AnswerGoesOn, ErrorCode::InputUnconfirmed])
    }

    /// The answer is a stream of these events.
    pub(super) fn streams(self, text: &'static str, events: Stream) -> Self {
        self.response_with(ResponseSpec::stream(text, &events)).with_schemas_of(events)
    }
}

/// Longest client id that becomes the key of an input.
const MAX_KEY: usize = 200;

/// A request with a body, in any of the protocols.
pub(crate) struct ProtocolRequest {
    ctx: RequestContext,
    connection: ClientConnection,
    key: Option<String>,
    options: TurnOptions,
    headers: HeaderMap,
    body: Bytes,
}

/// Reads a request and handles it; errors are reported in the protocol's form.
pub(crate) async fn posted<F, A>(
    ctx: RequestContext,
    connection: ConnectionHandle,
    request: Request,
    handle: F,
    error_body: fn(&RequestRejection) -> ErrorBody,
) -> Response
where
    F: FnOnce(ProtocolRequest) -> A,
    A: Future<Output = Result<Response, Problem>>,
{
    let headers = request.headers().clone();
    let read = async {
        let (key, correlation_id) = (headers::idempotency_key(&headers)?, headers::correlation_id(&headers)?);
        let options = TurnOptions { correlation_id, ..TurnOptions::default() };
        let connection = ClientConnection::opening(&ctx, connection, &headers)?;
        Ok::<_, Problem>((connection, key, options, body::raw(request).await?))
    };
    let outcome = match read.await {
        Ok((connection, key, options, body)) => {
            handle(ProtocolRequest { ctx, connection, key, options, headers, body }).await
        }
        Err(problem) => Err(problem),
    };
    answered(outcome, error_body)
}

/// The answer, or a refusal in the form of the protocol.
fn answered(outcome: Result<Response, Problem>, error_body: fn(&RequestRejection) -> ErrorBody) -> Response {
    match outcome {
        Ok(response) => response,
        Err(problem) => {
            problem.count();
            error::refusal(&problem, error_body)
        }
    }
}

/// The state of an answer.
pub(crate) enum TurnAnswer {
    /// The answer is in progress.
    Live(SendQueueBody),
    /// The answer is in the history.
    Stored(StoredAnswer),
    /// The turn failed.
    Failed(StreamError),
    /// The turn was stopped before it began.
    Stopped,
}

impl TurnAnswer {
    /// The answer of a failed run.
    pub(crate) fn of_failure(failure: RunFailure) -> Self {
        match failure.code == TurnError::Stopped.code() {
            true => Self::Stopped,
            false => Self::Failed(StreamError::new(failure.code, failure.text, failure.is_retryable)),
        }
    }
}

/// Opens the turn of an input, or finds the turn that was opened under the same key.
pub(crate) async fn open(
    ctx: &RequestContext,
    connection: ClientConnection,
    input: &Input,
) -> Result<(MessageId, TurnAnswer), Problem> {
    let submission = resolve(ctx, input).await?;
    enter(ctx, connection, &input.thread, submission, Repeats::of_key(input.key.as_deref())).await
}

/// Checks an input and resolves it; nothing is opened yet.
async fn resolve(ctx: &RequestContext, input: &Input) -> Result<Submission, Problem> {
    validate::content(&input.content)?;
    validate::client_metadata(&input.metadata)?;
    submit::resolve(ctx.backend()?, input).await
}

/// Opens the turn if it is new.
async fn enter(
    ctx: &RequestContext,
    connection: ClientConnection,
    thread: &ThreadId,
    submission: Submission,
    repeats: Repeats,
) -> Result<(MessageId, TurnAnswer), Problem> {
    let backend = ctx.backend()?;
    let turn = submission.turn();
    if let Submission::Duplicate(_, Some(TurnState::Failed { run })) = &submission {
        let failure = backend.store().run_failure(thread, turn, *run).await?;
        let unsaid = || TurnAnswer::Failed(StreamError::new("failed", "the turn failed", true));
        return Ok((turn.answer(*run), failure.map_or_else(unsaid, TurnAnswer::of_failure)));
    }
    let message = submit::answer_of(&submission)?;
    if let Submission::Duplicate(_, Some(TurnState::Done { .. })) = &submission
        && let Some(stored) = store_reads::answer(backend.store(), thread, &message).await?
    {
        return Ok((message, TurnAnswer::Stored(stored)));
    }
    let subscription = Subscription::Message(message.clone());
    let watched = answer_stream::watch(ctx, connection, thread, &submission, subscription, None).await;
    let send_queue = watched.map_err(|problem| repeats.refused(problem, thread, &message))?;
    Ok((message, TurnAnswer::Live(send_queue)))
}

/// An answer that a client resumes.
pub(crate) async fn resume_answer(
    ctx: &RequestContext,
    connection: ConnectionHandle,
    thread: &ThreadId,
    message: &MessageId,
) -> Result<TurnAnswer, Problem> {
    let backend = ctx.backend()?;
    if let Some(stored) = store_reads::answer(backend.store(), thread, message).await? {
        return Ok(TurnAnswer::Stored(stored));
    }
    let after = Cursor::at(store_reads::before(backend.store(), thread, message).await?);
    let (send_queue, mut body, place) = ctx.send_queue(connection)?;
    let (permit, _) = ctx
        .feeds()?
        .subscribe(thread, send_queue, Some(after), Subscription::Message(message.clone()))
        .map_err(response::refused)?;
    body.keep(permit, place);
    Ok(TurnAnswer::Live(body))
}

/// The answer in progress to a person in the thread, or else the first that waits; `None` when
/// there is none.
pub(crate) async fn active(backend: &Backend, thread: &ThreadId) -> Result<Option<MessageId>, Problem> {
    open_answer(backend, thread, |_| true).await
}

/// The answer of the first turn with a person that has not ended and satisfies `is_wanted`.
pub(crate) async fn open_answer(
    backend: &Backend,
    thread: &ThreadId,
    is_wanted: impl Fn(&TurnId) -> bool,
) -> Result<Option<MessageId>, Problem> {
    // Most returning clients find their answer with this first query.
    let about = QueryTarget::Thread(thread.clone());
    if let Some(explained) = owner_query::explain(backend, thread.bucket(), &about).await
        && let Some(found) = answer_among(backend, thread, &explained, &is_wanted).await?
    {
        return Ok(Some(found));
    }
    let explained = owner_query::explain_up_to_date(backend, thread, &about).await?;
    answer_among(backend, thread, &explained, &is_wanted).await
}

async fn answer_among(
    backend: &Backend,
    thread: &ThreadId,
    explained: &QueueStatus,
    is_wanted: impl Fn(&TurnId) -> bool,
) -> Result<Option<MessageId>, Problem> {
    let mut turns = owner_query::turns_with_people(explained);
    let Some(turn) = turns.find(|turn| is_wanted(turn)) else { return Ok(None) };
    if let Some(active) = explained.active.as_ref().filter(|active| active.turn == *turn) {
        return Ok(Some(active.message.clone()));
    }
    // A failed turn waits for its next run.
    let run = match backend.store().turn_state(thread, turn).await? {
        Some(TurnState::Failed { run }) => run + 1,
        Some(TurnState::Open { run }) => run,
        Some(TurnState::Done { .. } | TurnState::Dropped) | None => 0,
    };
    Ok(Some(turn.answer(run)))
}

/// The answer as a stream.
pub(crate) fn stream<P>(fold: P, message: MessageId, answer: TurnAnswer) -> Response
where
    P: Protocol + Send + 'static,
{
    let demanded = fold.headers();
    let mut response = match answer {
        TurnAnswer::Live(send_queue) => response::stream(transcode::transcoded(send_queue, fold, message)),
        TurnAnswer::Stored(stored) => {
            let mut fold = fold;
            response::stream(Body::from(transcode::transcode_stored(&mut fold, &stored)))
        }
        TurnAnswer::Failed(note) => response::stream(Body::from(only_end(fold, AnswerEvent::Failed(&note)))),
        TurnAnswer::Stopped => response::stream(Body::from(only_end(fold, AnswerEvent::Stopped))),
    };
    for (name, value) in demanded {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// The stream of an answer that has only an end.
fn only_end(mut fold: impl Protocol, end: AnswerEvent<'_>) -> Vec<u8> {
    let mut out = fold.apply(AnswerEvent::Opened).bytes.to_vec();
    out.extend_from_slice(&fold.apply(end).bytes);
    out
}

/// Whether the same request, sent again, finds the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    Same,
    /// The repeated request would open another turn.
    Another,
}

impl Repeats {
    pub(crate) fn of_key(key: Option<&str>) -> Self {
        if key.is_some() { Self::Same } else { Self::Another }
    }

    /// The response when the gateway stops before a turn in progress has ended.
    pub(crate) fn cut(self, thread: &ThreadId, message: &MessageId) -> Problem {
        match self {
            Self::Same => Problem::from(ErrorCode::StreamAborted),
            Self::Another => {
                let thread = thread.name();
                let detail = format!(
                    "the gateway stops, and the answer goes on: it will be message {message} of thread {thread}. The same request would \
                     open another turn; send an Idempotency-Key with it to find the same answer again"
                );
                Problem::new(ErrorCode::AnswerGoesOn, detail)
            }
        }
    }

    /// If it is unknown whether an input was stored, client libraries must not send it again by
    /// themselves.
    fn refused(self, problem: Problem, thread: &ThreadId, message: &MessageId) -> Problem {
        if self == Self::Same || problem.code() != publish::UNCONFIRMED {
            return problem;
        }
        let thread = thread.name();
        let detail = format!(
            "NATS did not confirm that it has stored the input. If it has, its answer will be message {message} of thread {thread}, and the \
             same request would open another turn; send an Idempotency-Key with it to find the same answer again"
        );
        Problem::new(ErrorCode::InputUnconfirmed, detail)
    }
}

/// Returns the fold at the end of the answer, for a client that waits for the whole answer; `None`
/// if the stream was cut before the end.
pub(crate) async fn collect_answer<P: Protocol>(
    mut fold: P,
    message: &MessageId,
    answer: TurnAnswer,
) -> Option<P> {
    match answer {
        TurnAnswer::Stored(stored) => {
            transcode::transcode_stored(&mut fold, &stored);
            Some(fold)
        }
        TurnAnswer::Failed(note) => {
            fold.apply(AnswerEvent::Opened);
            fold.apply(AnswerEvent::Failed(&note));
            Some(fold)
        }
        TurnAnswer::Stopped => {
            fold.apply(AnswerEvent::Opened);
            fold.apply(AnswerEvent::Stopped);
            Some(fold)
        }
        TurnAnswer::Live(send_queue) => {
            let (mut transcoder, _) = Transcoder::new(fold, message.clone());
            transcode::collect_until_end(send_queue, &mut transcoder).await.ok()?;
            Some(transcoder.into_fold())
        }
    }
}

/// The response about a failed turn, for a client that waited for the whole answer.
fn failed(failure: &StreamError, error_body: fn(&RequestRejection) -> ErrorBody) -> Response {
    ErrorCode::TurnFailed.count();
    let again = if failure.is_retryable { Retry::Maybe } else { Retry::Never };
    let status = ErrorCode::TurnFailed.status().as_u16();
    error::in_form(
        &RequestRejection::new(status, failure.code.clone(), failure.text.clone()),
        again,
        error_body,
    )
}

/// A JSON response that no cache keeps.
pub(crate) fn json(bytes: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, bytes).into_response()
}

/// The thread of a first input. With a key, repeated requests get the same thread, because keys
/// belong to a thread.
pub(crate) fn new_thread(ctx: &RequestContext, key: Option<&str>) -> Result<ThreadId, Problem> {
    let id = match key {
        Some(key) => {
            format!("k{}", digest_name(&Sha256::digest(key.as_bytes())))
        }
        None => Uuid::now_v7().simple().to_string(),
    };
    ctx.thread(&id)
}

/// A client's id of an input, as an idempotency key.
pub(crate) fn client_idempotency_key(protocol: &str, id: Option<&str>) -> Option<String> {
    let id = id.filter(|id| !id.is_empty() && id.len() <= MAX_KEY && !id.contains('\0'))?;
    Some(format!("{protocol}:{id}"))
}

/// Keeps the client's id of its message, so that the client finds the message under the same id
/// after a reload.
pub(crate) fn with_client_id(metadata: Metadata, id: Option<&str>) -> Metadata {
    match id.filter(|id| MessageId::parse(id).is_ok()) {
        Some(id) => metadata.with_text(CLIENT_MESSAGE_ID, id),
        None => metadata,
    }
}
