-- $1 age, $2 how many at most.
WITH old AS MATERIALIZED (
    -- now() and not clock_timestamp(): the index on created_at needs a time that stands still. SKIP LOCKED: several workers
    -- share the work.
    SELECT bucket, thread_id, turn_id
    FROM responses
    WHERE created_at < now() - $1
    ORDER BY created_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
, gone AS (
    DELETE FROM responses AS r USING old AS o
    WHERE r.bucket = o.bucket AND r.thread_id = o.thread_id AND r.turn_id = o.turn_id
    RETURNING 1
)
SELECT count(*) AS count FROM gone
