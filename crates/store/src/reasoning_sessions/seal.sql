-- $1 bucket, $2 session, $3 messages of a block, $4 the longest result that is shown. Writes the
-- blocks that are complete and not written yet.
WITH s AS MATERIALIZED (
    SELECT sealed_number, last_number FROM reasoning_sessions WHERE bucket = $1 AND session_id = $2 FOR NO KEY UPDATE
)
, made AS (
    INSERT INTO reasoning_blocks (bucket, session_id, first_number, outline, texts)
    SELECT $1, $2, f.number, b.outline, b.texts
    FROM s
    CROSS JOIN LATERAL generate_series(s.sealed_number + 1, s.last_number - $3 + 1, $3) AS f (number)
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, string_agg(t.text, '' ORDER BY m.number) AS texts,
               string_agg(antiphon_reasoning_outline(m.role, m.in_temp, m.chars, octet_length(t.text), m.calls, m.answers, m.tool),
                          E'\n' ORDER BY m.number) AS outline
        FROM reasoning_messages AS m
        CROSS JOIN LATERAL (SELECT CASE WHEN m.role = 'tool' AND m.chars > $4 THEN '' ELSE m.content END) AS t (text)
        WHERE m.bucket = $1 AND m.session_id = $2 AND m.number BETWEEN f.number AND f.number + $3 - 1
    ) AS b
    -- The locked row of the session is the newest version, but the messages are those of the start
    -- of the statement. So the last messages may be missing.
    WHERE b.count = $3
    RETURNING 1
)
UPDATE reasoning_sessions AS t SET sealed_number = s.sealed_number + $3 * (SELECT count(*) FROM made)
FROM s
WHERE t.bucket = $1 AND t.session_id = $2
