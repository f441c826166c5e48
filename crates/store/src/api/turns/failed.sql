-- $1 bucket, $2 thread, $3 after this id, $4 limit. A thread that exists has at least one row; one whose first turn failed
-- may have no row of its own.
SELECT f.*, (extract(epoch FROM f.failed_at) * 1000)::bigint AS failed_ms
FROM (SELECT WHERE EXISTS (SELECT FROM threads AS t WHERE t.bucket = $1 AND t.thread_id = $2)
                OR EXISTS (SELECT FROM failed_turns AS t WHERE t.bucket = $1 AND t.thread_id = $2)) AS t
LEFT JOIN LATERAL (
    SELECT * FROM failed_turns AS f
    WHERE f.bucket = $1 AND f.thread_id = $2 AND f.turn_id > $3
    ORDER BY f.turn_id
    LIMIT $4
) AS f ON true
ORDER BY f.turn_id
