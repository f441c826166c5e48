//! The command line about settings.

use clap::{Args, Subcommand};

use super::settings::Setting;
use super::{All, Gateway, Mcp, Migrate, Worker, Workflow};
use crate::output::OutputFormat;

#[derive(Debug, Clone, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting of a command with its value and source, without connecting to anything.
    /// Exit code 2 if the command would not start with them.
    Check(ConfigCheck),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigCheck {
    #[command(subcommand)]
    pub(crate) command: CheckedCommand,
    // The id: `format` is that of the log.
    /// Output format: `table`, for people, or `json`, for programs.
    #[arg(id = "form", short = 'o', long = "format", value_enum, global = true, default_value_t = OutputFormat::Table)]
    pub(crate) format: OutputFormat,
    /// What counts, once everything has been read.
    #[arg(skip)]
    pub(crate) settings: Vec<Setting>,
}

/// The commands that run a fleet, with all of their flags.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CheckedCommand {
    /// The settings of `antiphon migrate`.
    Migrate(Box<Migrate>),
    /// The settings of `antiphon worker`.
    Worker(Box<Worker>),
    /// The settings of `antiphon gateway`.
    Gateway(Box<Gateway>),
    /// The settings of `antiphon mcp`.
    Mcp(Box<Mcp>),
    /// The settings of `antiphon workflow`.
    Workflow(Box<Workflow>),
    /// The settings of all roles together, as `antiphon all` has them.
    All(Box<All>),
}
