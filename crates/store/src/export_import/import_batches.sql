-- Imports whole batches of one thread, all or nothing. $1 bucket, $2 thread; arrays: $3 position,
-- $4 message, $5 batch, $6 number, $7 batch type, $8 role, $9 content, $10 tool_calls, $11
-- tool_call_id, $12 metadata, $13 token_count, $14 created_ms; $15 batches of the same file that
-- are stored already and extend beyond the first of these; $16 the original numbers (NULL: none);
-- $17 started_after_ms (NULL: not known).
--
-- The lock makes other writers that assign numbers in the thread wait.
WITH thread AS MATERIALIZED (
    SELECT t.last_number FROM threads AS t WHERE t.bucket = $1 AND t.thread_id = $2 FOR NO KEY UPDATE
)
, taken AS MATERIALIZED (
    SELECT i.position, i.message_id, i.batch_id, i.sequence_num, i.batch_type, i.role, i.content,
           i.tool_calls::jsonb AS tool_calls, i.tool_call_id, i.metadata::jsonb AS metadata, i.token_count, i.created_ms,
           i.number, i.started_after_ms, p.is_same, p.is_same IS NULL AND q.position IS NULL AS is_absent
    FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::text[],
                $11::text[], $12::text[], $13::bigint[], $14::bigint[], $16::bigint[], $17::integer[])
         AS i (position, message_id, batch_id, sequence_num, batch_type, role, content, tool_calls, tool_call_id, metadata,
               token_count, created_ms, number, started_after_ms)
    -- OFFSET 0 makes these look-ups by key, whatever table size the planner assumes.
    LEFT JOIN LATERAL (
        SELECT (m.message_id, m.batch_id, m.sequence_num, m.batch_type, m.role, m.content, m.metadata,
                (extract(epoch FROM m.created_at) * 1000)::bigint)
               = (i.message_id, i.batch_id, i.sequence_num, i.batch_type, i.role, i.content, i.metadata::jsonb, i.created_ms)
               AND m.tool_calls IS NOT DISTINCT FROM i.tool_calls::jsonb
               AND m.tool_call_id IS NOT DISTINCT FROM i.tool_call_id
               AND m.token_count IS NOT DISTINCT FROM i.token_count
               -- Older exports have no start times.
               AND (i.started_after_ms IS NULL OR m.started_after_ms IS NOT DISTINCT FROM i.started_after_ms) AS is_same
        FROM messages AS m
        WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position = i.position
        OFFSET 0
    ) AS p ON true
    LEFT JOIN LATERAL (
        SELECT m.position FROM messages AS m
        WHERE m.bucket = $1 AND m.thread_id = $2 AND m.message_id = i.message_id
        OFFSET 0
    ) AS q ON true
)
, compared AS MATERIALIZED (
    SELECT t.batch_id, min(t.position) AS first, max(t.position) AS last, count(*) AS messages,
           bool_and(t.is_absent) AS is_absent, bool_and(coalesce(t.is_same, false)) AS is_same,
           min(t.message_id) FILTER (WHERE NOT t.is_absent AND NOT coalesce(t.is_same, false)) AS other
    FROM taken AS t
    GROUP BY t.batch_id
)
, problems AS MATERIALIZED (
    SELECT c.batch_id, c.other,
           CASE
               WHEN EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
                   THEN 'erased'
               WHEN NOT c.is_same AND NOT c.is_absent THEN 'other'
               WHEN c.is_same AND c.messages < (
                   SELECT count(*)
                   FROM (SELECT FROM messages AS m
                         WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position >= c.batch_id AND m.batch_id = c.batch_id
                           AND NOT m.out_of_range
                           AND m.position < (SELECT coalesce((SELECT o.position FROM messages AS o
                                                              WHERE o.bucket = $1 AND o.thread_id = $2
                                                                AND o.position > c.batch_id AND o.batch_id <> c.batch_id
                                                              ORDER BY o.position LIMIT 1), 9223372036854775807))
                         UNION ALL
                         SELECT FROM messages AS m
                         WHERE m.bucket = $1 AND m.thread_id = $2 AND m.batch_id = c.batch_id AND m.out_of_range) AS stored)
                   THEN 'longer'
               -- A position contains milliseconds since the beginning of 2024.
               WHEN c.is_absent AND (c.last >> 22) + 1704067200000 > extract(epoch FROM clock_timestamp()) * 1000
                   THEN 'future'
               -- If messages of other batches follow the first new batch, they also follow the
               -- later ones.
               WHEN c.is_absent AND c.batch_id = (SELECT min(o.batch_id) FROM compared AS o WHERE o.is_absent)
                    AND EXISTS (SELECT FROM messages AS m
                                WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > c.first
                                  AND (m.batch_id > c.batch_id
                                       OR m.batch_id <> ALL ($15::bigint[])
                                          AND m.batch_id NOT IN (SELECT o.batch_id FROM compared AS o))
                                OFFSET 0)
                   THEN 'before'
           END AS problem
    FROM compared AS c
)
, fresh AS MATERIALIZED (
    SELECT t.* FROM taken AS t
    WHERE t.is_absent AND NOT EXISTS (SELECT FROM problems AS p WHERE p.problem IS NOT NULL)
)
, began AS MATERIALIZED (SELECT min(position) AS position FROM fresh)
, around AS (
    -- The new messages, and the stored messages after the first new one. The latter belong to
    -- batches that extend beyond it.
    SELECT f.position, f.message_id, f.batch_id, f.sequence_num, f.batch_type, f.role, f.content, f.tool_calls,
           f.tool_call_id, f.metadata, f.token_count, f.created_ms, f.started_after_ms, f.number, true AS is_fresh
    FROM fresh AS f
    UNION ALL
    SELECT m.position, NULL, m.batch_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, m.number, false
    FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > (SELECT b.position FROM began AS b)
)
, ordered AS (
    SELECT a.*, lag(a.position) OVER o AS before, lag(a.number) OVER o AS number_before,
           CASE WHEN lag(a.batch_id) OVER o IS DISTINCT FROM a.batch_id THEN 1 ELSE 0 END AS turns
    FROM around AS a
    WINDOW o AS (ORDER BY a.position)
)
, stretches AS (
    SELECT o.*, sum(o.turns) OVER (ORDER BY o.position) AS stretch FROM ordered AS o
)
, placed AS MATERIALIZED (
    -- A message is adjacent to its batch if no message of another batch lies between it and the
    -- start of its batch.
    SELECT s.*,
           NOT s.is_fresh
           OR s.stretch <> first_value(s.stretch) OVER b
           OR first_value(s.position) OVER b <> s.batch_id AS is_out_of_range
    FROM stretches AS s
    WINDOW b AS (PARTITION BY s.batch_id ORDER BY s.position)
)
, numbering AS MATERIALIZED (
    -- The numbers of the file are kept if they fit between those of the thread, and none of them
    -- belonged to a deleted message.
    SELECT coalesce((SELECT t.last_number FROM thread AS t), 0) AS last_number,
           bool_and(coalesce(
               p.number > coalesce(p.number_before, (SELECT m.number FROM messages AS m
                                                     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < p.position
                                                     ORDER BY m.position DESC LIMIT 1), 0)
               AND (NOT p.is_fresh OR p.number > (SELECT t.last_number FROM thread AS t)
                    OR p.position < (SELECT max(o.position) FROM placed AS o WHERE NOT o.is_fresh)), false)) AS keeps
    FROM placed AS p
)
, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, created_at, out_of_range,
                          started_after_ms, imported_at, parent_batch)
    SELECT $1, $2, p.position, p.message_id, p.batch_id,
           CASE WHEN n.keeps THEN p.number ELSE n.last_number + row_number() OVER (ORDER BY p.position) END, p.sequence_num, p.batch_type, p.role, p.content,
           p.tool_calls, p.tool_call_id, p.metadata, p.token_count,
           coalesce(p.before, (SELECT m.position FROM messages AS m
                               WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < p.position
                               ORDER BY m.position DESC LIMIT 1)),
           to_timestamp(0) + p.created_ms * interval '1 millisecond', p.is_out_of_range, p.started_after_ms, clock_timestamp(),
           antiphon_parent_batch(p.metadata)
    FROM placed AS p, numbering AS n
    WHERE p.is_fresh
    ORDER BY p.position
    RETURNING position, number, metadata -> 'synthetic' IS NOT DISTINCT FROM 'true'::jsonb AS is_hidden
)
, moved AS (
    UPDATE messages AS m
    SET out_of_range = true, parent_id = p.before
    FROM placed AS p
    WHERE NOT p.is_fresh AND m.bucket = $1 AND m.thread_id = $2 AND m.position = p.position
      AND (NOT m.out_of_range OR m.parent_id IS DISTINCT FROM p.before)
)
, head AS (
    INSERT INTO threads AS t (bucket, thread_id, head_position, message_count, hidden_count, last_number)
    SELECT $1, $2, max(w.position), count(*), count(*) FILTER (WHERE w.is_hidden), max(w.number) FROM written AS w HAVING count(*) > 0
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET head_position = greatest(t.head_position, excluded.head_position),
        message_count = t.message_count + excluded.message_count,
        hidden_count = t.hidden_count + excluded.hidden_count,
        last_number = greatest(t.last_number, excluded.last_number),
        revision = t.revision + 1
)
SELECT (SELECT count(*) FROM written) AS count, p.batch_id, p.other, p.problem
FROM (SELECT 1) AS one
LEFT JOIN (SELECT * FROM problems WHERE problem IS NOT NULL ORDER BY batch_id LIMIT 1) AS p ON true
