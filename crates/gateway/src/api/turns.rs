//! State and control of turns.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path;
use http_server::extract::path::PathParam;
use model::{ControlKind, FinishReason, QueryTarget, ThreadId, TimerId, TurnId, WaitReason};
use protocols::AnswerUsage;
use serde::Serialize;
use serde_json::{Value, json};
use store::{StoredTurnTimes, TurnState};
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::api::places;
use crate::api::respond::json_no_store;
use crate::api::views::{self, PlaceView, ReasonView};
use crate::app::request_context::RequestContext;
use crate::commands::{control, owner_query};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TURNS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/v1/turns/{turn}", "getTurn", "Show a turn and its state", get)
            .tag(TURNS)
            .scope(Scope::ReadThreads)
            .response::<TurnDetail>(200, "The turn", turn_example())
            .errors(&[ErrorCode::UnknownTurn, ErrorCode::PartitionUnavailable]),
        Operation::post("/v1/turns/{turn}/stop", "stopTurn", "Stop a turn", stop)
            .tag(TURNS)
            .description("The partial answer is stored and marked. The request waits a few seconds for a worker that owns the turn.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownTurn, ErrorCode::TurnEnded, ErrorCode::PartitionUnavailable]),
    ]
}

/// Pauses between repeated queries: an input is stored before its owner knows of it.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(250), Duration::from_millis(500)];
/// Pause between queries while no worker owns the turn, or its owner has not read everything.
const OWNER_PAUSE: Duration = Duration::from_millis(250);

pub(crate) fn turn_id(text: &str) -> Result<TurnId, Problem> {
    path::id("turn", text, TurnId::parse)
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownTurn)
}

/// The thread of an ended turn of which something is stored.
async fn ended_in(ctx: &RequestContext, turn: &TurnId) -> Result<Option<ThreadId>, Problem> {
    let thread = ctx.store()?.thread_of_turn(turn, &turn.input()).await?;
    Ok(thread.and_then(|thread| ctx.in_own_tenant(thread)))
}

/// A turn and its state.
#[derive(Serialize, ToSchema)]
pub(crate) struct TurnDetail {
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[schema(value_type = schemas::TurnStateSchema)]
    state: &'static str,
    /// Number of the run, from 0; rises by one after each failure. For a completed turn: the run of
    /// its answer.
    run: u32,
    /// The id of the answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    /// The reason why the turn waits; null while chunks come, and once the turn has ended.
    #[schema(required)]
    waiting: Option<ReasonView>,
    /// Null unless the turn waits for its beginning.
    #[schema(required)]
    place: Option<PlaceView>,
    /// The follow-up that opened the turn (a proactive message); null for other turns.
    #[schema(required)]
    follow_up: Option<TurnFollowUp>,
    /// Why the answer ended; null unless the turn is completed.
    #[schema(value_type = Option<protocols::schemas::FinishReasonSchema>, required)]
    finish_reason: Option<&'static str>,
    /// Total use of the answer's model calls; null unless the turn is completed and the use is
    /// known.
    #[schema(required)]
    usage: Option<AnswerUsage>,
    /// When the input was accepted; null when unknown.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    /// When the run that is in progress, or that answered, began; null when unknown.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    started_at: Option<String>,
    /// When the answer was complete or the last run failed; null while the turn has not ended.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    ended_at: Option<String>,
}

impl TurnDetail {
    fn with_times(self, times: StoredTurnTimes) -> Self {
        let StoredTurnTimes { accepted_at, started_at, ended_at } = times;
        let [created_at, started_at, ended_at] =
            [accepted_at, started_at, ended_at].map(|at| at.and_then(views::rfc3339));
        Self { created_at, started_at, ended_at, ..self }
    }
}

/// The follow-up of a turn.
#[derive(Serialize, ToSchema)]
pub(crate) struct TurnFollowUp {
    #[schema(value_type = schemas::FollowUpIdSchema)]
    follow_up_id: String,
    #[schema(value_type = schemas::TriggerTypeSchema)]
    trigger_type: String,
    /// The workflow's reason for the follow-up, for people who look for the cause.
    reason: String,
    /// The id of the turn whose end armed the follow-up.
    armed_by: String,
}

