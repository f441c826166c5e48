//! Writes stored threads as JSON Lines ([`batches::export_import`]), with bounded memory: for the
//! API, and for the command that works on the database.
//!
//! Entry points: [`export`], which writes to an [`ExportSink`], and [`BatchPages`], which walks
//! through one thread. A sink that waits makes the export wait: at most two pages of messages and
//! one batch are in memory.

mod batch_pages;
mod exporter;
mod follow_up_line;
mod thread_pages;

pub use batch_pages::{BatchPages, Page, read as read_batches};
pub use exporter::{ExportOptions, ExportSink, Exported, export};
pub use follow_up_line::read as read_follow_up;
pub use thread_pages::{ExportScope, ThreadPages};
