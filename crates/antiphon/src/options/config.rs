//! Options of the commands that show settings.

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
    // The argument has another id, because `format` is the id of the log's format.
    /// Output format: `table`, for people, or `json`, for programs.
    #[arg(id = "form", short = 'o', long = "format", value_enum, global = true, default_value_t = OutputFormat::Table)]
    pub(crate) format: OutputFormat,
    /// The settings in force, filled in after parsing.
    #[arg(skip)]
    pub(crate) settings: Vec<Setting>,
}

/// The commands that run a fleet, with all of their flags.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CheckedCommand {
    /// Check the settings of `antiphon migrate`.
    Migrate(Box<Migrate>),
    /// Check the settings of `antiphon worker`.
    Worker(Box<Worker>),
    /// Check the settings of `antiphon gateway`.
    Gateway(Box<Gateway>),
    /// Check the settings of `antiphon mcp`.
    Mcp(Box<Mcp>),
    /// Check the settings of `antiphon workflow`.
    Workflow(Box<Workflow>),
    /// Check the settings of all roles together, for `antiphon all`.
    All(Box<All>),
}
