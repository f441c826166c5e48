//! What the caller of an import gives and takes.

use batches::export_import::{Cursor, FileError, ImportLimits};
use bytes::Bytes;
use model::{Position, Tenant};
use serde::{Deserialize, Serialize};
use store::{ImportAct, StoreError};

use super::outcome::{ImportReport, ImportTotals};

/// Takes the reports of an import while it runs.
pub trait ImportReports: Send {
    /// Ends the import.
    type Error: From<StoreError> + From<ImportFault> + Send;

    /// Takes a report about a thread or a session that is not simply imported.
    ///
    /// # Errors
    /// The import ends here. Without an error it goes on with the next thread.
    fn report(&mut self, report: ImportReport) -> Result<(), Self::Error>;

    /// Everything that was read up to this mark is stored.
    ///
    /// # Errors
    /// The import ends here.
    fn stored(&mut self, _mark: Option<&ImportMark>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Shows what was read and stored so far.
    fn show(&mut self, _totals: &ImportTotals) {}
}

/// Gives the bytes of an import.
pub trait ImportSource: ImportReports {
    /// The next bytes; `None` at the end.
    fn read(&mut self) -> impl Future<Output = Result<Option<Bytes>, Self::Error>> + Send;
}

/// A line that ends the import.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ImportFault {
    /// Line number, from 1.
    pub line: u64,
    text: String,
}

impl ImportFault {
    pub(super) fn new(line: u64, why: impl std::fmt::Display) -> Self {
        Self { line, text: format!("line {line}: {why}") }
    }
}

impl From<FileError> for ImportFault {
    fn from(error: FileError) -> Self {
        Self { line: error.line, text: error.to_string() }
    }
}

/// How much of a thread is written in one transaction. A larger batch is written alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLimits {
    pub messages: usize,
    pub bytes: u64,
}

impl Default for PartLimits {
    fn default() -> Self {
        Self { messages: 1_000, bytes: 4 << 20 }
    }
}

/// What becomes of a thread whose lines end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CutThread {
    /// Its whole batches are written.
    #[default]
    Keep,
    /// Nothing is written, unless it is so large that parts of it were written before.
    Drop,
}

/// How an import is made.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    pub limits: ImportLimits,
    pub part: PartLimits,
    pub cut_thread: CutThread,
    /// The only tenant into which lines may go; `None`: all.
    pub tenant: Option<TenantOnly>,
    /// The request, for the audit log.
    pub act: Option<ImportAct>,
}

/// A tenant; `None`: the default one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantOnly(pub Option<Tenant>);

impl TenantOnly {
    /// The reason why something of this tenant is refused; `None` if it is not.
    pub(super) fn refusal(&self, tenant: Option<Tenant>) -> Option<String> {
        let name = |tenant: &Option<Tenant>| match tenant {
            Some(tenant) => format!("the tenant {tenant}"),
            None => "the default tenant".to_owned(),
        };
        (self.0 != tenant).then(|| {
            format!(
                "it belongs to {}, and this import goes into {}: use a credential of that tenant",
                name(&tenant),
                name(&self.0)
            )
        })
    }
}

/// The place in a file up to which everything is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportMark {
    /// The last batch that is stored.
    pub cursor: Cursor,
    /// Stored batches of the same thread that extend beyond the cursor's batch, with their last
    /// messages.
    pub beside: Vec<(Position, Position)>,
}

/// Why the reading ends.
pub(super) enum ReadEnd<E> {
    Fault(ImportFault),
    Other(E),
}

impl<E> From<ImportFault> for ReadEnd<E> {
    fn from(fault: ImportFault) -> Self {
        Self::Fault(fault)
    }
}
