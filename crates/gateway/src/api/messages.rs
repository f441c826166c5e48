//! Inputs of people, which open turns.

use axum::body::Body;
use axum::extract::Extension;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use feed::Subscription;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::headers;
use http_server::extract::path::PathParam;
use http_server::transport::extensions::ConnectionHandle;
use model::{InputAuthor, ThreadId, TurnId, TurnOptions};
use protocols::{Cursor, native};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api::answer_stream;
use crate::api::answer_stream::ClientConnection;
use crate::api::client_headers;
use crate::api::respond::json_no_store;
use crate::api::threads;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::publish;
use crate::commands::submit;
use crate::commands::submit::{Input, Submission};
use crate::commands::validate;
use crate::commands::validate::{MAX_INPUT_BODY, TurnParameters};
use crate::openapi::error_codes::{INPUT, PUBLISH, STREAM};
use crate::openapi::events::Stream;
use crate::openapi::examples::accepted_example;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;
use crate::streaming::response;
use crate::streaming::{resume, store_reads};

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::post("/v1/threads/{thread}/messages", "sendMessage", "Send a message and open a turn", send_message)
            .tag(THREADS)
            .description(
                "Returns 202 once the input is durable. With `Accept: text/event-stream` the response is the stream of the answer and ends with \
                 it; `X-Antiphon-Turn` names the turn. A disconnected client repeats the request with `Last-Event-ID`, and with the same `Idempotency-Key` or, if the id names the answer, without one. A request with \
                 `Last-Event-ID` and without a key never opens a turn.",
            )
            .scope(Scope::WriteThreads)
            .input_headers()
            .disconnect_header()
            .last_event_id_header()
            .body::<MessageBody>(json!({ "content": "How is the weather?", "metadata": { "channel": "web" } }))
            .response::<Accepted>(202, "The turn is in progress or pending", accepted_example())
            .response_with(ResponseSpec::stream("The answer, with `Accept: text/event-stream`", &Stream::NativeAnswer))
            .with_header("X-Antiphon-Turn", "The id of the turn.", json!({ "type": "string" }))
            .with_schemas_of(Stream::NativeAnswer)
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&STREAM)
            .errors(&[
                ErrorCode::InvalidBusyPolicy,
                ErrorCode::ThreadBusy,
                ErrorCode::AgentBackingOff,
                ErrorCode::BudgetExceeded,
                ErrorCode::ThreadErased,
            ])
            .errors(&[
                ErrorCode::IdempotencyKeyReused,
                ErrorCode::IdempotencyKeyNeeded,
                ErrorCode::TurnDropped,
                ErrorCode::TurnDeleted,
            ])
            .errors(&[
                ErrorCode::InvalidParameters,
                ErrorCode::ParametersTooLarge,
                ErrorCode::UnsupportedParameter,
            ])
            .errors(&[ErrorCode::InvalidCursor, ErrorCode::UnknownCursor, ErrorCode::CursorAhead]),
    ]
}

/// The input of a turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageBody {
    #[schema(value_type = schemas::InputSchema)]
    content: String,
    #[schema(value_type = Option<schemas::MetadataObject>)]
    metadata: Option<Map<String, Value>>,
    /// Parameters for the model in this turn, passed to the agent's workflow: sampling and limits
    /// under the names of OpenAI's chat completions, and any others that the workflow knows.
    /// `instructions`, a text, needs the agent's setting `client_instructions`.
    #[schema(value_type = Option<schemas::MetadataObject>)]
    parameters: Option<Map<String, Value>>,
    /// The agent whose workflow answers; by default the thread's agent.
    #[schema(value_type = Option<schemas::AgentIdSchema>)]
    agent_id: Option<String>,
    /// What happens while another turn is in progress; by default the thread's policy.
    #[schema(value_type = Option<schemas::BusyPolicySchema>)]
    busy_policy: Option<String>,
    /// Names the user of a thread that has none.
    #[schema(min_length = 1, max_length = 256)]
    user_id: Option<String>,
    author: Option<AuthorBody>,
}

/// The author of an input.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AuthorBody {
    #[schema(min_length = 1, max_length = 256)]
    id: Option<String>,
    /// Models read it.
    #[schema(min_length = 1, max_length = 256)]
    name: String,
}

