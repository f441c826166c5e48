-- $1 bucket, $2 thread, $3 before, $4 how many. Newest first; an existing thread yields at least
-- one row.
SELECT m.position
FROM threads AS t
LEFT JOIN LATERAL (
    SELECT m.position FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < $3 AND m.position = m.batch_id
    ORDER BY m.position DESC
    LIMIT $4
) AS m ON true
WHERE t.bucket = $1 AND t.thread_id = $2
ORDER BY m.position DESC
