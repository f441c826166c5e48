-- $1 bucket, $2 agent, $3 the input of a task's turn. Returns the text of the last message of that
-- turn. The messages of a turn are adjacent, so the first message of another batch ends the search.
SELECT m.content
FROM messages AS q
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT o.position FROM messages AS o
                     WHERE o.bucket = q.bucket AND o.thread_id = q.thread_id AND o.position > q.position AND o.batch_id <> q.batch_id
                     ORDER BY o.position LIMIT 1), 9223372036854775807) AS position
    OFFSET 0
) AS b
JOIN LATERAL (
    SELECT m.content, m.role FROM messages AS m
    WHERE m.bucket = q.bucket AND m.thread_id = q.thread_id AND m.position > q.position AND m.position < b.position
    ORDER BY m.position DESC
    LIMIT 1
) AS m ON m.role = 'assistant'
WHERE q.bucket = $1 AND q.thread_id = $2 AND q.message_id = $3
