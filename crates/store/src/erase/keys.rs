//! API keys in an erasure. Workers have no access to the table, only to two functions.

use sqlx::Row;

use crate::erase::ErasedRows;
use crate::error::StoreError;
use crate::row::count;
use crate::store::Store;

impl Store {
    /// Deletes the keys of a tenant that is marked as erased.
    pub(super) async fn erase_keys(&self, tenant: &str) -> Result<u64, StoreError> {
        let statement = sqlx::query("SELECT antiphon_erase_keys($1) AS count").bind(tenant.to_owned());
        count(&self.rows(statement).await?)
    }

    /// The number of keys of a tenant.
    pub(super) async fn keys_of_tenant(&self, tenant: &str) -> Result<u64, StoreError> {
        let statement = sqlx::query("SELECT antiphon_keys_of_tenant($1) AS count").bind(tenant.to_owned());
        count(&self.rows(statement).await?)
    }

    /// The number of keys that a user has made or revoked.
    pub(super) async fn actor_in_keys(&self, tenant: &str, user: &str) -> Result<ErasedRows, StoreError> {
        self.keys_with_actor("SELECT made, revoked FROM antiphon_actor_in_keys($1, $2)", tenant, user).await
    }

    /// Removes the name of a user from the keys that the user has made or revoked.
    pub(super) async fn forget_actor_of_keys(
        &self,
        tenant: &str,
        user: &str,
    ) -> Result<ErasedRows, StoreError> {
        self.keys_with_actor("SELECT made, revoked FROM antiphon_forget_actor_of_keys($1, $2)", tenant, user)
            .await
    }

    async fn keys_with_actor(
        &self,
        sql: &'static str,
        tenant: &str,
        user: &str,
    ) -> Result<ErasedRows, StoreError> {
        let statement = sqlx::query(sql).bind(tenant.to_owned()).bind(user.to_owned());
        let mut counts = ErasedRows::new();
        for row in self.rows(statement).await? {
            for (column, name) in [("made", "api_keys.created_by"), ("revoked", "api_keys.revoked_by")] {
                counts.insert(name.to_owned(), row.try_get::<i64, _>(column)?.unsigned_abs());
            }
        }
        Ok(counts)
    }
}
