//! Deletes rows older than an age, in small statements.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use crate::error::StoreError;
use crate::row::{count, interval};
use crate::store::Store;

impl Store {
    /// Deletes at most `limit` rows of `table` (alias `t`) whose column `at` is older than `age`,
    /// and returns how many. `which` is SQL appended to the condition: further conditions, and an
    /// `ORDER BY` where an index on `at` provides the order.
    pub(crate) async fn delete_older(
        &self,
        (table, at): (&str, &str),
        which: &str,
        age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError> {
        // now(), not clock_timestamp(): an index scan needs a stable time. SKIP LOCKED: a row that
        // is being changed stays for now, and several workers share the work.
        let sql = format!(
            "WITH old AS MATERIALIZED (
                 SELECT t.ctid AS place FROM {table} AS t WHERE t.{at} < now() - $1 {which}
                 LIMIT $2 FOR UPDATE SKIP LOCKED
             )
             , gone AS (DELETE FROM {table} AS t USING old AS o WHERE t.ctid = o.place RETURNING 1)
             SELECT count(*) AS count FROM gone"
        );
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(interval(age)).bind(i64::from(limit));
        count(&self.rows(statement).await?)
    }
}
