-- $1 bucket, $2 session, $3 its exported rows.
WITH written AS (
    INSERT INTO reasoning_messages
    SELECT r.*
    FROM jsonb_array_elements($3::jsonb) AS e (row)
    CROSS JOIN LATERAL jsonb_populate_record(NULL::reasoning_messages, e.row || jsonb_build_object('bucket', $1::smallint, 'session_id', $2::text)) AS r
    -- The session may have been erased in the meantime.
    WHERE EXISTS (SELECT FROM reasoning_sessions AS s WHERE s.bucket = $1 AND s.session_id = $2)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT count(*) AS count FROM written
