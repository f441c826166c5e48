-- $1 bucket, $2 after this thread, $3 how many.
SELECT t.thread_id, coalesce(t.agent_id, t.thread_id) AS agent_id, t.message_count, t.head_position,
       (SELECT (extract(epoch FROM clock_timestamp() - m.created_at) * 1000)::bigint FROM messages AS m
        WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id
        ORDER BY m.position
        LIMIT 1) AS oldest_ms
FROM threads AS t
WHERE t.bucket = $1 AND t.thread_id > $2
ORDER BY t.thread_id
LIMIT $3
