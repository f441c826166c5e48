//! Imports threads from exports, and messages of other systems.

mod foreign;
mod mark_file;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use batches::export_import::{ImportLimits, InvalidBatches};
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use store::{Store, StoreError};
use transfer::{
    ImportFault, ImportMark, ImportOptions, ImportReport, ImportReports, ImportSource, ImportTotals,
    ReportKind,
};

use self::mark_file::MarkFile;
use super::progress::Progress;
use crate::exit::ExitError;
use crate::options::Import;
use crate::output::{self, eprint_line};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

pub(super) async fn run(store: &Store, options: &Import) -> Result<(), ExitError> {
    let input = open(options.file.as_deref())?;
    let file = MarkFile::new(options.resume.as_deref());
    let mut run = ImportRun { input, file, progress: Progress::new(), totals: ImportTotals::default() };
    let report = match options.from {
        Some(format) => Some(run.foreign(store, format, options).await?),
        None => {
            run.exported(store, options.keep_invalid).await?;
            None
        }
    };
    run.progress.clear();
    let mut json = shown(&run.totals);
    if let Some(report) = &report {
        json["notes"] = json!(report.notes);
        json["left_out"] = report.left_out();
    }
    output::print(options.database.output.format(), &json, || output::key_value_table(&json))
}

fn open(path: Option<&Path>) -> Result<Box<dyn Read + Send>, ExitError> {
    let Some(path) = path else { return Ok(Box::new(io::stdin())) };
    let file = File::open(path)
        .map_err(|error| ExitError::Failed(format!("{} cannot be read: {error}", path.display())))?;
    Ok(Box::new(file))
}

fn shown(totals: &ImportTotals) -> Value {
    json!({
        "threads": totals.threads,
        "batches": totals.batches,
        "messages": totals.messages,
        "compactions": totals.compactions,
        "new_threads": totals.new_threads,
        "new_messages": totals.new_messages,
        "new_compactions": totals.new_compactions,
        "reasoning_sessions": totals.reasoning_sessions,
        "new_reasoning_sessions": totals.new_reasoning_sessions,
    })
}

/// The input of an import, and what is shown of it. The first refusal ends the import.
struct ImportRun {
    input: Box<dyn Read + Send>,
    file: MarkFile,
    progress: Progress,
    totals: ImportTotals,
}

impl ImportRun {
    async fn exported(&mut self, store: &Store, keep: bool) -> Result<(), ExitError> {
        let invalid_batches = if keep { InvalidBatches::Keep } else { InvalidBatches::Refuse };
        let limits = ImportLimits { invalid_batches, ..ImportLimits::default() };
        let options = ImportOptions { limits, ..ImportOptions::default() };
        let saved = self.file.read()?;
        match transfer::import(store, options, self, saved).await {
            Ok(_) => self.file.remove(),
            Err(ImportEnd::Exit(error)) => Err(error),
            Err(ImportEnd::Fault(fault)) => {
                self.progress.clear();
                let stored = format!("{} new messages before it are stored", self.totals.new_messages);
                Err(ExitError::Failed(format!("{fault}; {stored}, nothing after it")))
            }
        }
    }
}

/// Why an import ends early.
enum ImportEnd {
    Fault(ImportFault),
    Exit(ExitError),
}

impl From<ImportFault> for ImportEnd {
    fn from(fault: ImportFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<StoreError> for ImportEnd {
    fn from(error: StoreError) -> Self {
        Self::Exit(error.into())
    }
}

impl From<ImportEnd> for ExitError {
    fn from(end: ImportEnd) -> Self {
        match end {
            ImportEnd::Fault(fault) => Self::Failed(fault.to_string()),
            ImportEnd::Exit(error) => error,
        }
    }
}

impl ImportReports for ImportRun {
    type Error = ImportEnd;

    fn report(&mut self, report: ImportReport) -> Result<(), ImportEnd> {
        self.progress.clear();
        match report.kind {
            ReportKind::Refused => Err(ImportEnd::Exit(ExitError::Failed(report.text))),
            ReportKind::Note | ReportKind::LeftOut => {
                eprint_line(&report.text);
                Ok(())
            }
            // The error that ends the import names the place.
            ReportKind::Incomplete => Ok(()),
        }
    }

    fn stored(&mut self, mark: Option<&ImportMark>) -> Result<(), ImportEnd> {
        mark.map_or(Ok(()), |mark| self.file.write(mark)).map_err(ImportEnd::Exit)
    }

    fn show(&mut self, totals: &ImportTotals) {
        self.totals = *totals;
        self.progress.show(|| format!("{} messages of {} threads", totals.messages, totals.threads));
    }
}

impl ImportSource for ImportRun {
    async fn read(&mut self) -> Result<Option<Bytes>, ImportEnd> {
        let mut bytes = BytesMut::zeroed(READ_BYTES);
        let read = loop {
            match self.input.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let read = read.map_err(|error| {
            ImportEnd::Exit(ExitError::Failed(format!("the input cannot be read: {error}")))
        })?;
        bytes.truncate(read);
        Ok((read > 0).then(|| bytes.freeze()))
    }
}
