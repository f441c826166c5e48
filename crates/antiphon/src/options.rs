//! The command line. Every flag is also a variable; `--help` shows both.

mod auth;
mod config;
mod copies;
mod embeddings;
mod gateway;
mod mcp;
mod operator;
mod prices;
mod process;
mod settings;
mod tenants;
mod traces;
mod values;
mod variables;
mod worker;
mod workflow;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use model::PartitionCount;

use self::process::STREAMS_HEADING;
use self::values::partitions;
use crate::client::{self, Call};
use crate::exit::ExitError;
use crate::output::OutputArguments;

pub(crate) use self::config::{CheckedCommand, Config, ConfigCheck, ConfigCommand};
pub(crate) use self::copies::*;
pub(crate) use self::embeddings::EmbeddingsArguments;
pub(crate) use self::gateway::GatewaySettings;
pub(crate) use self::mcp::{Mcp, McpSettings};
pub(crate) use self::operator::*;
pub(crate) use self::prices::Prices;
pub(crate) use self::process::{Log, Metrics, NatsArguments, ProcessArguments, Servers, StreamArguments};
pub(crate) use self::tenants::{ReopenDefaultTenant, Tenants, TenantsCommand};
pub(crate) use self::variables::misspelt_variable;
pub(crate) use self::worker::WorkerSettings;
pub(crate) use self::workflow::{EngineName, InterfaceName, Workflow, WorkflowSettings};

/// Output of `--version`: two builds of one version differ in their commits.
const VERSION_AND_REVISION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_REVISION"), ")");

/// Ordered, durable answers of AI workflows: from NATS to clients and Postgres.
#[derive(Debug, Parser)]
#[command(name = "antiphon", version = VERSION_AND_REVISION, max_term_width = 110)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) log: Log,
}

impl Options {
    /// The command line, including the commands that call the API.
    pub(crate) fn whole_command() -> clap::Command {
        client::with_commands(Self::command())
    }

    /// Reads the command line and the environment.
    ///
    /// # Errors
    /// A wrong command line, or the help that was asked for.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let mut command = Self::whole_command();
        let matches = command.clone().try_get_matches()?;
        if let Some(call) = Call::read(&matches) {
            let log = Log::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
            return Ok(Self { command: Command::Api(Box::new(call)), log });
        }
        let mut options = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let Command::Config(Config { command: ConfigCommand::Check(check) }) = &mut options.command {
            command.build();
            check.settings = settings::settings_in_force(&command, &matches);
        }
        Ok(options)
    }
}

#[expect(clippy::large_enum_variant, reason = "there is one, made when the process starts")]
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create or update the tables in Postgres and the streams in NATS.
    Migrate(Migrate),
    /// Own partitions: order, stream and store messages.
    Worker(Worker),
    /// Serve HTTP: the API, event streams and history.
    Gateway(Gateway),
    /// Serve the reasoning tools to models over the Model Context Protocol.
    Mcp(Mcp),
    /// Answer turn requests with a model or a script.
    Workflow(Workflow),
    /// Migrate, then run every role in this one process, for small installations. The workflow
    /// service runs only if its engine, a model or a script is set.
    All(All),
    /// Exit with 0 if the process at the metrics address, or at another one, is ready, otherwise
    /// with 1.
    Healthcheck(Healthcheck),
    /// Show the settings with which a command would run.
    Config(Config),
    /// Show and repair batches.
    Batches(Batches),
    /// Export and import threads without the API: all tenants at once, formats of other systems,
    /// and fleets that are down.
    #[command(name = "database")]
    Copies(Copies),
    /// Erase a thread, a user or a tenant without the API: for a fleet that is down, and for the
    /// default tenant. Without --yes it only lists what there is.
    Erase(Erase),
    /// Make, list, rotate and revoke API keys.
    Keys(Keys),
    /// Erase tenants, list erased ones, and let the name of one be used again.
    Tenants(Tenants),
    /// Check Postgres, NATS and the fleet, and print each problem with what to do about it. Changes
    /// nothing. Exit code 1 if there is a problem.
    Doctor(Doctor),
    /// List the owners of partitions, and change the number of partitions.
    Partitions(Partitions),
    /// List, add, correct, forget, export and import what agents remember.
    Memory(Memory),
    /// A call of the API, or the error of its command line.
    #[command(skip)]
    Api(Box<Result<Call, ExitError>>),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) servers: Servers,
    #[command(flatten)]
    pub(crate) streams: StreamArguments,
    /// Number of partitions, a power of two. Once the fleet is set up it must be the existing
    /// number; `antiphon partitions change` changes it.
    #[arg(long, env = "ANTIPHON_PARTITIONS", default_value = "8", value_parser = partitions, help_heading = STREAMS_HEADING)]
    pub(crate) partitions: PartitionCount,
    #[command(flatten)]
    pub(crate) embeddings: EmbeddingsArguments,
    /// Whether to take over streams of another installation, for a new database into which its data
    /// was imported; stop the other fleet first. A restored dump keeps its id and does not need
    /// this.
    #[arg(long, conflicts_with = "check")]
    pub(crate) adopt_streams: bool,
    /// Whether to give this database a new id, for a copy that will run beside the original, before
    /// any process of it starts. From then on streams of the original are refused.
    #[arg(long, conflicts_with_all = ["check", "adopt_streams"])]
    pub(crate) new_installation: bool,
    /// Whether to only check the tables: exit with 0 if they are those that this version needs,
    /// otherwise with 1 and what is missing or newer. Needs only Postgres.
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) servers: Servers,
    #[command(flatten)]
    pub(crate) embeddings: EmbeddingsArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Worker {
    #[command(flatten)]
    pub(crate) process: ProcessArguments,
    #[command(flatten)]
    pub(crate) worker: WorkerSettings,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) embeddings: EmbeddingsArguments,
    /// Number of partitions that the fleet must have; with another number the worker does not
    /// start. Not checked when absent.
    #[arg(long, env = "ANTIPHON_PARTITIONS", value_parser = partitions, help_heading = STREAMS_HEADING)]
    pub(crate) partitions: Option<PartitionCount>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Gateway {
    #[command(flatten)]
    pub(crate) process: ProcessArguments,
    #[command(flatten)]
    pub(crate) gateway: GatewaySettings,
    #[command(flatten)]
    pub(crate) embeddings: EmbeddingsArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct All {
    #[command(flatten)]
    pub(crate) process: ProcessArguments,
    #[command(flatten)]
    pub(crate) streams: StreamArguments,
    #[command(flatten)]
    pub(crate) worker: Box<WorkerSettings>,
    #[command(flatten)]
    pub(crate) gateway: GatewaySettings,
    #[command(flatten)]
    pub(crate) mcp: McpSettings,
    #[command(flatten)]
    pub(crate) workflow: WorkflowSettings,
    #[command(flatten)]
    pub(crate) embeddings: EmbeddingsArguments,
    /// Number of partitions, a power of two. Once the fleet is set up it must be the existing
    /// number; `antiphon partitions change` changes it.
    #[arg(long, env = "ANTIPHON_PARTITIONS", default_value = "8", value_parser = partitions, help_heading = STREAMS_HEADING)]
    pub(crate) partitions: PartitionCount,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Healthcheck {
    /// Address to check instead of the metrics address of this machine, as host:port: for example
    /// that of a gateway's service.
    pub(crate) addr: Option<String>,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }
}
