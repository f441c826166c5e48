-- $1 bucket, $2 thread, $3 through. Considers the same ends as ends.sql.
SELECT greatest(
    (SELECT m.position
     FROM messages AS m
     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position <= $3
       AND ((m.batch_type = 'system_trigger' AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb)
            OR (m.role = 'assistant' AND m.message_id ~ '-a([1-9][0-9]*)?$'))
     ORDER BY m.position DESC
     LIMIT 1),
    (SELECT f.position
     FROM failed_messages AS f
     WHERE f.bucket = $1 AND f.thread_id = $2 AND f.position <= $3
     ORDER BY f.position DESC
     LIMIT 1)) AS position
