//! Selects the threads of an export, and sets how much is read of them at once.

use std::collections::HashSet;

use model::ThreadId;
use store::Store;

use super::lookup::stored;
use crate::exit::ExitError;
use crate::options::Export;

/// Threads, follow-ups or sessions that are read at once.
pub(super) const PAGE: u32 = 500;
/// Maximum number and size in bytes of messages that are read at once. A single message may be
/// larger.
pub(super) const MESSAGES: u32 = 2_000;
pub(super) const MESSAGES_BYTES: u64 = 8 << 20;

/// The named threads, each once, or all stored ones.
pub(super) struct ExportedThreads<'a> {
    store: &'a Store,
    /// `None` exports all threads.
    named: Option<Vec<ThreadId>>,
    after: Option<ThreadId>,
}

impl<'a> ExportedThreads<'a> {
    /// # Errors
    /// A named thread does not exist.
    pub(super) async fn of(store: &'a Store, options: &Export) -> Result<Self, ExitError> {
        for thread in &options.threads {
            stored(store, thread).await?;
        }
        let mut seen = HashSet::new();
        let once = options.threads.iter().filter(|thread| seen.insert(*thread)).cloned().collect();
        Ok(Self { store, named: (!options.all).then_some(once), after: None })
    }

    /// The thread, if exactly one is named.
    pub(super) fn single(&self) -> Option<&ThreadId> {
        match self.named.as_deref() {
            Some([one]) => Some(one),
            _ => None,
        }
    }

    /// The next threads; empty at the end.
    pub(super) async fn next(&mut self) -> Result<Vec<ThreadId>, ExitError> {
        if let Some(named) = &mut self.named {
            return Ok(std::mem::take(named));
        }
        let ids = self.store.thread_ids(self.after.as_ref(), PAGE).await?;
        self.after = ids.last().cloned().or(self.after.take());
        Ok(ids)
    }
}
