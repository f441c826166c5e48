-- $1 bucket, $2 session, $3 bucket and $4 id of the thread to which it applies, $5 actor. Makes the
-- compaction of the thread match the visible state of the session, as far as whole batches are
-- concerned. The new compaction replaces the previous one of the session, so that an undo restores
-- the context before the session. Returns one row if the session exists.
WITH RECURSIVE s AS MATERIALIZED (
    -- The lock admits one such statement per session at a time.
    SELECT head_layer FROM reasoning_sessions WHERE bucket = $1 AND session_id = $2 AND applies_to = $4 FOR NO KEY UPDATE
)
, head AS MATERIALIZED (
    SELECT l.shown FROM s JOIN reasoning_layers AS l ON l.bucket = $1 AND l.session_id = $2 AND l.layer_id = s.head_layer
)
, shown AS MATERIALIZED (
    SELECT n.number, row_number() OVER (ORDER BY i, n.number) AS place
    FROM head AS h CROSS JOIN generate_series(1, cardinality(h.shown), 2) AS i
    CROSS JOIN LATERAL generate_series(h.shown[i], h.shown[i + 1]) AS n (number)
)
, copies AS MATERIALIZED (
    SELECT r.number, m.batch_id
    FROM reasoning_messages AS r
    JOIN messages AS m ON m.bucket = $3 AND m.thread_id = $4 AND m.position = r.source_position
    -- If another call has just made the layer, this statement cannot see it and does nothing: the
    -- other call applies the layer.
    WHERE r.bucket = $1 AND r.session_id = $2 AND r.source_thread = $4 AND EXISTS (SELECT FROM head)
)
, batches AS MATERIALIZED (
    SELECT c.batch_id, count(*) AS messages, bool_or(w.number IS NOT NULL) AS is_shown
    FROM copies AS c LEFT JOIN shown AS w ON w.number = c.number
    GROUP BY c.batch_id
)
, hidden AS MATERIALIZED (
    SELECT b.batch_id, b.messages FROM batches AS b
    -- A batch that has grown since it was copied is not hidden, because no summary covers its new
    -- messages.
    WHERE NOT b.is_shown AND b.messages >= (
        SELECT count(*)
        FROM (SELECT m.* FROM messages AS m
              WHERE m.bucket = $3 AND m.thread_id = $4 AND m.position >= b.batch_id AND m.batch_id = b.batch_id AND NOT m.out_of_range
                AND m.position < coalesce((SELECT o.position FROM messages AS o
                                           WHERE o.bucket = $3 AND o.thread_id = $4 AND o.position > b.batch_id AND o.batch_id <> b.batch_id
                                           ORDER BY o.position LIMIT 1), 9223372036854775807)
              UNION ALL
              SELECT m.* FROM messages AS m
              WHERE m.bucket = $3 AND m.thread_id = $4 AND m.batch_id = b.batch_id AND m.out_of_range) AS m
        -- As in `create.sql`, assistant messages that have only thinking were not copied.
        WHERE NOT (m.role = 'assistant' AND m.content ~ '^\s*$' AND m.metadata ? 'reasoning'
                   AND (m.tool_calls IS NULL OR m.tool_calls IN ('null', '[]'))))
)
, live AS MATERIALIZED (
    SELECT c.* FROM compactions AS c
    WHERE c.bucket = $3 AND c.thread_id = $4 AND c.undone_at_position IS NULL AND c.pending_task IS NULL
    ORDER BY c.compaction_id DESC
    LIMIT 1
)
, own AS MATERIALIZED (SELECT * FROM live WHERE provenance ->> 'reasoning_session' = $2)
-- The compaction that would be effective without the session.
, base AS MATERIALIZED (
    SELECT * FROM live WHERE NOT EXISTS (SELECT FROM own)
    UNION ALL
    SELECT c.* FROM own AS o JOIN compactions AS c
        ON c.bucket = $3 AND c.thread_id = $4 AND c.compaction_id = o.previous_id AND c.undone_at_position IS NULL
)
, wanted AS MATERIALIZED (
    SELECT greatest(max(h.batch_id), (SELECT through_position FROM base)) AS through, count(*) AS batches, sum(h.messages)::bigint AS messages,
           array_agg(h.batch_id::text ORDER BY h.batch_id) AS ids
    FROM hidden AS h HAVING count(*) > 0
)
, kept AS (
    SELECT coalesce(array_agg(k.batch_id ORDER BY k.batch_id), '{}') AS ids
    FROM (
        SELECT unnest(b.kept_positions) AS batch_id FROM base AS b
        UNION
        -- The id of a batch is the position of its first message.
        SELECT m.batch_id FROM wanted AS w JOIN messages AS m ON m.bucket = $3 AND m.thread_id = $4
            AND m.position > CASE WHEN EXISTS (SELECT FROM base) THEN (SELECT through_position FROM base) ELSE -1 END
            AND m.position <= w.through AND m.position = m.batch_id
    ) AS k
    WHERE NOT EXISTS (SELECT FROM hidden AS h WHERE h.batch_id = k.batch_id)
)
-- The messages that each visible summary replaces.
, parts AS (
    SELECT w.number AS summary, w.place, w.number
    FROM shown AS w JOIN reasoning_layers AS l ON l.bucket = $1 AND l.session_id = $2 AND l.summary_number = w.number
    UNION ALL
    SELECT p.summary, p.place, r.number
    FROM parts AS p JOIN reasoning_layers AS l ON l.bucket = $1 AND l.session_id = $2 AND l.summary_number = p.number
    CROSS JOIN LATERAL unnest(l.replaced) AS r (number)
)
-- If part of a batch is visible, the summary of the rest is not needed, because the batch stays
-- whole.
, needed AS (
    SELECT DISTINCT p.summary, p.place FROM parts AS p JOIN copies AS c ON c.number = p.number JOIN hidden AS h ON h.batch_id = c.batch_id
)
, summary AS (
    SELECT concat_ws(E'\n\n', (SELECT summary FROM base), (
        SELECT string_agg(r.content, E'\n\n' ORDER BY n.place)
        FROM needed AS n JOIN reasoning_messages AS r ON r.bucket = $1 AND r.session_id = $2 AND r.number = n.summary
    )) AS text
)
, change AS MATERIALIZED (
    SELECT t.head_position, w.*, k.ids AS kept, y.text,
           (SELECT o.through_position = w.through AND o.kept_positions = k.ids AND o.summary = y.text FROM own AS o) IS TRUE AS is_same
    FROM s CROSS JOIN threads AS t CROSS JOIN kept AS k CROSS JOIN summary AS y LEFT JOIN wanted AS w ON true
    WHERE t.bucket = $3 AND t.thread_id = $4 AND t.head_position IS NOT NULL
      AND (s.head_layer = 0 OR EXISTS (SELECT FROM head))
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $3 AND e.thread_id = $4 AND e.recreated_at IS NULL)
      AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of($4))
)
, undone AS (
    -- Undoes all earlier compactions of the session. One of them may be followed by another
    -- compaction, and one may have been made concurrently.
    UPDATE compactions AS c SET undone_at_position = greatest(c.compaction_id, h.head_position) + 1, undone_by = $5
    FROM change AS h
    WHERE c.bucket = $3 AND c.thread_id = $4 AND c.undone_at_position IS NULL AND c.pending_task IS NULL
      AND c.provenance ->> 'reasoning_session' = $2
      AND (NOT h.is_same OR c.compaction_id IS DISTINCT FROM (SELECT o.compaction_id FROM own AS o))
    RETURNING 1
)
, written AS (
    INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id,
                             valid_from_position, actor)
    -- The id is above the newest message, as for every compaction, and above later compactions.
    SELECT $3, $4, n.id, h.through, h.kept, h.text, 'summarise',
           jsonb_build_object('batches', h.ids, 'messages', h.messages, 'tokens_before', 0, 'tokens_after', 0, 'reasoning_session', $2),
           (SELECT compaction_id FROM base), greatest(n.id, h.head_position + 1), $5
    FROM change AS h
    CROSS JOIN LATERAL (
        SELECT greatest(h.head_position, (SELECT max(c.compaction_id) FROM compactions AS c WHERE c.bucket = $3 AND c.thread_id = $4)) + 1 AS id
    ) AS n
    WHERE h.batches > 0 AND NOT h.is_same
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT coalesce((SELECT batches FROM wanted), 0) AS batches, s.head_layer > 0 AND NOT EXISTS (SELECT FROM head) AS is_stale,
       EXISTS (SELECT FROM written) OR NOT EXISTS (SELECT FROM change AS h WHERE h.batches > 0 AND NOT h.is_same) AS is_applied
FROM s
