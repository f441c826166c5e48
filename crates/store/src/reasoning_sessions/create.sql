-- $1 bucket, $2 session, $3 agent, $4 the agent's own thread, $5 actor, $6 the most base messages;
-- arrays, one item per source: $7 bucket, $8 thread, $9 first batch, $10 last batch; then $11
-- request id, $12 its digest. Copies all base messages or none: every source must have some.
WITH asked AS (
    -- The ends are columns: with row security, an index look-up of messages cannot use expressions.
    SELECT k.*, coalesce(k.from_batch, 0) AS first, coalesce(k.to_batch, 9223372036854775807) AS last
    FROM unnest($7::smallint[], $8::text[], $9::bigint[], $10::bigint[]) WITH ORDINALITY
        AS k (bucket, thread_id, from_batch, to_batch, place)
)
-- The lock makes an erasure of one of the threads wait for this statement. The erasure then finds
-- the session.
, held AS MATERIALIZED (
    SELECT t.bucket, t.thread_id, t.head_position FROM threads AS t
    WHERE (t.bucket, t.thread_id) IN (SELECT k.bucket, k.thread_id FROM asked AS k)
      AND NOT EXISTS (
          SELECT FROM erased_threads AS e WHERE e.bucket = t.bucket AND e.thread_id = t.thread_id AND e.recreated_at IS NULL
      )
    FOR KEY SHARE
)
, base AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY k.place, m.position) AS number, k.place, m.thread_id, m.position, m.number AS of_thread, m.role, m.content,
           m.tool_call_id, m.metadata,
           CASE WHEN m.role = 'assistant' AND jsonb_typeof(m.tool_calls) = 'array' THEN m.tool_calls END AS tool_calls
    FROM asked AS k
    JOIN held AS h ON h.bucket = k.bucket AND h.thread_id = k.thread_id
    JOIN messages AS m ON m.bucket = k.bucket AND m.thread_id = k.thread_id
        AND m.position >= k.first AND m.batch_id BETWEEN k.first AND k.last
        -- A message that has only thinking gets no number. It comes from a step that produced
        -- neither text nor calls.
        AND NOT (m.role = 'assistant' AND m.content ~ '^\s*$' AND m.metadata ? 'reasoning'
                 AND (m.tool_calls IS NULL OR m.tool_calls IN ('null', '[]')))
    LIMIT $6 + 1
)
, missing AS (
    SELECT k.thread_id FROM asked AS k WHERE NOT EXISTS (SELECT FROM base AS b WHERE b.place = k.place)
)
, made AS (
    INSERT INTO reasoning_sessions (bucket, session_id, agent_id, sources, source_threads, last_number, created_by, request_id,
                                    request_hash)
    SELECT $1, $2, $3,
           coalesce((
               SELECT jsonb_agg(jsonb_build_object('thread_id', k.thread_id, 'from_batch', k.from_batch::text,
                                                   'to_batch', k.to_batch::text, 'as_of', h.head_position::text,
                                                   'first_number', n.first, 'last_number', n.last) ORDER BY k.place)
               FROM asked AS k
               JOIN held AS h ON h.bucket = k.bucket AND h.thread_id = k.thread_id
               JOIN (SELECT b.place, min(b.of_thread) AS first, max(b.of_thread) AS last FROM base AS b GROUP BY b.place) AS n
                   ON n.place = k.place
           ), '[]'),
           $4::text || $8::text[], (SELECT count(*) FROM base), $5, $11, $12
    WHERE (SELECT count(*) FROM base) <= $6
      AND NOT EXISTS (SELECT FROM missing)
    ON CONFLICT DO NOTHING
    RETURNING last_number
)
, copied AS (
    INSERT INTO reasoning_messages (bucket, session_id, number, in_temp, role, content, chars, thinking, calls, call_details, answers,
                                    tool, source_thread, source_position)
    SELECT $1, $2, b.number, false, b.role, b.content, length(b.content), b.metadata ->> 'reasoning', c.calls, c.details,
           CASE WHEN b.role = 'tool' THEN b.tool_call_id END,
           CASE WHEN b.role = 'tool' THEN b.metadata ->> 'tool_name' END,
           b.thread_id, b.position
    FROM made CROSS JOIN base AS b
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_object('id', coalesce(c ->> 'id', ''), 'name', coalesce(c ->> 'name', '')) ORDER BY n) AS calls,
               CASE WHEN bool_or(c ->> 'arguments' IS NOT NULL)
                    THEN jsonb_agg(jsonb_build_object('arguments', c ->> 'arguments') ORDER BY n) END AS details
        -- A call is not waiting if its result is stored with it.
        FROM jsonb_array_elements(b.tool_calls) WITH ORDINALITY AS e (c, n) WHERE c ->> 'result' IS NULL
    ) AS c
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action)
    SELECT $1, $2 || '+reasoning', gen_random_uuid()::text, $5, 'reasoning_create' FROM made
)
SELECT (SELECT last_number FROM made) AS made, (SELECT count(*) FROM base) AS messages,
       (SELECT min(thread_id) FROM missing) AS missing, e.request_id AS earlier, e.request_hash AS earlier_hash,
       (SELECT count(*) FROM reasoning_messages AS m
        WHERE m.bucket = e.bucket AND m.session_id = e.session_id AND m.source_thread IS NOT NULL) AS earlier_messages
FROM (VALUES (true)) AS one LEFT JOIN reasoning_sessions AS e ON e.bucket = $1 AND e.session_id = $2
