-- $1 bucket, $2 thread, $3 after this id, $4 limit. An existing thread yields at least one row. A
-- thread whose first turn failed may have no row in `threads`.
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
