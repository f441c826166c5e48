-- $1 bucket, $2 agent, $3 the input of a task's turn. What the last message of that turn says.
SELECT m.content
FROM messages AS q
JOIN LATERAL (
    SELECT m.content, m.role FROM messages AS m
    WHERE m.bucket = q.bucket AND m.thread_id = q.thread_id AND m.position > q.position AND m.batch_id = q.batch_id
    ORDER BY m.position DESC
    LIMIT 1
) AS m ON m.role = 'assistant'
WHERE q.bucket = $1 AND q.thread_id = $2 AND q.message_id = $3
