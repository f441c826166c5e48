-- $1 buckets, $2 due at least this many ms from now (NULL: all), $3 maximum rows per bucket, $4
-- maximum rows. Returns the next timers, ordered by due time.
--
-- Each bucket contributes a few rows, so that the cost does not grow with the number of timers. If
-- a bucket has more timers than it contributes, the result ends at the due time of its last row.
WITH found AS MATERIALIZED (
    SELECT t.timer_id, t.due_at, t.nth
    FROM unnest($1::smallint[]) AS b (bucket)
    CROSS JOIN LATERAL (
        SELECT n.timer_id, n.due_at, row_number() OVER (ORDER BY n.due_at, n.timer_id) AS nth
        FROM (
            SELECT t.timer_id, t.due_at FROM timers AS t
            WHERE t.bucket = b.bucket AND t.state = 'pending'
              AND t.due_at >= coalesce(clock_timestamp() + $2::bigint * interval '1 ms', '-infinity')
            ORDER BY t.due_at, t.timer_id
            LIMIT $3
        ) AS n
    ) AS t
)
, edge AS (SELECT min(due_at) AS due_at FROM found WHERE nth = $3)
SELECT f.timer_id, ceil(extract(epoch FROM f.due_at - clock_timestamp()) * 1000)::bigint AS wait_ms,
       e.due_at IS NOT NULL AS has_edge
FROM found AS f CROSS JOIN edge AS e
WHERE e.due_at IS NULL OR f.due_at <= e.due_at
ORDER BY f.due_at, f.timer_id
LIMIT $4
