//! API keys: their digests, creation and revocation.

use std::time::Duration;

use auth::{AccessRole, KeyId, Permission, Permissions, PreviousSecret, StoredKey, TenantName};
use model::{Bucket, CommandId, TENANT_MARK, Tenant, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::timestamp;
use crate::error::StoreError;
use crate::row::{interval, parse_column};
use crate::store::Store;

/// How long tokens of the previous key stay valid: longer than a turn lasts.
pub(crate) const TURN_TOKENS_OVERLAP: Duration = Duration::from_secs(24 * 3_600);
/// How long tickets of the previous key stay valid: longer than the longest lifetime of a ticket.
const TICKETS_OVERLAP: Duration = Duration::from_secs(3_600);
/// Delay before a new key is used for signing: longer than the interval at which gateways read the
/// keys.
const UNTIL_SIGNED_WITH: Duration = Duration::from_secs(15);

/// A key with its history, as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    pub key: StoredKey,
    pub created_by: String,
    /// Time of creation by the database clock.
    pub created_at: Timestamp,
    pub revoked_by: Option<String>,
    /// When the key got its present secret, if that is not its first one.
    pub rotated_at: Option<Timestamp>,
    /// When the key was last used, accurate to a quarter of an hour.
    pub last_used_at: Option<Timestamp>,
}

const COLUMNS: &str = "key_id, digest, tenant, role, scopes, name, created_by, revoked_by,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ms,
    (extract(epoch FROM expires_at) * 1000)::bigint AS expires_ms,
    (extract(epoch FROM revoked_at) * 1000)::bigint AS revoked_ms,
    (extract(epoch FROM rotated_at) * 1000)::bigint AS rotated_ms,
    previous_digest, (extract(epoch FROM previous_valid_until) * 1000)::bigint AS previous_ms,
    (extract(epoch FROM last_used_at) * 1000)::bigint AS used_ms";

