-- $1 bucket, $2 thread, $3 turn, $4 the id of its input. At most one row.
WITH input AS (
    SELECT position, batch_id FROM messages WHERE bucket = $1 AND thread_id = $2 AND message_id = $4
), beyond AS (
    -- The messages of a turn stand together: the first of another batch ends the search.
    SELECT n.position
    FROM input AS i
    CROSS JOIN LATERAL (
        SELECT n.position FROM messages AS n
        WHERE n.bucket = $1 AND n.thread_id = $2 AND n.position > i.position AND n.batch_id <> i.batch_id
        ORDER BY n.position
        LIMIT 1
    ) AS n
), answer AS (
    SELECT a.message_id, a.metadata
    FROM input AS i
    CROSS JOIN LATERAL (
        -- What an answer reports, and not its reasoning.
        SELECT m.message_id, jsonb_strip_nulls(jsonb_build_object(
                   'stopped', m.metadata -> 'stopped', 'finish_reason', m.metadata -> 'finish_reason', 'model', m.metadata -> 'model',
                   'usage', m.metadata -> 'usage', 'tokens_used', m.metadata -> 'tokens_used')) AS metadata
        FROM messages AS m
        WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > i.position
          AND m.position < (SELECT coalesce(max(position), 9223372036854775807) FROM beyond)
          AND m.role = 'assistant' AND starts_with(m.message_id, $3 || '-a')
        ORDER BY m.position DESC
        LIMIT 1
    ) AS a
)
SELECT 'done' AS state, 0::bigint AS run, message_id AS answer, metadata, 1 AS rank FROM answer
UNION ALL
SELECT 'open', run::bigint, NULL, NULL, 2 FROM spilled_turns WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3
UNION ALL
SELECT 'failed', run::bigint, NULL, NULL, 3 FROM failed_turns WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3
UNION ALL
SELECT 'dropped', 0, NULL, NULL, 4 FROM audit_log
WHERE bucket = $1 AND subject_id = $2 AND action = 'drop_failed_turn' AND target = $3 AND error IS NULL
ORDER BY rank
LIMIT 1
