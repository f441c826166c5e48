//! Operations of the API on follow-ups, schedules and tool calls for the binary's commands, with
//! the same checks and through the same owner.

use bus::Bus;
use http_server::error::Problem;
use model::{AgentId, GatewayId, PartitionCount, ScheduleName, ThreadId, TimerId, TurnId};
use runtime::Clock;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::api::follow_ups::{self, SnoozeBody};
use crate::api::schedules::{self, ScheduleBody, ScheduleDryRun, ScheduleView};
use crate::api::tool_incidents::{self, ToolDecisionBody, ToolIncidentView};
use crate::api::views::ControlResult;
use crate::backend::Backend;
use crate::config::GatewayLimits;

/// Why an operation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActRefusal {
    /// The request is invalid, whatever is stored.
    #[error("{0}")]
    Invalid(String),
    /// The stored state does not allow it, or a server does not answer.
    #[error("{0}")]
    Refused(String),
}

impl From<Problem> for ActRefusal {
    fn from(problem: Problem) -> Self {
        let detail = problem.detail().to_owned();
        if problem.is_about_input() { Self::Invalid(detail) } else { Self::Refused(detail) }
    }
}

/// Operations of an operator on data of any tenant. All of them need NATS and Postgres.
pub struct OperatorActs {
    backend: Backend,
    actor: String,
}

impl OperatorActs {
    /// `count`: the partitions of the installation; `actor`: the name for the audit log.
    pub fn new(bus: Bus, store: Store, count: PartitionCount, actor: &str) -> Self {
        let (limits, drain) = (GatewayLimits::default(), CancellationToken::new());
        let backend = Backend::new(GatewayId::of_number(0), bus, store, Clock::start(), count, limits, drain);
        Self { backend, actor: actor.to_owned() }
    }

    /// Moves a waiting follow-up to another time.
    ///
    /// # Errors
    /// See [`ActRefusal`].
    pub async fn snooze(
        &self,
        thread: &ThreadId,
        timer: &TimerId,
        body: &SnoozeBody,
    ) -> Result<ControlResult, ActRefusal> {
        let put_off = follow_ups::put_off(&self.backend, self.actor.clone(), thread, timer, body).await?;
        Ok(ControlResult::from(&put_off))
    }

    /// Cancels a waiting follow-up.
    ///
    /// # Errors
    /// See [`ActRefusal`].
    pub async fn cancel(&self, thread: &ThreadId, timer: &TimerId) -> Result<ControlResult, ActRefusal> {
        let ended = follow_ups::call_off(&self.backend, self.actor.clone(), thread, timer).await?;
        Ok(ControlResult::from(&ended))
    }

    /// Tool calls of unknown outcome, of all tenants; unless `all`, only undecided ones.
    ///
    /// # Errors
    /// See [`ActRefusal`].
    pub async fn tool_incidents(&self, all: bool) -> Result<Vec<ToolIncidentView>, ActRefusal> {
        Ok(tool_incidents::of_all_tenants(&self.backend, all).await?)
    }

    /// Decides about a tool call of unknown outcome.
    ///
    /// # Errors
    /// See [`ActRefusal`].
    pub async fn decide_tool_call(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
        call: &str,
        body: ToolDecisionBody,
    ) -> Result<ToolIncidentView, ActRefusal> {
        let (backend, actor) = (&self.backend, &self.actor);
        Ok(tool_incidents::decide_as(backend, actor, thread, turn, call, body).await?)
    }

    /// Whether a person's input waits or is in progress in the thread; `None` when its owner, which
    /// alone knows, does not answer.
    pub async fn has_open_input(&self, thread: &ThreadId) -> Option<bool> {
        follow_ups::has_open_input(&self.backend, thread).await
    }

    /// Stores a schedule, replacing any schedule of that name.
    ///
    /// # Errors
    /// See [`ActRefusal`].
    pub async fn put_schedule(
        &self,
        agent: &AgentId,
        name: &ScheduleName,
        body: ScheduleBody,
    ) -> Result<ScheduleView, ActRefusal> {
        let stored = schedules::store_checked(&self.backend, self.actor.clone(), agent, name, body);
        let (_, view) = stored.await?;
        Ok(view)
    }

    /// Deletes a schedule with its waiting occurrences.
    ///
    /// # Errors
    /// See [`ActRefusal`].
    pub async fn delete_schedule(
        &self,
        agent: &AgentId,
        name: &ScheduleName,
    ) -> Result<ControlResult, ActRefusal> {
        let (actor, agent, name) = (self.actor.clone(), agent.clone(), name.clone());
        let deleted = schedules::drop_stored(&self.backend, actor, agent, name).await?;
        Ok(ControlResult::from(&deleted))
    }
}

/// The times at which a schedule would occur, by the database's clock. Nothing is stored, and NATS
/// is not needed.
///
/// # Errors
/// See [`ActRefusal`].
pub async fn dry_run_schedule(store: &Store, body: ScheduleBody) -> Result<ScheduleDryRun, ActRefusal> {
    Ok(schedules::would_occur(store, body).await?)
}
