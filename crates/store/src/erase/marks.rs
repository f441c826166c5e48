//! Marks of erased threads: while one is set, nothing is accepted for its thread.

use model::ThreadId;

use super::{ErasedOwner, columns};
use crate::erased_tenants::name;
use crate::error::StoreError;
use crate::row::parse_column;
use crate::store::Store;

impl Store {
    /// Marks the threads as erased: from now on, no stream entry for them is accepted. They can be
    /// created again after [`Store::finish_erasing`] with the same `run`, a text that is unique to
    /// the run. `owner` is set when the threads are erased because their owner is erased.
    pub async fn mark_erased(
        &self,
        threads: &[ThreadId],
        actor: &str,
        run: &str,
        owner: Option<&ErasedOwner>,
    ) -> Result<(), StoreError> {
        self.mark(threads, actor, run, owner, None).await.map(drop)
    }

    /// Marks the threads; with the id and the attempt of a request as `hold`, only under the
    /// conditions of [`Store::mark_held`]. Returns the marked threads.
    pub(crate) async fn mark(
        &self,
        threads: &[ThreadId],
        actor: &str,
        run: &str,
        owner: Option<&ErasedOwner>,
        hold: Option<(String, i32)>,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let user = match owner {
            Some(ErasedOwner::User(tenant, user)) => Some((name(tenant.as_ref()), user.clone())),
            Some(ErasedOwner::Tenant(_)) | None => None,
        };
        let (tenant, user) = user.unzip();
        let statement = sqlx::query(
            "WITH request AS MATERIALIZED (
                 SELECT created_at FROM erasures WHERE erasure_id = $7 AND attempts = $8 AND state = 'running'
             )
             INSERT INTO erased_threads AS e (bucket, thread_id, actor, erasing, erasing_user)
             SELECT k.bucket, k.id, $3, $4, sha256(convert_to($5 || '~' || $6, 'UTF8'))
             FROM unnest($1::smallint[], $2::text[]) AS k (bucket, id)
             WHERE $7::text IS NULL OR EXISTS (SELECT FROM request)
             ON CONFLICT (bucket, thread_id) DO UPDATE
             SET erased_at = clock_timestamp(), actor = excluded.actor, erasing = excluded.erasing, recreated_at = NULL,
                 erasing_user = coalesce(excluded.erasing_user, e.erasing_user)
             WHERE $7::text IS NULL OR e.recreated_at IS NULL OR e.recreated_at < (SELECT created_at FROM request)
             RETURNING e.thread_id",
        );
        let (buckets, ids) = columns(threads);
        let statement = statement.bind(buckets).bind(ids).bind(actor.to_owned()).bind(run.to_owned());
        let (request, attempt) = hold.unzip();
        let statement = statement.bind(tenant).bind(user).bind(request).bind(attempt);
        self.rows(statement)
            .await?
            .iter()
            .map(|row| parse_column(row, "thread_id", ThreadId::parse))
            .collect()
    }

    /// The threads among these that `run` has marked and nothing has marked or released after that.
    pub async fn erasing_by(&self, threads: &[ThreadId], run: &str) -> Result<Vec<ThreadId>, StoreError> {
        let statement = sqlx::query(
            "SELECT e.thread_id FROM erased_threads AS e
             JOIN unnest($1::smallint[], $2::text[]) AS k (bucket, id) ON e.bucket = k.bucket AND e.thread_id = k.id
             WHERE e.erasing = $3",
        );
        let (buckets, ids) = columns(threads);
        let rows = self.rows(statement.bind(buckets).bind(ids).bind(run.to_owned())).await?;
        rows.iter().map(|row| parse_column(row, "thread_id", ThreadId::parse)).collect()
    }

    /// Records that no rows of these threads are left. Threads that another run is erasing again
    /// stay marked.
    pub async fn finish_erasing(&self, threads: &[ThreadId], run: &str) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "UPDATE erased_threads AS e SET erasing = NULL, erasing_user = NULL
             FROM unnest($1::smallint[], $2::text[]) AS k (bucket, id)
             WHERE e.bucket = k.bucket AND e.thread_id = k.id AND e.erasing = $3",
        );
        let (buckets, ids) = columns(threads);
        self.rows(statement.bind(buckets).bind(ids).bind(run.to_owned())).await.map(drop)
    }
}
