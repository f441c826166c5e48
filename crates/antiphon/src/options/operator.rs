//! Options of the commands that work on Postgres and NATS themselves.

use std::path::PathBuf;
use std::time::Duration;

use auth::AccessRole;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use model::{AgentId, PartitionCount, Tenant, ThreadId};
use store::{ErasedData, ErasedOwner};

use super::process::{DATABASE_HEADING, DATABASE_HELP, NatsArguments};
use super::values::partitions;
use crate::exit::ExitError;
use crate::output::OutputArguments;

/// Address of Postgres and format of the output.
#[derive(Debug, Clone, Args)]
pub(crate) struct Database {
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, help = DATABASE_HELP, help_heading = DATABASE_HEADING)]
    pub(crate) database_url: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Batches {
    #[command(subcommand)]
    pub(crate) command: BatchesCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BatchesCommand {
    /// Find batches with damage that no turn leaves behind, and report the reason. Exit code 1
    /// while damage remains.
    Check(CheckBatches),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckBatches {
    /// Thread to check; without it, all threads.
    #[arg(value_parser = thread)]
    pub(crate) thread: Option<ThreadId>,
    /// Whether to repair what is possible; without it nothing is changed.
    #[arg(long)]
    pub(crate) repair: bool,
    /// Actor in the audit log.
    #[arg(long, default_value = "command", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Memory {
    #[command(subcommand)]
    pub(crate) command: MemoryCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum MemoryCommand {
    /// Write the facts of an agent as JSON Lines, including superseded ones.
    Export(ExportMemory),
    /// Import exported facts into an agent. A second import changes nothing.
    Import(ImportMemory),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ExportMemory {
    /// Agent whose facts are exported.
    #[arg(value_parser = AgentId::parse)]
    pub(crate) agent: AgentId,
    /// Path of the output file; standard output without it.
    #[arg(long)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ImportMemory {
    /// Agent that will remember them.
    #[arg(value_parser = AgentId::parse)]
    pub(crate) agent: AgentId,
    /// Path of the input file; standard input without it.
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Actor in the audit log.
    #[arg(long, default_value = "command", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// What is erased, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct Erase {
    /// Thread to erase.
    #[arg(long, value_parser = thread, required_unless_present_any = ["user", "tenant"], conflicts_with_all = ["user", "tenant"])]
    thread: Option<ThreadId>,
    /// Tenant, `-` for the default one: its threads, agents, settings and keys. With --user only
    /// the threads of that user.
    #[arg(long)]
    tenant: Option<String>,
    /// User whose threads are erased: those whose metadata has this `user_id`, in the default
    /// tenant or in --tenant. The user's name in the audit log is erased too.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    user: Option<String>,
    /// Whether to erase; without it nothing is erased.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Actor in the receipt.
    #[arg(long, default_value = "command", value_parser = actor)]
    pub(crate) actor: String,
    /// Whether to leave the streams alone: their entries are deleted some time after they were
    /// used. The ids of the threads cannot be reused until they are erased without this flag.
    #[arg(long)]
    pub(crate) database_only: bool,
    /// Timeout in seconds for workers to read the streams up to their ends.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    wait_seconds: u32,
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    #[command(flatten)]
    pub(crate) database: Database,
}

impl Erase {
    /// What the flags name.
    pub(crate) fn data(&self) -> Result<ErasedData, ExitError> {
        if let Some(thread) = &self.thread {
            return Ok(ErasedData::Thread(thread.clone()));
        }
        let named = self.tenant.as_deref().filter(|name| *name != "-");
        let of = named.map(tenant).transpose().map_err(ExitError::Configuration)?;
        Ok(ErasedData::Owner(match &self.user {
            Some(user) => ErasedOwner::User(of, user.clone()),
            None => ErasedOwner::Tenant(of),
        }))
    }

    pub(crate) fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds.into())
    }
}

pub(super) fn thread(text: &str) -> Result<ThreadId, String> {
    ThreadId::parse(text).map_err(|error| error.to_string())
}

/// Checks an actor like the HTTP API.
pub(super) fn actor(text: &str) -> Result<String, String> {
    let is_fit = (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_fit.then(|| text.to_owned()).ok_or_else(|| "it must have 1 to 128 visible ASCII characters".to_owned())
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make the first API key of a tenant, with access to the database. Its text is printed once,
    /// to standard output, and stored nowhere. A user with a key makes further ones with `keys
    /// create`.
    CreateFirst(CreateKey),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CreateKey {
    /// Name of the key, for people.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// Role of the key: viewer, operator or admin.
    #[arg(long, value_parser = role)]
    pub(crate) role: AccessRole,
    /// Scopes that restrict the role, separated by commas: threads:read, threads:write,
    /// agents:read, tasks:write, agents:operate, agents:configure, audit:read, dead-letters:read,
    /// dead-letters:operate, keys:manage, fleet:read, fleet:operate, data:erase, data:export,
    /// data:import, reasoning:read, reasoning:write, memory:read, memory:write.
    #[arg(long, value_delimiter = ',')]
    pub(crate) scopes: Option<Vec<String>>,
    /// Tenant of the key; the default one without it.
    #[arg(long, value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,
    /// Lifetime of the key in days; without it the key does not expire.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: Option<u32>,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Partitions {
    #[command(subcommand)]
    pub(crate) command: PartitionsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PartitionsCommand {
    /// List the partitions with their owners, and a change of their number that is in progress.
    List(ListPartitions),
    /// Change the number of partitions, while no worker runs. After an interruption run it again to
    /// continue.
    Change(ChangePartitions),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListPartitions {
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChangePartitions {
    /// New number of partitions: a power of two from 1 to 1,024.
    #[arg(value_parser = partitions)]
    pub(crate) count: PartitionCount,
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    #[command(flatten)]
    pub(crate) database: Database,
}

pub(super) fn tenant(text: &str) -> Result<Tenant, String> {
    Tenant::parse(text).map_err(|error| error.to_string())
}

fn role(text: &str) -> Result<AccessRole, String> {
    AccessRole::of_name(text).ok_or_else(|| "it must be viewer, operator or admin".to_owned())
}
