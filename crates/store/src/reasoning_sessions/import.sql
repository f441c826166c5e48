-- $1 bucket, $2 session, $3 its exported row. Numbers and layers stay at 0 until all rows are
-- written, and the sealed number is negative. So the numbers of missing messages cannot be used by
-- an append, and an interrupted import differs from a complete session.
WITH given AS (
    SELECT * FROM jsonb_populate_record(NULL::reasoning_sessions, $3::jsonb)
)
, made AS (
    INSERT INTO reasoning_sessions (bucket, session_id, agent_id, sources, source_threads, sealed_number, created_by, created_at,
                                    request_id, request_hash, applies_to)
    SELECT $1, $2, g.agent_id, g.sources, g.source_threads, -1, g.created_by, g.created_at, g.request_id, g.request_hash, g.applies_to
    FROM given AS g
    ON CONFLICT (bucket, session_id) DO NOTHING
    RETURNING true
)
SELECT EXISTS (SELECT FROM made)
       OR EXISTS (SELECT FROM reasoning_sessions AS s JOIN given AS g ON (s.agent_id, s.created_by, s.created_at) = (g.agent_id, g.created_by, g.created_at)
                  WHERE s.bucket = $1 AND s.session_id = $2 AND s.last_number = 0 AND (g.last_number > 0 OR s.sealed_number < 0)) AS goes_on
