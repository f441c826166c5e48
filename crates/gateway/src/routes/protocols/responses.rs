//! OpenAI's Responses.

use std::time::Duration;

use adapters::responses::{Calls, Follows, Request, Resume, Terms, error_body, message_of};
use adapters::{Happening, Protocol, Responses};
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use model::{ActKind, AgentId, MessageId, Metadata, ThreadId, Timestamp, TurnId};
use serde::Deserialize;
use store::NewThread;
use utoipa::IntoParams;
use uuid::Uuid;

use super::{Answer, Posted, Trouble, active, answered, find, json, new_thread, open, posted, stream, whole};
use crate::body::Empty;
use crate::desk::Desk;
use crate::forms;
use crate::hub::Hub;
use crate::params::{Asked, Params};
use crate::problem::Problem;
use crate::routes::{Connection, turns};
use crate::standing::Input;
use crate::{acts, reads, standing};

/// How long a cancelled response is waited for, so that it can be shown as it ended.
const CANCEL_LOOKS: u32 = 20;
const CANCEL_PAUSE: Duration = Duration::from_millis(100);

pub(in crate::routes) async fn post(
    desk: Desk,
    Extension(connection): Extension<Connection>,
    request: axum::extract::Request,
) -> Response {
    posted(desk, connection, request, respond, error_body).await
}

async fn respond(posted: Posted) -> Result<Response, Trouble> {
    let Posted { desk, connection, key, correlation_id, body, .. } = posted;
    let request = Request::parse(&body, desk.tenant())?;
    let hub = desk.hub()?;
    let thread = place(&desk, &request, key.as_deref()).await?;
    let input = Input {
        thread: thread.clone(),
        agent: request.agent.clone(),
        policy: None,
        content: request.text.clone(),
        metadata: request.metadata.clone(),
        key,
        correlation_id,
    };
    let (turn, message, answer) = open(&desk, connection, &input).await?;
    let mut terms = terms(hub, &thread, &turn, &message).await?;
    if let Some(agent) = &request.agent {
        terms.model = agent.name().to_owned();
    }
    // The numbers of a stream's events depend on it, and other gateways do not know of it.
    terms.background = request.background && !request.stream;
    terms.metadata = request.metadata;
    if let Follows::Response(before) = request.follows {
        terms.previous_response_id = Some(before);
    }
    let make = || Responses::new(terms.clone(), Resume::Start);
    if request.stream {
        return Ok(stream(make(), message, answer));
    }
    if request.background && matches!(answer, Answer::Live(_)) {
        return Ok(json(begun(make())));
    }
    Ok(json(whole(hub, &thread, make, message, answer).await?.object()))
}

/// The object of a response of which nothing is known but that it is under way.
fn begun(mut fold: Responses) -> bytes::Bytes {
    fold.apply(Happening::Opened);
    fold.object()
}

/// Where the input is said. A thread that begins here is named, so that every gateway knows whose it is.
async fn place(desk: &Desk, request: &Request, key: Option<&str>) -> Result<ThreadId, Trouble> {
    let hub = desk.hub()?;
    let before = match &request.follows {
        Follows::Thread(thread) => return Ok(thread.clone()),
        Follows::Response(before) => before,
        Follows::Nothing => {
            let thread = new_thread(desk, key)?;
            // With a key it may be one that there was.
            standing::refuse_erased(hub, &thread).await?;
            let new = NewThread {
                thread: thread.clone(),
                agent: request.agent.clone(),
                policy: None,
                metadata: Metadata::EMPTY,
            };
            hub.store().name_thread(&new).await?;
            return Ok(thread);
        }
    };
    let (turn, message) = named(before)?;
    let thread = thread_of(desk, &turn, &message).await?;
    if let Some(key) = key
        && hub.store().key_claim(&thread, key).await?.is_some()
    {
        // It is said again: what was the last response then is not any more.
        return Ok(thread);
    }
    let under_way = active(hub, &thread).await?.map(|(_, message)| message);
    let last = match under_way {
        Some(message) => Some(message),
        None => hub.store().last_answer(&thread).await?.map(|(message, _)| message),
    };
    if last.as_ref() != Some(&message) {
        let detail =
            "previous_response_id must be the last response of its conversation: a thread has no branches";
        return Err(Problem::conflict("not_the_last_response", detail).into());
    }
    Ok(thread)
}

#[derive(Debug, Deserialize, IntoParams)]
pub(in crate::routes) struct ShowQuery {
    /// As a stream of events.
    stream: Option<bool>,
    /// Only events after this number.
    #[param(value_type = Option<forms::EventNumber>)]
    starting_after: Option<u64>,
}

pub(in crate::routes) async fn show(
    desk: Desk,
    Extension(connection): Extension<Connection>,
    Params(response): Params<String>,
    Asked(query): Asked<ShowQuery>,
) -> Response {
    answered(shown(&desk, connection, &response, query).await, error_body)
}

