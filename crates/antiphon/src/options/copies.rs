//! Options of exports and imports without the API.

use std::path::PathBuf;

use batches::foreign::ForeignFormat;
use clap::{Args, Subcommand, ValueEnum};
use model::ThreadId;

use super::operator::{Database, thread};

#[derive(Debug, Clone, Args)]
pub(crate) struct Copies {
    #[command(subcommand)]
    pub(crate) command: CopiesCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CopiesCommand {
    /// Write threads as JSON Lines. Each thread is exported as it is at that time.
    Export(Export),
    /// Import exported threads, or messages of other systems. A second import changes nothing.
    Import(Import),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Export {
    /// Threads to export.
    #[arg(value_parser = thread, required_unless_present = "all", conflicts_with = "all")]
    pub(crate) threads: Vec<ThreadId>,
    /// Whether to export all threads.
    #[arg(long)]
    pub(crate) all: bool,
    /// Path of the output file; standard output without it. The file appears when it is complete.
    #[arg(long)]
    pub(crate) output: Option<PathBuf>,
    /// Output format. langchain: the messages of one thread as LangChain's `messages_from_dict`
    /// reads them; for several threads one line of JSON each, `{"thread_id", "messages"}`.
    #[arg(long, value_enum, default_value_t = ExportFormat::Antiphon)]
    pub(crate) to: ExportFormat,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Format of imports, without any loss.
    Antiphon,
    /// Messages of LangChain, for `messages_from_dict`.
    Langchain,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Import {
    /// Path of the input file; standard input without it.
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Path of a file with the progress of the import, from which an interrupted import continues.
    /// It is removed at the end.
    #[arg(long, conflicts_with = "from")]
    pub(crate) resume: Option<PathBuf>,
    /// Whether damaged batches are imported unchanged; no context ever shows them. Without it they
    /// are refused.
    #[arg(long, conflicts_with = "from")]
    pub(crate) keep_invalid: bool,
    /// Format of an input of another system; without it the input is an export. openai: messages
    /// with roles, of any provider; langgraph: LangChain's messages, or a checkpoint; chatgpt,
    /// claude, openwebui: the chats that these export (JSON, unpacked).
    #[arg(long, value_name = "openai|langgraph|chatgpt|claude|openwebui", value_parser = foreign_format)]
    pub(crate) from: Option<ForeignFormat>,
    /// Thread for the messages of another system. Without it chats become threads with their
    /// original ids.
    #[arg(long, value_parser = thread, requires = "from")]
    pub(crate) thread: Option<ThreadId>,
    /// Original id of the only chat to import.
    #[arg(long, value_name = "ID", requires = "from")]
    pub(crate) chat: Option<String>,
    /// Prefix, such as `<tenant>~`, of the ids of threads that are made from the ids of chats.
    #[arg(long, value_name = "TEXT", requires = "from", conflicts_with = "thread")]
    pub(crate) prefix: Option<String>,
    /// Whether to refuse an input of another system if something in it would be replaced or is not
    /// understood. Without it such messages are reported and kept as far as possible.
    #[arg(long, requires = "from")]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) database: Database,
}

fn foreign_format(name: &str) -> Result<ForeignFormat, String> {
    let names = ForeignFormat::ALL.map(ForeignFormat::name).join(", ");
    ForeignFormat::from_name(name).ok_or_else(|| format!("it must be one of {names}"))
}
