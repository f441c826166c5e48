//! Tenants marked as erased, as read a few seconds ago.
//!
//! Refuses requests of erased tenants before anything else is done, including requests that need no
//! database statement. Requests that pass are refused by the store
//! ([`StoreError::TenantErased`](store::StoreError)), or dropped by the owner of their partition.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use auth::Principal;
use model::Tenant;
use store::{Store, StoreError};

/// Clones share the set. `None` in it is the default tenant.
#[derive(Debug, Clone, Default)]
pub struct ErasedTenants {
    tenants: Arc<RwLock<HashSet<Option<Tenant>>>>,
}

impl ErasedTenants {
    pub fn has(&self, principal: &Principal) -> bool {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        !tenants.is_empty() && tenants.contains(&principal.tenant().tenant().cloned())
    }

    /// Reads the marks. While the store cannot be read, the previous marks stay in force.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let marks = store.erased_tenants().await?;
        let read = marks.into_iter().map(|mark| mark.tenant).collect();
        *self.tenants.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }
}
