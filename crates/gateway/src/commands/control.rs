//! Control commands: sent through the stream, executed by the owner, recorded in the audit log.

use std::time::Duration;

use http_server::error::{ErrorCode, Problem};
use model::{AgentId, CommandId, Control, ControlKind};
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use crate::backend::Backend;
use crate::commands::publish;

/// Maximum time that a response waits for the outcome of the command.
const RESULT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_POLL: Duration = Duration::from_millis(10);
const MAX_POLL_PAUSE: Duration = Duration::from_millis(200);

const DONE: &str = "done";
const REJECTED: &str = "rejected";
const PENDING: &str = "pending";
/// Possible statuses of a control command.
pub(crate) const STATUSES: [&str; 3] = [DONE, REJECTED, PENDING];

/// The status of a decided command, from the error in the audit log.
pub(crate) fn decided(error: Option<&str>) -> &'static str {
    if error.is_some() { REJECTED } else { DONE }
}

/// The outcome of a control command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControlOutcome {
    act: CommandId,
    outcome: ControlState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ControlState {
    Done,
    Refused(String),
    /// The owner has not reported the outcome yet.
    Pending,
}

impl ControlOutcome {
    pub(crate) fn id(&self) -> &CommandId {
        &self.act
    }

    pub(crate) fn status(&self) -> &'static str {
        match self.outcome {
            ControlState::Done => DONE,
            ControlState::Refused(_) => REJECTED,
            ControlState::Pending => PENDING,
        }
    }

    /// Whether the owner has not reported the outcome yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.outcome == ControlState::Pending
    }

    /// The reason of the owner's refusal, if it refused.
    pub(crate) fn refused(&self) -> Option<&str> {
        match &self.outcome {
            ControlState::Refused(why) => Some(why),
            ControlState::Done | ControlState::Pending => None,
        }
    }
}

/// A new id for a control command.
pub(crate) fn new_id() -> Result<CommandId, Problem> {
    let made = CommandId::parse(&Uuid::now_v7().simple().to_string());
    made.map_err(|error| Problem::new(ErrorCode::InvalidId, error.to_string()))
}

/// Sends a control command and waits some time for its outcome.
pub(crate) async fn execute(
    backend: &Backend,
    actor: String,
    subject: AgentId,
    what: ControlKind,
) -> Result<ControlOutcome, Problem> {
    let act = send(backend, actor, subject, what).await?;
    let outcome = outcome(backend, &act).await;
    tracing::info!(act = %act.id, actor = %act.actor, subject = %act.subject, what = act.kind.name(),
        target = act.kind.target(), ?outcome, "an act was sent");
    Ok(ControlOutcome { act: act.id, outcome })
}

/// Sends a control command whose outcome is known already; its owner executes it and writes the
/// audit entry.
pub(crate) async fn send(
    backend: &Backend,
    actor: String,
    subject: AgentId,
    what: ControlKind,
) -> Result<Control, Problem> {
    let act = Control { id: new_id()?, actor: actor.into(), subject, kind: what };
    publish::publish_control(backend, &act).await?;
    Ok(act)
}

async fn outcome(backend: &Backend, act: &Control) -> ControlState {
    let give_up_at = Instant::now() + RESULT_TIMEOUT;
    let mut pause = FIRST_POLL;
    loop {
        sleep(pause).await;
        // The command is stored; a failed read of the audit log does not change that.
        let looked =
            timeout_at(give_up_at, backend.store().control_outcome(act.subject.as_str(), &act.id)).await;
        if let Ok(Ok(Some(row))) = looked {
            return row.error.map_or(ControlState::Done, ControlState::Refused);
        }
        if Instant::now() + pause > give_up_at {
            return ControlState::Pending;
        }
        pause = (pause * 2).min(MAX_POLL_PAUSE);
    }
}
