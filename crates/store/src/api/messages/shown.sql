-- $1 bucket, $2 thread, $3 after, $4 limit.
-- Nobody was shown inputs, calls and results while they came: of a turn its answer alone, under whose id the text of all
-- steps was streamed. Ids of answers end in -a or -a<run>, those of steps in -s<step>.
SELECT m.position, m.message_id, m.role, m.metadata, m.attempt,
       CASE WHEN m.batch_type = 'system_trigger' THEN m.content
            ELSE (SELECT string_agg(s.content, '' ORDER BY s.position)
                  FROM messages AS s
                  WHERE s.bucket = $1 AND s.thread_id = $2
                    AND s.position BETWEEN m.batch_id AND m.position
                    AND s.role = 'assistant'
                    AND (s.position = m.position OR starts_with(s.message_id, m.message_id || '-s')))
       END AS content
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > $3
  AND (m.batch_type = 'system_trigger' OR (m.role = 'assistant' AND m.message_id ~ '-a([1-9][0-9]*)?$'))
ORDER BY m.position
LIMIT $4
