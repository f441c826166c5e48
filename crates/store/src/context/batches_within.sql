-- $1 bucket, $2 thread, $3 batch, $4 before, $5 how many. Returns the batches within batch $3,
-- newest first. An index finds them, however long the thread is. An existing thread yields at least
-- one row.
SELECT m.position
FROM threads AS t
LEFT JOIN LATERAL (
    SELECT m.batch_id AS position FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.parent_batch = $3 AND m.batch_id < $4 AND m.batch_id <> $3
    GROUP BY m.batch_id
    ORDER BY m.batch_id DESC
    LIMIT $5
) AS m ON true
WHERE t.bucket = $1 AND t.thread_id = $2
ORDER BY m.position DESC
