//! The command lines about follow-ups and schedules.

use clap::{Args, Subcommand};
use model::{AgentId, ScheduleName, ThreadId, TimerId};

use super::operator::Database;

#[derive(Debug, Clone, Args)]
pub(crate) struct FollowUps {
    #[command(subcommand)]
    pub(crate) command: FollowUpsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum FollowUpsCommand {
    /// The follow-ups of a thread, the newest first: those that wait, those that were sent, and those that were kept back, with the reason.
    List(ListFollowUps),
    /// Which turn has armed a follow-up, and what each rule says of it by what is stored: an input that is under way is not.
    Show(ShowFollowUp),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListFollowUps {
    /// The thread.
    #[arg(value_parser = thread)]
    pub(crate) thread: ThreadId,
    /// Only those that were armed before this one.
    #[arg(long, value_parser = timer)]
    pub(crate) before: Option<TimerId>,
    /// How many.
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
    /// The follow-up, as `list` shows it.
    #[arg(value_parser = timer)]
    pub(crate) follow_up: TimerId,
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
    /// The schedules of an agent, and when each occurs next.
    List(ListSchedules),
    /// One schedule, and its next five occurrences.
    Show(ShowSchedule),
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
    /// The name of the schedule.
    #[arg(value_parser = schedule)]
    pub(crate) name: ScheduleName,
    #[command(flatten)]
    pub(crate) database: Database,
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
