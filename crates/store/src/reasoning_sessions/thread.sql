-- $1 bucket, $2 session, $3 whether texts are wanted, $4 a request id that may have been used, $5 the longest result that is shown. One row
-- for the session; what is shown comes in arrays, each in the same order, which is no particular one.
WITH s AS MATERIALIZED (
    SELECT *, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
    FROM reasoning_sessions WHERE bucket = $1 AND session_id = $2
)
, head AS MATERIALIZED (
    SELECT l.shown, l.summary_number FROM s JOIN reasoning_layers AS l
        ON l.bucket = s.bucket AND l.session_id = s.session_id AND l.layer_id = s.head_layer
)
, visible AS (
    SELECT m.* FROM head AS h
    CROSS JOIN LATERAL generate_series(1, cardinality(h.shown), 2) AS i
    CROSS JOIN LATERAL (
        SELECT * FROM reasoning_messages AS m
        WHERE m.bucket = $1 AND m.session_id = $2 AND m.number BETWEEN h.shown[i] AND h.shown[i + 1]
        OFFSET 0
    ) AS m
    UNION ALL
    -- A summary is shown by layers only: what a layer that was undone put there is not.
    SELECT m.* FROM reasoning_messages AS m
    WHERE m.bucket = $1 AND m.session_id = $2
      -- A parameter of the look-up. As an expression beside it, which row security cannot take for safe, it would be checked row by row.
      AND m.number > (SELECT coalesce(max(summary_number), 0) FROM head)
      -- No number is higher. With both ends the planner takes it for the short range that it is, however long the log before it is.
      AND m.number <= (SELECT last_number FROM s)
      AND m.role <> 'summary'
)
SELECT s.agent_id, s.sources, s.last_number, s.head_layer, s.waiting_calls, s.plan, s.created_by, s.created_ms,
       (SELECT shown FROM head) AS shown, (SELECT summary_number FROM head) AS summary_number, v.*,
       l.layer_id AS earlier_layer, l.summary_number AS earlier_summary, l.request_hash AS earlier_hash
FROM s
CROSS JOIN LATERAL (
    SELECT array_agg(number) AS numbers, array_agg(in_temp) AS in_temp, array_agg(role) AS roles, array_agg(chars) AS chars,
           array_agg(calls::text) AS calls, array_agg(answers) AS answers, array_agg(tool) AS tools,
           CASE WHEN $3 THEN array_agg(CASE WHEN role = 'tool' AND chars > $5 THEN '' ELSE content END) END AS contents
    FROM visible
) AS v
LEFT JOIN reasoning_layers AS l ON l.bucket = $1 AND l.session_id = $2 AND l.request_id = $4
