-- $1 bucket, $2 after this thread, $3 how many.
SELECT t.thread_id, coalesce(t.agent_id, t.thread_id) AS agent_id, t.message_count, t.head_position
FROM threads AS t
WHERE t.bucket = $1 AND t.thread_id > $2
ORDER BY t.thread_id
LIMIT $3
