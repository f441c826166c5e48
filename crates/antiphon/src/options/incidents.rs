//! The command lines of incidents and of tool calls of unknown outcome.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use model::{PartitionId, ThreadId, TurnId};

use super::operator::{Database, thread};
use super::process::NatsArguments;
use super::timers::Act;

#[derive(Debug, Clone, Args)]
pub(crate) struct Incidents {
    #[command(subcommand)]
    pub(crate) command: IncidentsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum IncidentsCommand {
    /// Unacknowledged incidents, the newest first: partition, what happened, and the sequences of its stream.
    List(ListIncidents),
    /// Mark the incidents of a partition, or of all, as seen: the worker that owns it is ready again.
    Acknowledge(AcknowledgeIncidents),
    /// Tool calls with an unknown outcome, the newest first: their turns wait for a decision.
    ToolCalls(ListToolCalls),
    /// Decide about such a tool call: have the tool called again, or give its result.
    Decide(DecideToolCall),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListToolCalls {
    /// Whether to include decided ones.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DecideToolCall {
    /// The thread of the turn.
    #[arg(value_parser = thread)]
    pub(crate) thread: ThreadId,
    /// The turn, as `tool-calls` shows it.
    #[arg(value_parser = turn)]
    pub(crate) turn: TurnId,
    /// The call, as `tool-calls` shows it.
    pub(crate) call: String,
    /// Whether the tool is called again.
    #[arg(long, required_unless_present = "result", conflicts_with = "result")]
    pub(crate) run_again: bool,
    /// Result text with which the turn continues; the tool is not called again.
    #[arg(long)]
    pub(crate) result: Option<String>,
    /// Whether the model reads the result as an error.
    #[arg(long, requires = "result")]
    pub(crate) error: bool,
    #[command(flatten)]
    pub(crate) act: Act,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListIncidents {
    /// Whether to include acknowledged ones.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AcknowledgeIncidents {
    /// The number of a partition, or `all`.
    #[arg(value_parser = which)]
    pub(crate) which: Which,
    /// Name of the person who has seen them.
    #[arg(long, default_value = "cli", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) by: String,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `None`: all partitions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Which(pub(crate) Option<PartitionId>);

fn which(text: &str) -> Result<Which, String> {
    if text == "all" {
        return Ok(Which(None));
    }
    let number = text.parse().map_err(|_| "it must be the number of a partition, or `all`".to_owned())?;
    Ok(Which(Some(PartitionId(number))))
}

fn turn(text: &str) -> Result<TurnId, String> {
    TurnId::parse(text).map_err(|error| error.to_string())
}
