//! Acts: sent through the stream, done by the owner, seen in the audit.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use model::{AgentId, CommandId, Control, ControlKind};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::error::Problem;
use crate::forms;
use crate::streaming::registry::Hub;
use crate::commands::publish;

/// How long an answer waits for what became of the act.
const PATIENCE: Duration = Duration::from_secs(2);
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// What became of an act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acted {
    act: CommandId,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Done,
    Refused(String),
    /// The owner has not said yet. It will.
    Pending,
}

/// What became of an act.
#[derive(Serialize, ToSchema)]
pub(crate) struct ShownAct {
    #[schema(value_type = forms::ActName)]
    act_id: String,
    /// The owner has done it.
    done: bool,
    /// Why not, when its owner refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    refused: Option<String>,
}

impl Acted {
    /// Why the owner refused it, if it did.
    pub(crate) fn refused(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Refused(why) => Some(why),
            Outcome::Done | Outcome::Pending => None,
        }
    }
}

impl IntoResponse for Acted {
    fn into_response(self) -> Response {
        let status = match self.outcome {
            Outcome::Pending => StatusCode::ACCEPTED,
            Outcome::Done | Outcome::Refused(_) => StatusCode::OK,
        };
        let done = self.outcome == Outcome::Done;
        let refused = self.refused().map(str::to_owned);
        (status, Json(ShownAct { act_id: self.act.as_str().to_owned(), done, refused })).into_response()
    }
}

/// An id for an act of ours.
pub(crate) fn new_id() -> Result<CommandId, Problem> {
    let made = CommandId::parse(&Uuid::now_v7().simple().to_string());
    made.map_err(|error| Problem::bad_request("invalid_id", error.to_string()))
}

/// Sends an act and waits some time for what became of it.
pub(crate) async fn perform(
    hub: &Hub,
    actor: String,
    subject: AgentId,
    what: ControlKind,
) -> Result<Acted, Problem> {
    let act = Act { id: new_id()?, actor: actor.into(), subject, what };
    publish::send_act(hub.context(), &act).await?;
    let outcome = outcome(hub, &act).await;
    tracing::info!(act = %act.id, actor = %act.actor, subject = %act.subject, what = act.kind.name(),
        target = act.kind.target(), ?outcome, "an act was sent");
    Ok(Acted { act: act.id, outcome })
}

async fn outcome(hub: &Hub, act: &Control) -> Outcome {
    let give_up_at = Instant::now() + PATIENCE;
    let mut pause = FIRST_LOOK;
    loop {
        sleep(pause).await;
        // The act is stored; that the audit cannot be read at the moment changes nothing.
        let looked = timeout_at(give_up_at, hub.store().act(act.subject.as_str(), &act.id)).await;
        if let Ok(Ok(Some(row))) = looked {
            return row.error.map_or(Outcome::Done, Outcome::Refused);
        }
        if Instant::now() + pause > give_up_at {
            return Outcome::Pending;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
