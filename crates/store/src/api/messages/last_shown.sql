-- $1 bucket, $2 thread. The same messages as in shown.sql.
SELECT m.position
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2
  AND (m.batch_type = 'system_trigger' OR (m.role = 'assistant' AND m.message_id ~ '-a([1-9][0-9]*)?$'))
ORDER BY m.position DESC
LIMIT 1
