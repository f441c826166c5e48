//! Counts what an owner has besides threads, for dry runs.

use model::ThreadId;
use sqlx::AssertSqlSafe;

use super::{ABOUT_USER, ACTORS, ErasedOwner, ErasedRows, OF_TENANTS, OF_USERS, columns, names_user};
use crate::erased_tenants::name;
use crate::error::StoreError;
use crate::row::count;
use crate::store::Store;

impl Store {
    /// Counts what [`Store::erase_owner`] would erase or change, without the facts of a user that
    /// are erased with these threads.
    pub async fn rows_of_owner(
        &self,
        owner: &ErasedOwner,
        threads: &[ThreadId],
    ) -> Result<ErasedRows, StoreError> {
        let mut counts = ErasedRows::new();
        let counted =
            |table: &str, rows: &str| format!("SELECT count(*) AS count FROM {table} AS t WHERE {rows}");
        match owner {
            ErasedOwner::Tenant(tenant) => {
                let tenant = name(tenant.as_ref());
                counts.insert("api_keys".to_owned(), self.keys_of_tenant(&tenant).await?);
                for (table, whose) in OF_TENANTS {
                    let sql = counted(table, &format!("{whose} = $1"));
                    let rows = self.rows(sqlx::query(AssertSqlSafe(sql)).bind(tenant.clone())).await?;
                    counts.insert(table.to_owned(), count(&rows)?);
                }
            }
            ErasedOwner::User(tenant, user) => {
                let tenant = name(tenant.as_ref());
                for (table, column, whose) in ACTORS {
                    let sql = counted(table, &format!("{whose} = $2 AND {}", names_user(column)));
                    let statement = sqlx::query(AssertSqlSafe(sql)).bind(user.clone()).bind(tenant.clone());
                    counts.insert(format!("{table}.{column}"), count(&self.rows(statement).await?)?);
                }
                let sql = counted("audit_log", ABOUT_USER);
                let statement = sqlx::query(AssertSqlSafe(sql)).bind(tenant.clone()).bind(user.clone());
                counts.insert("audit_log".to_owned(), count(&self.rows(statement).await?)?);
                counts.extend(self.actor_in_keys(&tenant, user).await?);
                let (_, ids) = columns(threads);
                for (table, whose) in OF_USERS {
                    let elsewhere = match table {
                        "facts" => {
                            "coalesce(thread_id, '') <> ALL ($3::text[]) AND agent_id <> ALL ($3::text[])"
                        }
                        "feedback" => "thread_id <> ALL ($3::text[])",
                        _ => "$3::text[] IS NOT NULL",
                    };
                    let sql = counted(table, &format!("{whose} AND {elsewhere}"));
                    let statement = sqlx::query(AssertSqlSafe(sql)).bind(user.clone()).bind(tenant.clone());
                    let rows = self.rows(statement.bind(ids.clone())).await?;
                    counts.insert(table.to_owned(), count(&rows)?);
                }
            }
        }
        Ok(counts)
    }
}
