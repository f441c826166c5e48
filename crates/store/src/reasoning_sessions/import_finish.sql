-- $1 bucket, $2 session, $3 its exported row.
UPDATE reasoning_sessions AS s
SET last_number = g.last_number, head_layer = g.head_layer, last_layer = g.last_layer, waiting_calls = g.waiting_calls, plan = g.plan,
    sealed_number = 0, changed_at = clock_timestamp()
FROM jsonb_populate_record(NULL::reasoning_sessions, $3::jsonb) AS g
WHERE s.bucket = $1 AND s.session_id = $2 AND s.last_number = 0 AND s.head_layer = 0
