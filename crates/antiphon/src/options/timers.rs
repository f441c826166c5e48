//! The command lines about follow-ups and schedules.

use clap::{Args, Subcommand};
use model::{AgentId, ScheduleName, ThreadId, TimerId};
use serde_json::{Map, Value};

use super::operator::{Database, actor};
use super::process::NatsArguments;

#[derive(Debug, Clone, Args)]
pub(crate) struct FollowUps {
    #[command(subcommand)]
    pub(crate) command: FollowUpsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum FollowUpsCommand {
    /// The follow-ups of a thread, the newest first: pending, sent, and suppressed ones with the reason.
    List(ListFollowUps),
    /// The turn that has armed a follow-up, and the verdict of each rule. An input that is not stored yet counts if NATS and the thread's
    /// owner answer.
    Show(ShowFollowUp),
    /// Change the due time of a pending follow-up.
    Snooze(SnoozeFollowUp),
    /// Cancel a pending follow-up.
    Cancel(CancelFollowUp),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListFollowUps {
    /// The thread.
    #[arg(value_parser = thread)]
    pub(crate) thread: ThreadId,
    /// Id of a follow-up: only those armed before it are listed.
    #[arg(long, value_parser = timer)]
    pub(crate) before: Option<TimerId>,
    /// Maximum number of entries.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShowFollowUp {
    /// The thread.
    #[arg(value_parser = thread)]
    pub(crate) thread: ThreadId,
    /// Id of the follow-up, as `list` shows it.
    #[arg(value_parser = timer)]
    pub(crate) follow_up: TimerId,
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SnoozeFollowUp {
    /// The thread.
    #[arg(value_parser = thread)]
    pub(crate) thread: ThreadId,
    /// Id of the follow-up, as `list` shows it.
    #[arg(value_parser = timer)]
    pub(crate) follow_up: TimerId,
    /// Time in seconds from now until it is due: at most thirty days.
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// Time at which it is due, for example 2026-12-24T18:00:00Z.
    #[arg(long)]
    pub(crate) until: Option<String>,
    #[command(flatten)]
    pub(crate) act: Act,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CancelFollowUp {
    /// The thread.
    #[arg(value_parser = thread)]
    pub(crate) thread: ThreadId,
    /// Id of the follow-up, as `list` shows it.
    #[arg(value_parser = timer)]
    pub(crate) follow_up: TimerId,
    #[command(flatten)]
    pub(crate) act: Act,
}

/// What every command needs that an owner carries out.
#[derive(Debug, Clone, Args)]
pub(crate) struct Act {
    /// Actor in the audit log.
    #[arg(long, default_value = "command", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Schedules {
    #[command(subcommand)]
    pub(crate) command: SchedulesCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SchedulesCommand {
    /// The schedules of an agent, with the next occurrence of each.
    List(ListSchedules),
    /// One schedule, and its next five occurrences.
    Show(ShowSchedule),
    /// Create a schedule, or replace the one of that name.
    Put(PutSchedule),
    /// Delete a schedule. Tasks that it has sent stay.
    Delete(DeleteSchedule),
    /// The next occurrences of a schedule; nothing is stored.
    DryRun(DryRunSchedule),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListSchedules {
    /// The agent.
    #[arg(value_parser = agent)]
    pub(crate) agent: AgentId,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShowSchedule {
    /// The agent.
    #[arg(value_parser = agent)]
    pub(crate) agent: AgentId,
    /// Name of the schedule.
    #[arg(value_parser = schedule)]
    pub(crate) name: ScheduleName,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PutSchedule {
    #[command(flatten)]
    pub(crate) what: NewSchedule,
    #[command(flatten)]
    pub(crate) act: Act,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DryRunSchedule {
    #[command(flatten)]
    pub(crate) what: NewSchedule,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// A schedule as it is to be: what each of these may be is said where it is checked.
#[derive(Debug, Clone, Args)]
pub(crate) struct NewSchedule {
    /// The agent.
    #[arg(value_parser = agent)]
    pub(crate) agent: AgentId,
    /// Name of the schedule.
    #[arg(value_parser = schedule)]
    pub(crate) name: ScheduleName,
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[arg(long)]
    pub(crate) cron: Option<String>,
    /// Time of a single occurrence, instead of --cron: an instant, or wall clock time in the time zone.
    #[arg(long)]
    pub(crate) at: Option<String>,
    /// Time zone of the IANA database; UTC without it.
    #[arg(long)]
    pub(crate) time_zone: Option<String>,
    /// Rule for an occurrence while the task of the previous one is not done: skip (the default) or queue.
    #[arg(long)]
    pub(crate) overlap: Option<String>,
    /// Rule for occurrences that fell due while there was no worker: skip (the default) or one.
    #[arg(long)]
    pub(crate) missed: Option<String>,
    /// Text of each task.
    #[arg(long)]
    pub(crate) content: String,
    /// Metadata of each task, a JSON object.
    #[arg(long, value_parser = object)]
    pub(crate) metadata: Option<Object>,
    /// Whether it is stored without occurring.
    #[arg(long)]
    pub(crate) disabled: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteSchedule {
    /// The agent.
    #[arg(value_parser = agent)]
    pub(crate) agent: AgentId,
    /// Name of the schedule.
    #[arg(value_parser = schedule)]
    pub(crate) name: ScheduleName,
    #[command(flatten)]
    pub(crate) act: Act,
}

/// An object of JSON.
type Object = Map<String, Value>;

fn object(text: &str) -> Result<Object, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))
}

fn thread(text: &str) -> Result<ThreadId, String> {
    ThreadId::parse(text).map_err(|error| error.to_string())
}

fn agent(text: &str) -> Result<AgentId, String> {
    AgentId::parse(text).map_err(|error| error.to_string())
}

fn timer(text: &str) -> Result<TimerId, String> {
    TimerId::parse(text).map_err(|error| error.to_string())
}

fn schedule(text: &str) -> Result<ScheduleName, String> {
    ScheduleName::parse(text).map_err(|error| error.to_string())
}
