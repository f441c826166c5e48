-- $1 bucket, $2 thread, $3 turn, $4 the id of its input. Returns at most one row.
WITH input AS (
    SELECT position, batch_id, created_at, started_after_ms FROM messages WHERE bucket = $1 AND thread_id = $2 AND message_id = $4
), beyond AS (
    -- The messages of a turn are adjacent: the first message of another batch ends the search.
    SELECT n.position
    FROM input AS i
    CROSS JOIN LATERAL (
        SELECT n.position FROM messages AS n
        WHERE n.bucket = $1 AND n.thread_id = $2 AND n.position > i.position AND n.batch_id <> i.batch_id
        ORDER BY n.position
        LIMIT 1
    ) AS n
), answer AS (
    SELECT a.message_id, a.metadata, a.created_at AS ended_at, i.created_at AS accepted_at,
           i.created_at + i.started_after_ms * interval '1 ms' AS started_at
    FROM input AS i
    CROSS JOIN LATERAL (
        -- Only the metadata that the report of an answer needs, without its reasoning.
        SELECT m.message_id, m.created_at, jsonb_strip_nulls(jsonb_build_object(
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
SELECT s.state, s.run, s.answer, s.metadata, (extract(epoch FROM s.accepted_at) * 1000)::bigint AS accepted_ms,
       (extract(epoch FROM s.started_at) * 1000)::bigint AS started_ms, (extract(epoch FROM s.ended_at) * 1000)::bigint AS ended_ms
FROM (
    SELECT 'done' AS state, 0::bigint AS run, message_id AS answer, metadata, accepted_at, started_at, ended_at, 1 AS rank FROM answer
    UNION ALL
    -- For a turn that has failed before, the options contain the time at which its input was
    -- accepted.
    SELECT 'open', run::bigint, NULL, NULL,
           coalesce(to_timestamp(0) + (options ->> 'accepted_at')::bigint * interval '1 ms', came_at), NULL, NULL, 2
    FROM spilled_turns WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3
    UNION ALL
    SELECT 'failed', run::bigint, NULL, NULL, to_timestamp(0) + (options ->> 'accepted_at')::bigint * interval '1 ms', NULL, failed_at, 3
    FROM failed_turns WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3
    UNION ALL
    SELECT 'dropped', 0, NULL, NULL, NULL, NULL, NULL, 4 FROM audit_log
    WHERE bucket = $1 AND subject_id = $2 AND action = 'drop_failed_turn' AND target = $3 AND error IS NULL
) AS s
ORDER BY s.rank
LIMIT 1
