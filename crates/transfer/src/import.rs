//! Imports exports: lines are read as they come, and each thread is written in one transaction.
//!
//! A thread that is larger than [`PartLimits`] is written in several transactions, each of whole
//! batches, so that memory stays bounded. A second import of the same lines changes nothing. So an
//! import that was cut is completed by repeating it.

mod importer;
mod interface;
mod lines;
mod outcome;
mod sessions;

use batches::export_import::ExportReader;
use store::Store;

pub use self::importer::Importer;
pub use self::interface::{
    CutThread, ImportFault, ImportMark, ImportOptions, ImportReports, ImportSource, PartLimits, TenantOnly,
};
pub use self::outcome::{ImportReport, ImportSubject, ImportTotals, ReportKind};

use self::interface::ReadEnd;
use self::lines::Lines;

/// Imports an export from its beginning, or from a mark.
///
/// # Errors
/// A line is refused, the source or the store fails, or a report ends the import. What was stored
/// before stays.
pub async fn import<S: ImportSource>(
    store: &Store,
    options: ImportOptions,
    source: &mut S,
    from: Option<ImportMark>,
) -> Result<ImportTotals, S::Error> {
    let (limits, cut_thread) = (options.limits, options.cut_thread);
    let mut importer = Importer::new(store, options);
    let reader = match from {
        Some(mark) => {
            importer.resume(source, &mark).await?;
            ExportReader::resume(limits, mark.cursor)
        }
        None => ExportReader::new(limits),
    };
    let fault = match read(&mut importer, reader, Lines::new(limits.line_bytes), source).await {
        Ok(()) => return Ok(*importer.totals()),
        Err(ReadEnd::Fault(fault)) => fault,
        Err(ReadEnd::Other(error)) => {
            importer.abandon(source).await;
            return Err(error);
        }
    };
    match cut_thread {
        CutThread::Keep => importer.flush(source).await?,
        CutThread::Drop => importer.abandon(source).await,
    }
    Err(fault.into())
}

async fn read<S: ImportSource>(
    importer: &mut Importer,
    mut reader: ExportReader,
    mut lines: Lines,
    source: &mut S,
) -> Result<(), ReadEnd<S::Error>> {
    let (mut number, mut is_whole) = (0, false);
    loop {
        while let Some(line) = lines.next()? {
            number += 1;
            for record in reader.line(line).map_err(ImportFault::from)? {
                importer.record(source, record, number).await?;
            }
        }
        if is_whole {
            break;
        }
        match source.read().await.map_err(ReadEnd::Other)? {
            Some(bytes) => lines.push(&bytes),
            None => {
                lines.end();
                is_whole = true;
            }
        }
    }
    reader.finish().map(drop).map_err(|error| ImportFault::from(error).into())
}
