//! Inputs of persons, which open turns.

use axum::body::Body;
use axum::extract::Extension;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{MessageId, ThreadId, TurnId};
use protocols::{Cursor, native};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::TurnState;
use utoipa::ToSchema;

use crate::app::request_context::Desk;
use crate::error::Problem;
use crate::extract::body::{Bounded, Strict};
use crate::extract::headers;
use crate::extract::path::Params;
use crate::streaming::registry::Hub;
use crate::commands::validate;
use crate::commands::validate::{MAX_INPUT_BODY, TurnParameters};
use crate::streaming::send_queue::LaneBody;
use crate::routes::{Connection, events, fresh, threads};
use crate::streaming::body::Seated;
use crate::commands::submit;
use crate::commands::submit::{Input, Standing};
use crate::streaming::{resume, store_reads};
use crate::forms;
use crate::commands::publish;

/// An input.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageBody {
    #[schema(value_type = forms::InputText)]
    content: String,
    #[schema(value_type = Option<forms::MetadataObject>)]
    metadata: Option<Map<String, Value>>,
    /// What is asked of the model for this turn, for the agent's workflow: sampling and limits under the names of OpenAI's chat completions,
    /// and whatever it knows. `instructions`, a text, needs the agent's setting `client_instructions`.
    #[schema(value_type = Option<forms::MetadataObject>)]
    parameters: Option<Map<String, Value>>,
    /// Whose workflow answers; the thread's agent without it.
    #[schema(value_type = Option<forms::AgentName>)]
    agent_id: Option<String>,
    /// The thread's policy without it.
    #[schema(value_type = Option<forms::BusyPolicyText>)]
    busy_policy: Option<String>,
}

/// A turn that is or will be under way, and what a client needs to follow it.
#[derive(Serialize, ToSchema)]
pub(crate) struct Accepted {
    #[schema(value_type = forms::TurnName)]
    turn_id: String,
    #[schema(value_type = forms::ThreadName)]
    thread_id: String,
    /// One more after each failure, from 0.
    run: u32,
    /// The answer's id.
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    #[schema(value_type = forms::MessageName)]
    input_message_id: String,
    /// Where the answer is streamed.
    #[schema(format = "uri-reference")]
    events_url: String,
    /// Where the turn is stopped.
    #[schema(format = "uri-reference")]
    stop_url: String,
}

impl Bounded for MessageBody {
    const MAX_BYTES: usize = MAX_INPUT_BODY;
}

pub(crate) async fn take(
    desk: Desk,
    Params(thread): Params<String>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    Strict(body): Strict<MessageBody>,
) -> Result<Response, Problem> {
    let thread = desk.thread(&thread)?;
    validate::content(&body.content)?;
    let input = Input {
        agent: body.agent_id.map(|id| desk.agent_in("agent_id", &id)).transpose()?,
        policy: threads::policy(body.busy_policy.as_deref())?,
        metadata: validate::metadata(body.metadata)?,
        parameters: TurnParameters::of_parameters(body.parameters)?,
        key: headers::idempotency_key(&headers)?,
        correlation_id: headers::correlation_id(&headers)?,
        content: body.content,
        thread,
    };
    let hub = desk.hub()?;
    if wants_stream(&headers) {
        let after = events::last_event_id(&headers)?;
        return in_line(&desk, hub, connection, &input, after).await;
    }
    let standing = submit::of(hub, &input).await?;
    let turn = standing.turn().clone();
    if let Standing::New(opened) = standing {
        publish::open_turn(hub.context(), &opened).await?;
    }
    Ok((StatusCode::ACCEPTED, fresh(Accepted::new(&input.thread, &turn, 0))).into_response())
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

/// The thread's events until the answer's end. A client that was cut and sends its input again gets what comes after its last event.
async fn in_line(
    desk: &Desk,
    hub: &Hub,
    connection: Connection,
    input: &Input,
    after: Option<Cursor>,
) -> Result<Response, Problem> {
    let thread = &input.thread;
    if let Some(cursor) = &after {
        resume::check(hub, thread, cursor).await?;
    }
    let standing = match (&after, &input.key) {
        (Some(cursor), None) => submit::repeated(hub, input, cursor).await?,
        _ => submit::of(hub, input).await?,
    };
    let turn = standing.turn().clone();
    let answer = awaited(&standing)?;
    let mut response = match &after {
        Some(cursor) if store_reads::has_ended_by(hub.store(), thread, &answer, cursor.base()).await? => {
            // It has the end already, and only the end of the body was lost.
            events::stream(Body::from(native::OPEN))
        }
        _ => events::stream(watch(desk, hub, connection, thread, &standing, &answer, after).await?),
    };
    if let Ok(turn) = HeaderValue::from_str(turn.as_str()) {
        response.headers_mut().insert("x-antiphon-turn", turn);
    }
    Ok(response)
}

/// A place in the thread's feed up to the answer's end; then the turn is opened, if it is a new one.
pub(crate) async fn watch(
    desk: &Desk,
    hub: &Hub,
    connection: Connection,
    thread: &ThreadId,
    standing: &Standing,
    answer: &MessageId,
    after: Option<Cursor>,
) -> Result<Seated<LaneBody>, Problem> {
    let is_brought = after.is_some();
    let after = match after {
        Some(cursor) => cursor,
        // Whatever becomes of the answer becomes of it after this.
        None => Cursor::at(store_reads::before(hub.store(), thread, answer).await?),
    };
    let (lane, body, place) = desk.lane(connection)?;
    let (seat, verdict) = hub.attach_until(thread, lane, after, answer).map_err(events::refused)?;
    // Dropped with an error, the body gives the place back.
    let body = Seated::new(body, seat, place);
    if is_brought {
        events::until_verdict(verdict).await?;
    }
    if let Standing::New(opened) = standing {
        publish::open_turn(hub.context(), opened).await?;
    }
    Ok(body)
}

/// The message whose end ends the stream.
pub(crate) fn awaited(standing: &Standing) -> Result<MessageId, Problem> {
    let run = match standing {
        Standing::New(opened) => opened.run,
        Standing::Known(_, None) => 0,
        Standing::Known(_, Some(TurnState::Done { answer })) => return Ok(answer.clone()),
        Standing::Known(_, Some(TurnState::Failed { run } | TurnState::Open { run })) => *run,
        Standing::Known(_, Some(TurnState::Dropped)) => {
            let detail = "the turn of this Idempotency-Key failed, and somebody dropped it";
            return Err(Problem::new(StatusCode::GONE, "turn_dropped", detail));
        }
    };
    Ok(standing.turn().answer(run))
}
