//! Deleting rows by their age, in small statements.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use crate::error::StoreError;
use crate::row::{count, interval};
use crate::store::Store;

impl Store {
    /// Deletes at most `limit` rows of `table`, as `t`, whose time `at` is longer than `age` ago, and says how many. `which` goes on with the
    /// condition: more of it, and an order where an index on `at` gives it.
    pub(crate) async fn delete_older(
        &self,
        (table, at): (&str, &str),
        which: &str,
        age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError> {
        // now() and not clock_timestamp(): an index needs a time that stands still. SKIP LOCKED: a row that is being changed stays for
        // now, and several workers share the work.
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
