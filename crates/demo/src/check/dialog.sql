-- The stored turns of one thread. $1: bucket, $2: thread.
SELECT m.batch_id,
       (array_agg(m.message_id ORDER BY m.sequence_num))[1] AS input_id,
       (array_agg(m.content ORDER BY m.sequence_num))[1] AS input,
       (array_agg(m.role ORDER BY m.sequence_num))[1] = 'user'
           AND count(*) FILTER (WHERE m.role = 'user') = 1
           AND (array_agg(m.role ORDER BY m.sequence_num DESC))[1] = 'assistant'
           AND min(m.sequence_num) = 0 AND max(m.sequence_num) = count(DISTINCT m.sequence_num) - 1
           AS is_whole,
       coalesce(string_agg(m.content, '' ORDER BY m.sequence_num) FILTER (WHERE m.role = 'assistant'), '') AS answer,
       count(*) FILTER (WHERE m.role = 'tool') AS results,
       coalesce(bool_or(m.metadata->>'stopped' = 'true'), false) AS is_stopped
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2
GROUP BY m.batch_id
ORDER BY min(m.position)
