-- $1 bucket, $2 thread, $3 after, $4 before, $5 limit, $6 true to include synthetic messages.
-- Returns the first messages of the range. An existing thread yields at least one row.
SELECT m.*, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
FROM threads AS t
LEFT JOIN LATERAL (
    SELECT * FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > $3 AND m.position < $4
      -- Only the JSON boolean marks a synthetic message.
      AND ($6 OR m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb)
    ORDER BY m.position ASC
    LIMIT $5
) AS m ON true
WHERE t.bucket = $1 AND t.thread_id = $2
ORDER BY m.position ASC
