-- $1 bucket, $2 thread, $3 after, $4 through, $5 limit. The first row is the message at $3 itself,
-- without its content. The other rows are the messages that subscribers saw live: answers of turns
-- with their inputs and earlier steps, messages without a turn, and failed messages. Synthetic
-- messages are not shown.
--
-- Ids of inputs end in -q, ids of answers in -a or -a<run>, ids of steps in -s<step>, ids of
-- results in -r<number>.
(SELECT m.position, m.message_id, m.batch_type, m.role, m.attempt, '' AS content, NULL::jsonb AS tool_calls,
        NULL AS tool_call_id, '{}'::jsonb AS metadata,
        NULL AS code, NULL AS text, NULL::jsonb AS missing, NULL::boolean AS is_retryable, 0::bigint AS created_ms
 FROM messages AS m
 WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position = $3
 LIMIT 1)
UNION ALL
(SELECT m.position, m.message_id, m.batch_type, m.role, m.attempt, m.content, m.tool_calls, m.tool_call_id, m.metadata,
        NULL AS code, NULL AS text, NULL::jsonb AS missing, NULL::boolean AS is_retryable,
        (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
 FROM messages AS m
 WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > $3 AND m.position <= $4
   AND ((m.batch_type = 'system_trigger' AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb)
        OR (m.batch_type = 'user_request' AND m.role = 'user' AND m.message_id LIKE '%-q'
            AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb)
        OR (m.role IN ('assistant', 'tool') AND m.message_id ~ '-a([1-9][0-9]*)?(-s[0-9]+(-r[0-9]+)?)?$'))
 ORDER BY m.position
 LIMIT $5)
UNION ALL
(SELECT f.position, f.message_id, f.batch_type, f.role, f.attempt, '', NULL, NULL, '{}'::jsonb,
        f.code, f.text, f.missing, f.is_retryable, NULL
 FROM failed_messages AS f
 WHERE f.bucket = $1 AND f.thread_id = $2 AND f.position >= $3 AND f.position <= $4
 ORDER BY f.position
 LIMIT $5)
ORDER BY position
LIMIT $5
