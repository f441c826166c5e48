//! Places for exports and imports. A gateway has a few, and one tenant gets only a part of them, so
//! that a tenant with slow transfers does not keep the others from theirs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Time that a transfer waits until another one has ended.
const WAIT: Duration = Duration::from_secs(3);

/// The places of one kind of transfer.
#[derive(Debug)]
pub(crate) struct TransferPlaces {
    all: Arc<Semaphore>,
    most_of_tenant: usize,
    /// Places of the tenants that use or wait for one. Key `None`: the default tenant.
    tenants: Mutex<HashMap<Option<Tenant>, Arc<Semaphore>>>,
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct TransferPlace {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl TransferPlaces {
    pub(super) fn new(most: usize, most_of_tenant: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(most)), most_of_tenant, tenants: Mutex::default() }
    }

    /// Waits for a place for a short time; `None` if none became free.
    pub(crate) async fn take(&self, tenant: Option<&Tenant>) -> Option<TransferPlace> {
        let own = self.of_tenant(tenant);
        let both = async {
            let of_tenant = own.acquire_owned().await.ok()?;
            let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(TransferPlace { _of_tenant: of_tenant, _of_all: of_all })
        };
        timeout(WAIT, both).await.ok().flatten()
    }

    fn of_tenant(&self, tenant: Option<&Tenant>) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // A place in use, or waited for, has a reference besides that of the table.
        tenants.retain(|_, places| Arc::strong_count(places) > 1);
        let places = tenants.entry(tenant.cloned());
        Arc::clone(places.or_insert_with(|| Arc::new(Semaphore::new(self.most_of_tenant))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the place is not free now.
    async fn waits(place: impl Future<Output = Option<TransferPlace>>) -> bool {
        timeout(Duration::from_millis(20), place).await.is_err()
    }

    #[tokio::test]
    async fn one_tenant_leaves_places_to_the_others() {
        let places = TransferPlaces::new(3, 2);
        let (ann, bob) = (Tenant::parse("ann").unwrap(), Tenant::parse("bob").unwrap());
        let first = places.take(Some(&ann)).await.unwrap();
        let _second = places.take(Some(&ann)).await.unwrap();
        assert!(waits(places.take(Some(&ann))).await, "the tenant has its part");
        let others = places.take(Some(&bob)).await.unwrap();
        assert!(waits(places.take(None)).await, "all places are taken");
        drop(first);
        let _again = places.take(Some(&ann)).await.unwrap();
        drop(others);
        let _default = places.take(None).await.unwrap();
        assert_eq!(places.tenants.lock().unwrap().len(), 2, "nothing is kept for a tenant without a place");
    }
}