/// Returns the state from the owner, or else the stored state.
pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(turn): PathParam<String>,
) -> Result<Response, Problem> {
    let (turn, backend) = (turn_id(&turn)?, ctx.backend()?);
    let shown = |thread: &ThreadId, state, run, waiting: Option<WaitReason>| TurnDetail {
        turn_id: turn.as_str().to_owned(),
        thread_id: thread.name().to_owned(),
        state,
        run,
        message_id: turn.answer(run).as_str().to_owned(),
        waiting: waiting.map(|reason| ReasonView::new(backend, reason)),
        place: None,
        follow_up: None,
        finish_reason: None,
        usage: None,
        created_at: None,
        started_at: None,
        ended_at: None,
    };
    let mut pauses = PAUSES.into_iter();
    loop {
        let explained = owner_query::explain(backend, turn.bucket(), &QueryTarget::Turn(turn.clone())).await;
        let is_away = explained.as_ref().is_none_or(owner_query::is_catching_up);
        if let Some(explained) = explained
            && let Some(active) = explained.active.as_ref().filter(|active| active.turn == turn)
            && let Some(thread) = ctx.in_own_tenant(active.thread.clone())
        {
            let is_waiting = explained.waiting.iter().any(|waiting| waiting.turn == turn);
            let state = if is_waiting { "waiting" } else { "running" };
            let times = StoredTurnTimes {
                accepted_at: Some(active.accepted_at),
                started_at: active.started_at,
                ended_at: None,
            };
            let place = match is_waiting {
                true => places::of_turn(backend, &thread, &turn).await?,
                false => None,
            };
            let found = shown(&thread, state, active.run, active.waits_for).with_times(times);
            let found = TurnDetail { place, ..found };
            return show(&ctx, &thread, &turn, found).await;
        }
        let stored = match ended_in(&ctx, &turn).await? {
            Some(thread) => Some(thread),
            None => {
                backend.store().thread_of_open_turn(&turn).await?.and_then(|thread| ctx.in_own_tenant(thread))
            }
        };
        if let Some(thread) = stored {
            let (stored, times) = backend.store().timed_turn(&thread, &turn).await?.unzip();
            let found = match stored {
                Some(TurnState::Failed { run }) => Some(shown(&thread, "failed", run, None)),
                // Only the owner of the turn knows whether the turn runs or waits.
                Some(TurnState::Open { run }) => {
                    Some(shown(&thread, "waiting", run, Some(WaitReason::CatchingUp)))
                }
                Some(TurnState::Done { answer, report }) => {
                    let run = TurnId::of_answer(&answer).map_or(0, |(_, run)| run);
                    Some(TurnDetail {
                        finish_reason: report.finish_reason.map(FinishReason::name),
                        usage: report.usage.as_deref().map(AnswerUsage::from),
                        ..shown(&thread, "completed", run, None)
                    })
                }
                // The turn was dropped or erased between the two reads.
                Some(TurnState::Dropped) | None => None,
            };
            if let Some(found) = found {
                let found = found.with_times(times.unwrap_or_default());
                return show(&ctx, &thread, &turn, found).await;
            }
        }
        match pauses.next() {
            Some(pause) => tokio::time::sleep(pause).await,
            None if is_away => {
                let detail = "no worker owns the turn at the moment, and it is not stored";
                return Err(Problem::new(ErrorCode::PartitionUnavailable, detail));
            }
            None => return Err(unknown()),
        }
    }
}

/// Adds the follow-up that opened the turn, if it is still known.
async fn show(
    ctx: &RequestContext,
    thread: &ThreadId,
    turn: &TurnId,
    mut detail: TurnDetail,
) -> Result<Response, Problem> {
    if let Some(timer) = TimerId::of_turn(turn) {
        let row = ctx.store()?.follow_up(thread, &timer).await?;
        detail.follow_up = row.map(|row| {
            let text = |key: &str| row.body.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            TurnFollowUp {
                follow_up_id: row.timer.to_string(),
                trigger_type: text("trigger_type"),
                reason: text("reason"),
                armed_by: text("armed_by"),
            }
        });
    }
    Ok(json_no_store(detail))
}

pub(crate) async fn stop(
    ctx: RequestContext,
    PathParam(turn): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (turn, actor) = (turn_id(&turn)?, ctx.actor(&headers)?);
    let backend = ctx.backend()?;
    let thread = thread_of(&ctx, &turn).await?;
    let acted = control::execute(backend, actor, thread.agent(), ControlKind::StopTurn(turn)).await?;
    Ok(acted.into_response())
}

/// Only the owner knows the thread of a turn that has just begun, and without the thread a command
/// has no subject. So this waits for an owner, for longer than a takeover lasts.
pub(crate) async fn thread_of(ctx: &RequestContext, turn: &TurnId) -> Result<ThreadId, Problem> {
    look_for(ctx, turn, &PAUSES).await
}

/// Returns the thread of a turn that may not exist. An owner that has read everything is queried
/// only once.
pub(crate) async fn thread_if_known(ctx: &RequestContext, turn: &TurnId) -> Result<ThreadId, Problem> {
    look_for(ctx, turn, &[]).await
}

async fn look_for(ctx: &RequestContext, turn: &TurnId, pauses: &[Duration]) -> Result<ThreadId, Problem> {
    let backend = ctx.backend()?;
    let about = QueryTarget::Turn(turn.clone());
    let mut pauses = pauses.iter().copied();
    let give_up_at = Instant::now() + Duration::from_millis(backend.limits.owner_timeout_ms);
    loop {
        let explained = owner_query::explain(backend, turn.bucket(), &about).await;
        let is_away = explained.as_ref().is_none_or(owner_query::is_catching_up);
        let active = explained.and_then(|explained| explained.active).filter(|active| active.turn == *turn);
        let found = match active {
            Some(active) => Some(active.thread),
            None => backend.store().thread_of_open_turn(turn).await?,
        };
        // A turn of another tenant is refused after the same time as a turn that does not exist.
        if let Some(thread) = found.and_then(|thread| ctx.in_own_tenant(thread)) {
            return Ok(thread);
        }
        let pause = if is_away { Some(OWNER_PAUSE) } else { pauses.next() };
        match pause {
            Some(pause) if Instant::now() + pause < give_up_at => tokio::time::sleep(pause).await,
            _ if is_away => {
                let detail = "no worker owns the turn at the moment, and it is not stored";
                return Err(Problem::new(ErrorCode::PartitionUnavailable, detail));
            }
            _ if ended_in(ctx, turn).await?.is_some() => {
                return Err(Problem::from(ErrorCode::TurnEnded));
            }
            _ => return Err(unknown()),
        }
    }
}

fn turn_example() -> Value {
    let turn = "u01f3-0198c4d2e5f5";
    json!({
        "turn_id": turn, "thread_id": "hello", "state": "running", "run": 0, "message_id": format!("{turn}-a"),
        "waiting": {"reason": "no_workflow", "until": null, "message": WaitReason::NoWorkflow.message()},
        "place": null, "follow_up": null, "finish_reason": null, "usage": null, "created_at": "2026-11-22T11:49:44.123Z",
        "started_at": "2026-11-22T11:49:44.125Z", "ended_at": null,
    })
}
