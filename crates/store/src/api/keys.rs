//! API keys: their digests, and who made and ended them.

use auth::{AccessRole, KeyId, Permissions, StoredKey, TenantName};
use model::{Tenant, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::timestamp;
use crate::error::StoreError;
use crate::row::parse_column;
use crate::store::Store;

/// A key as people look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The key.
    pub key: StoredKey,
    /// Who made it.
    pub created_by: String,
    /// When, by the database's clock.
    pub created_at: Timestamp,
    /// Who ended it.
    pub revoked_by: Option<String>,
    /// When it was last used, to the quarter of an hour.
    pub last_used_at: Option<Timestamp>,
}

const COLUMNS: &str = "key_id, digest, tenant, role, scopes, name, created_by, revoked_by,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ms,
    (extract(epoch FROM expires_at) * 1000)::bigint AS expires_ms,
    (extract(epoch FROM revoked_at) * 1000)::bigint AS revoked_ms,
    (extract(epoch FROM last_used_at) * 1000)::bigint AS used_ms";

impl Store {
    /// Stores a key that `actor` has made.
    pub async fn add_key(&self, key: &StoredKey, actor: &str) -> Result<(), StoreError> {
        let scopes = key.scopes.map(|scopes| -> Vec<String> {
            scopes.iter().map(|permission| permission.scope().to_owned()).collect()
        });
        let statement = sqlx::query(
            "INSERT INTO api_keys (key_id, digest, tenant, role, scopes, name, created_by, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8::bigint / 1000.0))",
        )
        .bind(key.id.to_string())
        .bind(key.digest.to_vec())
        .bind(key.tenant.as_str().map(str::to_owned))
        .bind(key.role.name())
        .bind(scopes)
        .bind(key.name.clone())
        .bind(actor.to_owned())
        .bind(key.expires_at.map(|end| end.0));
        self.rows(statement).await.map(drop)
    }

    /// The key of this id, whatever became of it; `None` when there is none that this handle sees.
    pub async fn key(&self, id: KeyId) -> Result<Option<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM api_keys WHERE key_id = $1"));
        let rows = self.rows(sqlx::query(sql).bind(id.to_string())).await?;
        rows.first().map(key_row).transpose()
    }

    /// Those of these keys that there are.
    pub async fn keys_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM api_keys WHERE key_id = ANY ($1)"));
        let ids: Vec<_> = ids.iter().map(KeyId::to_string).collect();
        self.rows(sqlx::query(sql).bind(ids)).await?.iter().map(key_row).collect()
    }

    /// At most `limit` keys that are not revoked: those that were used or created last.
    pub async fn recent_keys(&self, limit: u32) -> Result<Vec<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM api_keys WHERE revoked_at IS NULL
             ORDER BY coalesce(last_used_at, created_at) DESC LIMIT $1"
        ));
        self.rows(sqlx::query(sql).bind(i64::from(limit))).await?.iter().map(key_row).collect()
    }

    /// At most `limit` keys of a tenant (`None`: the default one), in the order of their ids, after `after`.
    pub async fn keys(
        &self,
        tenant: Option<&Tenant>,
        after: Option<KeyId>,
        limit: u32,
    ) -> Result<Vec<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM api_keys
             WHERE key_id > $1 AND tenant IS NOT DISTINCT FROM $2 ORDER BY key_id LIMIT $3"
        ));
        let statement = sqlx::query(sql)
            .bind(after.map(|id| id.to_string()).unwrap_or_default())
            .bind(tenant.map(Tenant::to_string))
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(key_row).collect()
    }

    /// Ends a key (of this tenant, if one is named) and gives it as it is then; who did it first stays. `None` when there is none that
    /// this handle sees.
    pub async fn revoke_key(
        &self,
        id: KeyId,
        of: Option<&TenantName>,
        actor: &str,
    ) -> Result<Option<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!(
            "UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()),
                    revoked_by = coalesce(revoked_by, $2)
             WHERE key_id = $1 AND ($3 OR tenant IS NOT DISTINCT FROM $4) RETURNING {COLUMNS}"
        ));
        let statement = sqlx::query(sql)
            .bind(id.to_string())
            .bind(actor.to_owned())
            .bind(of.is_none())
            .bind(of.and_then(TenantName::as_str).map(str::to_owned));
        self.rows(statement).await?.first().map(key_row).transpose()
    }

    /// Notes that keys were used, a quarter of an hour after the last time at the earliest.
    pub async fn touch_keys(&self, ids: &[KeyId]) -> Result<(), StoreError> {
        let ids: Vec<_> = ids.iter().map(KeyId::to_string).collect();
        let statement = sqlx::query(
            "UPDATE api_keys SET last_used_at = clock_timestamp()
             WHERE key_id = ANY ($1)
               AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '15 minutes')",
        );
        self.rows(statement.bind(ids)).await.map(drop)
    }

    /// 32 bytes that only the processes of the installation have: for what gateways sign themselves.
    pub async fn signing_key(&self) -> Result<Vec<u8>, StoreError> {
        // Not the key of turn tokens itself: what is learnt of one says nothing of the other.
        let sql = "SELECT sha256(token_key || convert_to('gateway', 'UTF8')) AS key FROM installation";
        let rows = self.rows(sqlx::query(sql)).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("the database is not migrated".to_owned()))?;
        Ok(row.try_get("key")?)
    }
}

fn key_row(row: &PgRow) -> Result<KeyRow, StoreError> {
    let tenant: Option<&str> = row.try_get("tenant")?;
    let tenant = tenant.map(|_| parse_column(row, "tenant", Tenant::parse)).transpose()?;
    let digest: Vec<u8> = row.try_get("digest")?;
    let digest = digest.try_into().map_err(|_| StoreError::Row("a digest of another length".to_owned()))?;
    let scopes: Option<Vec<String>> = row.try_get("scopes")?;
    let moment = |name: &str| row.try_get::<Option<i64>, _>(name).map(|ms| ms.map(Timestamp));
    Ok(KeyRow {
        key: StoredKey {
            id: parse_column(row, "key_id", |id| KeyId::parse(id).ok_or("no id of a key"))?,
            digest,
            tenant: TenantName::from(tenant),
            role: parse_column(row, "role", |name| AccessRole::of_name(name).ok_or("no such role"))?,
            scopes: scopes.map(|scopes| Permissions::of_scopes(scopes.iter().map(String::as_str))),
            name: row.try_get("name")?,
            expires_at: moment("expires_ms")?,
            revoked_at: moment("revoked_ms")?,
        },
        created_by: row.try_get("created_by")?,
        created_at: timestamp(row, "created_ms")?,
        revoked_by: row.try_get("revoked_by")?,
        last_used_at: moment("used_ms")?,
    })
}
