//! Lists the threads of an export.

use std::collections::HashSet;

use model::{Tenant, ThreadId};
use store::{Store, StoreError};

/// Threads, follow-ups or sessions that are read at once.
pub(crate) const PAGE: u32 = 500;

/// What is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportScope {
    /// Only these threads.
    Threads(Vec<ThreadId>),
    /// All threads of a tenant; `None`: the default one.
    Tenant(Option<Tenant>),
    /// All threads of all tenants.
    All,
}

/// The threads of a scope, page by page, each once.
#[derive(Debug)]
pub struct ThreadPages<'a> {
    store: &'a Store,
    scope: &'a ExportScope,
    after: Option<ThreadId>,
    is_listed: bool,
}

impl<'a> ThreadPages<'a> {
    pub fn new(store: &'a Store, scope: &'a ExportScope) -> Self {
        Self { store, scope, after: None, is_listed: false }
    }

    /// The next threads; empty at the end.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn next(&mut self) -> Result<Vec<ThreadId>, StoreError> {
        let after = self.after.as_ref();
        let ids = match self.scope {
            ExportScope::Threads(_) if self.is_listed => Vec::new(),
            ExportScope::Threads(named) => {
                self.is_listed = true;
                let mut seen = HashSet::new();
                named.iter().filter(|thread| seen.insert(*thread)).cloned().collect()
            }
            ExportScope::Tenant(tenant) => {
                self.store.thread_ids_of_tenant(tenant.as_ref(), after, PAGE).await?
            }
            ExportScope::All => self.store.thread_ids(after, PAGE).await?,
        };
        self.after = ids.last().cloned().or(self.after.take());
        Ok(ids)
    }
}