impl Store {
    /// Stores a key made by `actor`, with a `make_key` entry in the audit log.
    pub async fn add_key(&self, key: &StoredKey, command: &CommandId, actor: &str) -> Result<(), StoreError> {
        let scopes = key.scopes.map(|scopes| -> Vec<String> {
            scopes.iter().map(|permission| permission.scope().to_owned()).collect()
        });
        let subject = key_subject(key.tenant.tenant(), key.id);
        let detail = granted(key);
        let statement = sqlx::query(
            "WITH made AS (
                 INSERT INTO api_keys (key_id, digest, tenant, role, scopes, name, created_by, expires_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8::bigint / 1000.0))
                 RETURNING key_id
             )
             INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
             SELECT $9, $10, $11, $7, 'make_key', key_id, $12 FROM made",
        )
        .bind(key.id.to_string())
        .bind(key.digest.to_vec())
        .bind(key.tenant.as_str().map(str::to_owned))
        .bind(key.role.name())
        .bind(scopes)
        .bind(key.name.clone())
        .bind(actor.to_owned())
        .bind(key.expires_at.map(|end| end.0))
        .bind(Bucket::of_key(&subject).get() as i16)
        .bind(subject)
        .bind(command.to_string())
        .bind(detail);
        self.rows(statement).await.map(drop)
    }

    /// Reads the key with this id, revoked or not; `None` if no such key is visible to this handle.
    pub async fn key(&self, id: KeyId) -> Result<Option<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM api_keys WHERE key_id = $1"));
        let rows = self.rows(sqlx::query(sql).bind(id.to_string())).await?;
        rows.first().map(key_row).transpose()
    }

    /// Reads the keys with these ids. Ids without a key are skipped.
    pub async fn keys_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM api_keys WHERE key_id = ANY ($1)"));
        let ids: Vec<_> = ids.iter().map(KeyId::to_string).collect();
        self.rows(sqlx::query(sql).bind(ids)).await?.iter().map(key_row).collect()
    }

    /// Lists the `limit` most recently used or created keys, without revoked ones.
    pub async fn recent_keys(&self, limit: u32) -> Result<Vec<KeyRow>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM api_keys WHERE revoked_at IS NULL
             ORDER BY coalesce(last_used_at, created_at) DESC LIMIT $1"
        ));
        self.rows(sqlx::query(sql).bind(i64::from(limit))).await?.iter().map(key_row).collect()
    }

    /// Lists at most `limit` keys of a tenant (`None`: the default one) after `after`, ordered by
    /// id.
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

    /// Revokes a key of this tenant, with a `revoke_key` entry in the audit log, and returns the
    /// revoked key. A key that is revoked already stays as it is, without another entry. `None`
    /// when the tenant has no such key.
    pub async fn revoke_key(
        &self,
        id: KeyId,
        tenant: &TenantName,
        command: &CommandId,
        actor: &str,
    ) -> Result<Option<KeyRow>, StoreError> {
        let Some(row) = self.key(id).await?.filter(|row| row.key.tenant == *tenant) else {
            return Ok(None);
        };
        let subject = key_subject(row.key.tenant.tenant(), id);
        let statement = sqlx::query(
            "WITH ended AS (
                 UPDATE api_keys SET revoked_at = clock_timestamp(), revoked_by = $2
                 WHERE key_id = $1 AND revoked_at IS NULL
                 RETURNING key_id
             )
             INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
             SELECT $3, $4, $5, $2, 'revoke_key', key_id, $6 FROM ended",
        );
        let statement = statement
            .bind(id.to_string())
            .bind(actor.to_owned())
            .bind(Bucket::of_key(&subject).get() as i16)
            .bind(subject)
            .bind(command.to_string())
            .bind(granted(&row.key));
        self.rows(statement).await?;
        self.key(id).await
    }

    /// Gives a key of this tenant another secret, with a `rotate_key` entry in the audit log. The
    /// previous secret stays valid for `overlap`. Without an overlap, all earlier secrets become
    /// invalid at once.
    ///
    /// Returns false and does nothing if the key has ended, or while an overlap of the last
    /// rotation lasts, because a third secret would have to be valid.
    pub async fn rotate_api_key(
        &self,
        key: &StoredKey,
        digest: [u8; 32],
        overlap: Duration,
        command: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let subject = key_subject(key.tenant.tenant(), key.id);
        let statement = sqlx::query(include_str!("keys/rotate_api_key.sql"))
            .bind(key.id.to_string())
            .bind(digest.to_vec())
            .bind(interval(overlap))
            .bind(Bucket::of_key(&subject).get() as i16)
            .bind(subject)
            .bind(command.to_string())
            .bind(actor.to_owned())
            .bind(format!("{}; {}", granted(key), previous_is_valid_for(overlap)));
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Records that keys were used, at most once per key and quarter of an hour.
    pub async fn touch_keys(&self, ids: &[KeyId]) -> Result<(), StoreError> {
        let ids: Vec<_> = ids.iter().map(KeyId::to_string).collect();
        let statement = sqlx::query(
            "UPDATE api_keys SET last_used_at = clock_timestamp()
             WHERE key_id = ANY ($1)
               AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '15 minutes')",
        );
        self.rows(statement.bind(ids)).await.map(drop)
    }

    /// The keys for tickets, 32 bytes each. The first one is used for signing, the others only for
    /// verification.
    pub async fn ticket_keys(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        // All gateways must know a new key before the first one signs with it.
        let statement = sqlx::query(
            "SELECT ticket_key, coalesce(ticket_key_changed_at > clock_timestamp() - $2, false) AS is_fresh,
                    CASE WHEN ticket_key_changed_at > clock_timestamp() - $1 THEN previous_ticket_key END AS previous
             FROM installation",
        );
        let rows =
            self.rows(statement.bind(interval(TICKETS_OVERLAP)).bind(interval(UNTIL_SIGNED_WITH))).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("the database is not migrated".to_owned()))?;
        let mut keys = vec![row.try_get("ticket_key")?];
        keys.extend(row.try_get::<Option<Vec<u8>>, _>("previous")?);
        if row.try_get("is_fresh")? {
            keys.reverse();
        }
        Ok(keys)
    }

    /// Makes a new key of this kind, and adds a `rotate_key` entry to the audit log. Signatures of
    /// the previous key stay valid for the kind's overlap. If `is_overlapping` is false, they
    /// become invalid at once.
    ///
    /// Returns false and does nothing while the overlap of the last rotation lasts, because a
    /// third key would have to be valid.
    pub async fn rotate_signing_key(
        &self,
        kind: SigningKey,
        is_overlapping: bool,
        command: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let overlap = if is_overlapping { kind.overlap() } else { Duration::ZERO };
        let statement =
            sqlx::query("SELECT antiphon_rotate_signing_key($1, $2, $3, $4, $5, $6) AS is_rotated")
                .bind(kind.name())
                .bind(interval(overlap))
                .bind(Bucket::of_key(&kind.audit_subject()).get() as i16)
                .bind(command.to_string())
                .bind(actor.to_owned())
                .bind(previous_is_valid_for(overlap));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        Ok(row.try_get("is_rotated")?)
    }
}

