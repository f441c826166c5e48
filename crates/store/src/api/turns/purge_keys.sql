-- $1 age, $2 how many at most.
WITH old AS MATERIALIZED (
    -- now() and not clock_timestamp(): the index on created_at needs a time that stands still. SKIP LOCKED: several workers
    -- share the work.
    SELECT bucket, thread_id, key
    FROM idempotency_keys
    WHERE created_at < now() - $1
    ORDER BY created_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
, gone AS (
    DELETE FROM idempotency_keys AS i USING old AS o
    WHERE i.bucket = o.bucket AND i.thread_id = o.thread_id AND i.key = o.key
    RETURNING 1
)
SELECT count(*) AS count FROM gone
