-- $1 bucket, $2 thread, $3 batch. Returns all messages of the batch, marked as out of range or not.
-- Reads the thread from the batch on.
SELECT m.*, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position >= $3 AND m.batch_id = $3
ORDER BY m.position
