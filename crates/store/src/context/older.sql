-- $1 bucket, $2 thread, $3 before, $4 how many. Newest first.
SELECT m.*, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < $3
ORDER BY m.position DESC
LIMIT $4
