//! Writes threads as JSON Lines, from the database.

use batches::export_import::ExportCounts;
use serde_json::json;
use store::Store;
use transfer::{ExportOptions, ExportScope, ExportSink, Exported};

use super::lookup::stored;
use super::progress::Progress;
use crate::exit::ExitError;
use crate::options::Export;
use crate::output::{self, OutputFormat};
use crate::output_file::OutputFile;

pub(super) async fn run(store: &Store, options: &Export) -> Result<(), ExitError> {
    let scope = scope(store, options).await?;
    let mut sink = FileSink { file: OutputFile::open(options.output.as_deref())?, progress: Progress::new() };
    let exported = transfer::export(store, &scope, ExportOptions::default(), &mut sink).await?;
    sink.file.close()?;
    sink.progress.clear();
    let counts = exported.counts;
    if options.output.is_some() {
        let json = json!(counts);
        output::print(options.database.output.format(), &json, || output::key_value_table(&json))?;
    } else if options.database.output.format() == OutputFormat::Table {
        let said =
            format!("{} threads, {} batches, {} messages", counts.threads, counts.batches, counts.messages);
        output::eprint_line(&format!("{said}, {} compactions", counts.compactions));
    }
    complaint(&exported)
}

/// The threads that the options name.
///
/// # Errors
/// A named thread does not exist.
pub(super) async fn scope(store: &Store, options: &Export) -> Result<ExportScope, ExitError> {
    for thread in &options.threads {
        stored(store, thread).await?;
    }
    Ok(if options.all { ExportScope::All } else { ExportScope::Threads(options.threads.clone()) })
}

/// Writes to a file, and shows the progress.
struct FileSink {
    file: OutputFile,
    progress: Progress,
}

impl ExportSink for FileSink {
    type Error = ExitError;

    async fn write(&mut self, lines: String) -> Result<(), ExitError> {
        self.file.write(&lines)
    }

    fn show(&mut self, counts: ExportCounts) {
        self.progress.show(|| format!("{} messages of {} threads", counts.messages, counts.threads));
    }
}

/// An error that names the damaged batches, which an import would refuse.
fn complaint(exported: &Exported) -> Result<(), ExitError> {
    let Some((thread, what)) = exported.damaged.first() else { return Ok(()) };
    Err(ExitError::Failed(format!(
        "the file is complete, but damage is stored in {} places, first in thread {thread}: {what}; `antiphon batches check` \
         says more, and an import takes what is damaged only with --keep-invalid",
        exported.damaged.len()
    )))
}
