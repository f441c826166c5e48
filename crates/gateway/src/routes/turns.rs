//! Turns under way.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use model::{ActKind, ThreadId, TurnId};
use tokio::time::Instant;
use wire::explain::About;

use super::Desk;
use crate::body::Empty;
use crate::params::{self, Params};
use crate::problem::Problem;
use crate::{acts, owner};

/// An input is stored before its owner knows of it: who asks at once asks again after these pauses.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(250), Duration::from_millis(500)];
/// Between two questions while nobody owns the turn, or its owner has not read all there is.
const OWNER_PAUSE: Duration = Duration::from_millis(250);

pub(super) fn turn_id(text: &str) -> Result<TurnId, Problem> {
    params::id("turn", text, TurnId::parse)
}

pub(super) async fn stop(
    desk: Desk,
    Params(turn): Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    let (turn, actor) = (turn_id(&turn)?, desk.actor(&headers)?);
    let hub = desk.hub()?;
    let thread = thread_of(&desk, &turn).await?;
    let acted = acts::perform(hub, actor, thread.agent(), ActKind::StopTurn(turn)).await?;
    Ok(acted.into_response())
}

/// Only its owner knows the thread of a turn that has just begun, and without it the act has no subject: for some time,
/// which is longer than that of a takeover, the owner is waited for.
pub(super) async fn thread_of(desk: &Desk, turn: &TurnId) -> Result<ThreadId, Problem> {
    let hub = desk.hub()?;
    let about = About::Turn(turn.clone());
    let mut pauses = PAUSES.into_iter();
    let give_up_at = Instant::now() + Duration::from_millis(hub.context().limits.owner_patience_ms);
    loop {
        let explained = owner::why(hub.context(), turn.bucket(), &about).await;
        let is_away = explained.as_ref().is_none_or(owner::is_catching_up);
        let active = explained.and_then(|explained| explained.active).filter(|active| active.turn == *turn);
        let found = match active {
            Some(active) => Some(active.thread),
            None => hub.store().thread_of_open_turn(turn).await?,
        };
        // Another tenant's is looked for as long as one that nobody has.
        if let Some(thread) = found.and_then(|thread| desk.own(thread)) {
            return Ok(thread);
        }
        let pause = if is_away { Some(OWNER_PAUSE) } else { pauses.next() };
        match pause {
            Some(pause) if Instant::now() + pause < give_up_at => tokio::time::sleep(pause).await,
            _ if is_away => {
                let detail = "nobody owns the turn at the moment, and it is not known otherwise";
                return Err(Problem::unavailable("no_owner", detail));
            }
            _ => {
                let detail = "there is no such turn under way or waiting: it has ended, or it never was";
                return Err(Problem::not_found("unknown_turn", detail));
            }
        }
    }
}
