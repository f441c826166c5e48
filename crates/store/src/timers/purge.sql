-- $1 age, $2 how many at most.
WITH old AS MATERIALIZED (
    -- now() and not clock_timestamp(): the index needs a time that stands still. SKIP LOCKED: several workers share the work.
    SELECT t.bucket, t.timer_id
    FROM timers AS t
    WHERE t.ended_at < now() - $1
      AND NOT EXISTS (SELECT FROM timers AS w
                      WHERE w.bucket = t.bucket AND w.thread_id = t.thread_id AND w.state = 'pending' OFFSET 0)
    ORDER BY t.ended_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
, gone AS (
    DELETE FROM timers AS t USING old AS o WHERE t.bucket = o.bucket AND t.timer_id = o.timer_id RETURNING 1
)
SELECT count(*) AS count FROM gone