async fn shown(
    desk: &Desk,
    connection: Connection,
    response: &str,
    query: ShowQuery,
) -> Result<Response, Trouble> {
    let hub = desk.hub()?;
    let (turn, message) = named(response)?;
    let thread = thread_of(desk, &turn, &message).await?;
    let terms = terms(hub, &thread, &turn, &message).await?;
    let answer = ended(hub, &thread, &turn, &message).await?;
    let answer = match answer {
        Some(answer) => answer,
        None => find(desk, connection, &thread, &message).await?,
    };
    if query.stream.unwrap_or(false) {
        let resume = match (query.starting_after, &answer) {
            (None, _) => Resume::Start,
            (Some(after), Answer::Live(_)) => Resume::After(after),
            // The pieces are not known any more.
            (Some(after), Answer::Stored(_) | Answer::Failed(_) | Answer::Stopped) => Resume::EndAfter(after),
        };
        return Ok(stream(Responses::new(terms, resume), message, answer));
    }
    let make = || Responses::new(terms.clone(), Resume::Start);
    match answer {
        Answer::Live(_) => Ok(json(begun(make()))),
        ended => Ok(json(whole(hub, &thread, make, message, ended).await?.object())),
    }
}

pub(in crate::routes) async fn cancel(
    desk: Desk,
    Params(response): Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Response {
    let outcome = async {
        let (actor, hub) = (desk.actor(&headers)?, desk.hub()?);
        let (turn, message) = named(&response)?;
        let thread = thread_of(&desk, &turn, &message).await?;
        let terms = terms(hub, &thread, &turn, &message).await?;
        let make = || Responses::new(terms.clone(), Resume::Start);
        let mut answer = ended(hub, &thread, &turn, &message).await?;
        if answer.is_none() {
            acts::perform(hub, actor, thread.agent(), ActKind::StopTurn(turn.clone())).await?;
        }
        for _ in 0..CANCEL_LOOKS {
            if answer.is_some() {
                break;
            }
            tokio::time::sleep(CANCEL_PAUSE).await;
            answer = ended(hub, &thread, &turn, &message).await?;
        }
        match answer {
            Some(answer) => Ok(json(whole(hub, &thread, make, message, answer).await?.object())),
            None => Ok(json(begun(make()))),
        }
    };
    answered(outcome.await, error_body)
}

fn unknown() -> Problem {
    Problem::not_found("unknown_response", "there is no such response")
}

/// The turn and the answer that a response's id names.
fn named(response: &str) -> Result<(TurnId, MessageId), Problem> {
    let message = message_of(response).ok_or_else(unknown)?;
    let (turn, _) = TurnId::of_answer(&message).ok_or_else(unknown)?;
    Ok((turn, message))
}

async fn thread_of(desk: &Desk, turn: &TurnId, message: &MessageId) -> Result<ThreadId, Trouble> {
    let store = desk.store()?;
    if let Some(thread) = store.thread_of_turn(turn, message).await? {
        return desk.own(thread).ok_or_else(|| unknown().into());
    }
    let problem = match turns::thread_of(desk, turn).await {
        Ok(thread) => return Ok(thread),
        Err(problem) => problem,
    };
    // It may have ended meanwhile.
    let found = store.thread_of_turn(turn, message).await?.and_then(|thread| desk.own(thread));
    found.ok_or(Trouble::Problem(problem))
}

/// What became of the answer, if it has ended.
async fn ended(
    hub: &Hub,
    thread: &ThreadId,
    turn: &TurnId,
    message: &MessageId,
) -> Result<Option<Answer>, Trouble> {
    if let Some(stored) = reads::answer(hub.store(), thread, message).await? {
        return Ok(Some(Answer::Stored(stored)));
    }
    let run = TurnId::of_answer(message).map_or(0, |(_, run)| run);
    let failure = hub.store().run_failure(thread, turn, run).await?;
    Ok(failure.map(Answer::of_failure))
}

/// What every gateway knows of a response.
async fn terms(hub: &Hub, thread: &ThreadId, turn: &TurnId, message: &MessageId) -> Result<Terms, Trouble> {
    let row = hub.store().thread(thread).await?;
    let agent: Option<AgentId> = row.and_then(|row| row.named.agent);
    Ok(Terms {
        thread: thread.clone(),
        message: message.clone(),
        model: agent.unwrap_or_else(|| thread.agent()).name().to_owned(),
        created_at: opened_at(turn),
        background: false,
        previous_response_id: None,
        metadata: Metadata::EMPTY,
        // As calls that were made elsewhere, with their results: by their shape the others ask a client to make them.
        calls: Calls::Hosted,
    })
}

/// Turns without a key bear the time in their id (a UUID of version 7); of others it is not known here.
fn opened_at(turn: &TurnId) -> Timestamp {
    let unique = turn.as_str().split_once('-').map(|(_, unique)| unique).unwrap_or_default();
    let id = Uuid::try_parse(unique).ok().filter(|id| id.get_version_num() == 7);
    let time = id.and_then(|id| id.get_timestamp());
    Timestamp(time.map_or(0, |time| {
        let (seconds, nanos) = time.to_unix();
        i64::try_from(seconds).unwrap_or(0) * 1_000 + i64::from(nanos) / 1_000_000
    }))
}