impl AuthorBody {
    fn checked(self) -> Result<InputAuthor, Problem> {
        Ok(InputAuthor {
            id: self.id.map(|id| validate::user("author.id", &id)).transpose()?,
            name: validate::user("author.name", &self.name)?,
        })
    }
}

/// An accepted turn, and what a client needs to follow it.
#[derive(Serialize, ToSchema)]
pub(crate) struct Accepted {
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    /// Number of the run, from 0; rises by one after each failure.
    run: u32,
    /// The id of the answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    #[schema(value_type = schemas::MessageIdSchema)]
    input_message_id: String,
    /// The URL of the answer's event stream.
    #[schema(format = "uri-reference")]
    events_url: String,
    /// The URL that stops the turn.
    #[schema(format = "uri-reference")]
    stop_url: String,
}

impl MaxBodySize for MessageBody {
    const MAX_BYTES: usize = MAX_INPUT_BODY;
}

pub(crate) async fn send_message(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    Extension(connection): Extension<ConnectionHandle>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<MessageBody>,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    validate::content(&body.content)?;
    let author = body.author.map(AuthorBody::checked).transpose()?;
    let user = body.user_id.map(|user| validate::user("user_id", &user)).transpose()?;
    let input = Input {
        user: match user {
            Some(user) => Some(user),
            None => client_headers::user(&ctx, &headers)?,
        },
        agent: body.agent_id.map(|id| ctx.agent_in("agent_id", &id)).transpose()?,
        policy: threads::policy(body.busy_policy.as_deref())?,
        metadata: validate::metadata(body.metadata)?.with_author(author.as_ref()),
        parameters: TurnParameters::of_parameters(body.parameters)?,
        key: headers::idempotency_key(&headers)?,
        options: TurnOptions { correlation_id: headers::correlation_id(&headers)?, ..TurnOptions::default() },
        ..Input::new(thread, body.content)
    };
    let backend = ctx.backend()?;
    let connection = ClientConnection::opening(&ctx, connection, &headers)?;
    if wants_stream(&headers) {
        let after = resume::last_event_id(&headers)?;
        return in_line(&ctx, backend, connection, &input, after).await;
    }
    let submission = submit::resolve(backend, &input).await?;
    let turn = submission.turn().clone();
    if let Submission::New(opened) = submission {
        publish::publish_turn(backend, &opened).await?;
    }
    Ok((StatusCode::ACCEPTED, json_no_store(Accepted::new(&input.thread, &turn, 0))).into_response())
}

impl Accepted {
    pub(crate) fn new(thread: &ThreadId, turn: &TurnId, run: u32) -> Self {
        let answer = turn.answer(run);
        Self {
            turn_id: turn.as_str().to_owned(),
            thread_id: thread.name().to_owned(),
            run,
            message_id: answer.as_str().to_owned(),
            input_message_id: turn.input().as_str().to_owned(),
            events_url: format!("/v1/threads/{}/events?message={answer}", thread.name()),
            stop_url: format!("/v1/turns/{turn}/stop"),
        }
    }
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.split(',')).any(|kind| {
        kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
    })
}

/// Streams the thread's events until the answer's end. A client that sends its input again after a
/// cut gets the events after its last one.
async fn in_line(
    ctx: &RequestContext,
    backend: &Backend,
    connection: ClientConnection,
    input: &Input,
    after: Option<Cursor>,
) -> Result<Response, Problem> {
    let thread = &input.thread;
    if let Some(cursor) = &after {
        resume::validate_cursor(backend, thread, cursor).await?;
    }
    let submission = match (&after, &input.key) {
        (Some(cursor), None) => submit::repeated(backend, input, cursor).await?,
        _ => submit::resolve(backend, input).await?,
    };
    let turn = submission.turn().clone();
    let answer = submit::answer_of(&submission)?;
    let mut response = match &after {
        Some(cursor)
            if store_reads::has_ended_by(backend.store(), thread, &answer, cursor.base()).await? =>
        {
            // The client has the end already; only the end of the body was lost.
            response::stream(Body::from(native::OPEN))
        }
        _ => {
            let until = Subscription::Until(answer);
            response::stream(answer_stream::watch(ctx, connection, thread, &submission, until, after).await?)
        }
    };
    if let Ok(turn) = HeaderValue::from_str(turn.as_str()) {
        response.headers_mut().insert("x-antiphon-turn", turn);
    }
    Ok(response)
}
