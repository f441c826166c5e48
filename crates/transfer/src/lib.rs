//! Writes stored threads as JSON Lines ([`batches::export_import`]) and imports them, with bounded
//! memory: for the API, and for the commands that work on the database.
//!
//! Entry points: [`export`], which writes to an [`ExportSink`], and [`BatchPages`], which walks
//! through one thread. A sink that waits makes the export wait: at most two pages of messages and
//! one batch are in memory. [`import()`] reads from an [`ImportSource`]: one part of a thread is
//! read while another one is written.

mod batch_pages;
mod erasure;
mod exporter;
mod feedback_line;
mod follow_up_line;
mod import;
mod thread_pages;

pub use batch_pages::{BatchPages, Page, read as read_batches};
pub use erasure::erasure;
pub use exporter::{ExportOptions, ExportSink, Exported, export};
pub use import::{
    CutThread, ImportFault, ImportMark, ImportOptions, ImportReport, ImportReports, ImportSource,
    ImportSubject, ImportTotals, Importer, PartLimits, ReportKind, TenantOnly, import,
};
pub use thread_pages::{ExportScope, ThreadPages};
