//! Marks of erased tenants.
//!
//! While a mark exists, nothing can be written for the tenant. Statements in its scope are refused
//! ([`crate::Store::for_tenant`]), and owners drop the stream entries of the tenant. A mark is
//! deleted when an operator reopens the name, or by age ([`crate::CleanupKind::ErasedTenants`]).

use model::{Bucket, CommandId, Tenant, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::api::timestamp;
use crate::error::StoreError;
use crate::row::parse_column;
use crate::store::Store;

/// Maximum number of marks read. No fleet erases more tenants while marks are kept.
const MOST_MARKS: i64 = 10_000;

/// The mark of an erased tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasedTenant {
    /// `None`: the default tenant.
    pub tenant: Option<Tenant>,
    /// When the last erasing run began (database clock).
    pub at: Timestamp,
    pub actor: String,
    /// True while some rows may be left: a run is in progress, or a run ended before it was
    /// complete.
    pub is_being_erased: bool,
}

/// The outcome of reopening a tenant's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReopenedTenant {
    /// The mark is deleted, and the name can be used.
    Reopened,
    /// Some rows may be left, so the mark stays.
    BeingErased,
    /// The tenant has no mark.
    Unmarked,
}

impl ErasedTenant {
    /// The name in tables: `-` for the default tenant.
    pub fn name(&self) -> String {
        name(self.tenant.as_ref())
    }
}

impl Store {
    /// Marks a tenant as erased and waits for the transactions in its scope. Afterwards no
    /// transaction writes for the tenant.
    ///
    /// # Errors
    /// One of these transactions took longer than the lock timeout of the session: try again.
    pub async fn mark_tenant_erased(
        &self,
        tenant: Option<&Tenant>,
        actor: &str,
        run: &str,
    ) -> Result<(), StoreError> {
        let statement = sqlx::query("SELECT antiphon_mark_tenant_erased($1, $2, $3)");
        let statement = statement.bind(name(tenant)).bind(actor.to_owned()).bind(run.to_owned());
        self.rows(statement).await.map(drop)
    }

    /// Records that no rows of the tenant are left. A tenant that another run is erasing stays
    /// marked as being erased.
    pub async fn finish_erasing_tenant(&self, tenant: Option<&Tenant>, run: &str) -> Result<(), StoreError> {
        let statement =
            sqlx::query("UPDATE erased_tenants SET erasing = NULL WHERE tenant = $1 AND erasing = $2");
        self.rows(statement.bind(name(tenant)).bind(run.to_owned())).await.map(drop)
    }

    /// Deletes the mark of a completely erased tenant, with a `reopen_tenant` entry in the audit
    /// log.
    pub async fn reopen_tenant(
        &self,
        tenant: Option<&Tenant>,
        command: &CommandId,
        actor: &str,
    ) -> Result<ReopenedTenant, StoreError> {
        let statement = sqlx::query("SELECT antiphon_reopen_tenant($1, $2, $3, $4) AS outcome")
            .bind(name(tenant))
            .bind(Bucket::of_key(&tenant_subject(tenant)).get() as i16)
            .bind(command.to_string())
            .bind(actor.to_owned());
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        match row.try_get("outcome")? {
            "reopened" => Ok(ReopenedTenant::Reopened),
            "being_erased" => Ok(ReopenedTenant::BeingErased),
            "unmarked" => Ok(ReopenedTenant::Unmarked),
            other => Err(StoreError::Row(format!("there is no outcome {other:?}"))),
        }
    }

    /// The mark of a tenant, if it has one.
    pub async fn erased_tenant(&self, tenant: Option<&Tenant>) -> Result<Option<ErasedTenant>, StoreError> {
        let sql = format!("{MARKS} WHERE tenant = $1");
        self.rows(sqlx::query(AssertSqlSafe(sql)).bind(name(tenant))).await?.first().map(mark).transpose()
    }

    /// At most `limit` marks of tenants whose names in tables come after `after`, in their order.
    pub async fn erased_tenants_after(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ErasedTenant>, StoreError> {
        let sql = format!("{MARKS} WHERE tenant > $1 ORDER BY tenant LIMIT $2");
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(after.to_owned()).bind(i64::from(limit));
        self.rows(statement).await?.iter().map(mark).collect()
    }

    /// All marks, ordered by tenant.
    pub async fn erased_tenants(&self) -> Result<Vec<ErasedTenant>, StoreError> {
        let sql = format!("{MARKS} ORDER BY tenant LIMIT {MOST_MARKS}");
        self.rows(sqlx::query(AssertSqlSafe(sql))).await?.iter().map(mark).collect()
    }
}

const MARKS: &str = "SELECT tenant, actor, erasing IS NOT NULL AS is_being_erased,
    (extract(epoch FROM erased_at) * 1000)::bigint AS erased_ms FROM erased_tenants";

fn mark(row: &PgRow) -> Result<ErasedTenant, StoreError> {
    let is_default = row.try_get::<&str, _>("tenant")? == "-";
    Ok(ErasedTenant {
        tenant: (!is_default).then(|| parse_column(row, "tenant", Tenant::parse)).transpose()?,
        at: timestamp(row, "erased_ms")?,
        actor: row.try_get("actor")?,
        is_being_erased: row.try_get("is_being_erased")?,
    })
}

/// The audit subject of a tenant's name, in the default tenant. No thread or agent can have this
/// name.
pub fn tenant_subject(tenant: Option<&Tenant>) -> String {
    format!("{}+tenant", name(tenant))
}

/// The name in tables: `-` for the default tenant.
pub(crate) fn name(tenant: Option<&Tenant>) -> String {
    tenant.map_or_else(|| "-".to_owned(), Tenant::to_string)
}