/// Keys of the installation with which the fleet itself signs. They can be replaced at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningKey {
    /// Signs the tokens with which workflows answer turns.
    TurnTokens,
    /// Signs the tickets with which browsers subscribe to threads.
    Tickets,
}

impl SigningKey {
    pub const ALL: [Self; 2] = [Self::TurnTokens, Self::Tickets];

    /// The name for operators: `turn-tokens` or `tickets`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TurnTokens => "turn-tokens",
            Self::Tickets => "tickets",
        }
    }

    /// The key with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    /// The audit subject of this key's rotations. No thread or agent can have this name.
    pub fn audit_subject(self) -> String {
        format!("{}+key", self.name())
    }

    /// How long signatures of the previous key stay valid after a rotation.
    pub fn overlap(self) -> Duration {
        match self {
            Self::TurnTokens => TURN_TOKENS_OVERLAP,
            Self::Tickets => TICKETS_OVERLAP,
        }
    }
}

/// The audit subject of a key. No thread or agent can have this name.
pub fn key_subject(tenant: Option<&Tenant>, id: KeyId) -> String {
    tenant.map_or(format!("{id}+key"), |tenant| format!("{tenant}{TENANT_MARK}{id}+key"))
}

fn previous_is_valid_for(overlap: Duration) -> String {
    format!("the previous key is valid for {} s", overlap.as_secs())
}

/// Describes the permissions of a key for people.
fn granted(key: &StoredKey) -> String {
    match key.scopes {
        None => format!("role {}", key.role.name()),
        Some(scopes) => {
            let scopes: Vec<_> = scopes.iter().map(Permission::scope).collect();
            format!("role {}, scopes {}", key.role.name(), scopes.join(" "))
        }
    }
}

fn key_row(row: &PgRow) -> Result<KeyRow, StoreError> {
    let tenant: Option<&str> = row.try_get("tenant")?;
    let tenant = tenant.map(|_| parse_column(row, "tenant", Tenant::parse)).transpose()?;
    let digest: Vec<u8> = row.try_get("digest")?;
    let digest = digest.try_into().map_err(|_| StoreError::Row("a digest of another length".to_owned()))?;
    let scopes: Option<Vec<String>> = row.try_get("scopes")?;
    let moment = |name: &str| row.try_get::<Option<i64>, _>(name).map(|ms| ms.map(Timestamp));
    let previous: Option<Vec<u8>> = row.try_get("previous_digest")?;
    let previous = previous.and_then(|digest| digest.try_into().ok()).zip(moment("previous_ms")?);
    Ok(KeyRow {
        key: StoredKey {
            id: parse_column(row, "key_id", |id| KeyId::parse(id).ok_or("no id of a key"))?,
            digest,
            previous: previous.map(|(digest, valid_until)| PreviousSecret { digest, valid_until }),
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
        rotated_at: moment("rotated_ms")?,
        last_used_at: moment("used_ms")?,
    })
}
