-- $1 bucket, $2 session, $3 true to return texts, $4 a request id that may have been used, $5 the
-- longest result that is shown, $6 messages of a block.
--
-- Returns one row for the session, whose first_number is NULL, and one row for each visible piece.
-- Pieces are blocks and single messages, in no particular order. Arrays of pieces would be copied
-- once more by the server and by the client.
WITH s AS MATERIALIZED (
    SELECT *, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
    FROM reasoning_sessions WHERE bucket = $1 AND session_id = $2
)
, head AS MATERIALIZED (
    SELECT l.shown, l.summary_number FROM s JOIN reasoning_layers AS l
        ON l.bucket = s.bucket AND l.session_id = s.session_id AND l.layer_id = s.head_layer
)
-- Runs of visible numbers, and messages appended later.
, runs AS (
    SELECT h.shown[i] AS first, h.shown[i + 1] AS last, false AS is_later
    FROM head AS h CROSS JOIN generate_series(1, cardinality(h.shown), 2) AS i
    UNION ALL
    SELECT coalesce((SELECT summary_number FROM head), 0) + 1, s.last_number, true FROM s
)
-- Each run with the blocks that lie entirely within it: first_block to last_block. Of a partly
-- visible block only the needed messages are read, one by one.
, parts AS MATERIALIZED (
    SELECT r.*, (r.first - 1 + $6 - 1) / $6 * $6 + 1 AS first_block, least(r.last, s.sealed_number) / $6 * $6 AS last_block
    FROM runs AS r CROSS JOIN s
)
, pieces AS (
    SELECT b.first_number, b.outline, CASE WHEN $3 THEN b.texts END AS texts
    FROM parts AS p
    CROSS JOIN LATERAL (
        SELECT * FROM reasoning_blocks AS b
        WHERE b.bucket = $1 AND b.session_id = $2 AND b.first_number BETWEEN p.first_block AND p.last_block
        OFFSET 0
    ) AS b
    UNION ALL
    SELECT m.number, antiphon_reasoning_outline(m.role, m.in_temp, m.chars, octet_length(t.text), m.calls, m.answers, m.tool),
           CASE WHEN $3 THEN t.text END
    FROM parts AS p
    CROSS JOIN LATERAL (
        SELECT p.first, CASE WHEN p.first_block < p.last_block THEN p.first_block - 1 ELSE p.last END
        UNION ALL
        SELECT p.last_block + 1, p.last WHERE p.first_block < p.last_block
    ) AS e (first, last)
    CROSS JOIN LATERAL (
        SELECT * FROM reasoning_messages AS m
        WHERE m.bucket = $1 AND m.session_id = $2 AND m.number BETWEEN e.first AND e.last
          -- Summaries come only from the layers, because the summary of an undone layer is not
          -- visible.
          AND (NOT p.is_later OR m.role <> 'summary')
        OFFSET 0
    ) AS m
    CROSS JOIN LATERAL (SELECT CASE WHEN m.role = 'tool' AND m.chars > $5 THEN '' ELSE m.content END) AS t (text)
)
SELECT NULL::bigint AS first_number, NULL::text AS outline, NULL::text AS texts, s.agent_id, s.sources, s.last_number, s.head_layer,
       s.waiting_calls, s.plan, s.created_by, s.created_ms, s.applies_to, (SELECT shown FROM head) AS shown,
       (SELECT summary_number FROM head) AS summary_number,
       l.layer_id AS earlier_layer, l.summary_number AS earlier_summary, l.request_hash AS earlier_hash
FROM s
LEFT JOIN reasoning_layers AS l ON l.bucket = $1 AND l.session_id = $2 AND l.request_id = $4
UNION ALL
SELECT p.first_number, p.outline, p.texts, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM pieces AS p
