//! The form in which commands print what they found.

use clap::{Args, ValueEnum};

/// The form of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// The form of what is printed.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    // The id: `format` is that of the log.
    /// `table`, for people, or `json`, as the API answers.
    #[arg(id = "form", short = 'o', value_name = "FORMAT", value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
    /// The same as `-o json`.
    #[arg(long, conflicts_with = "form")]
    json: bool,
}

impl OutputArguments {
    pub(crate) fn format(&self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.format }
    }
}
