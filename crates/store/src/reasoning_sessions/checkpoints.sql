-- $1 bucket, $2 session. Returns a row for each checkpoint. For a session without checkpoints,
-- returns one row without a name.
SELECT s.head_layer, c.name, c.layer_id, (extract(epoch FROM c.made_at) * 1000)::bigint AS made_ms,
       l.undone_at IS NULL AS stands, h.previous_id, h.summary_number
FROM reasoning_sessions AS s
LEFT JOIN reasoning_layers AS h ON h.bucket = s.bucket AND h.session_id = s.session_id AND h.layer_id = s.head_layer
LEFT JOIN reasoning_checkpoints AS c ON c.bucket = s.bucket AND c.session_id = s.session_id
LEFT JOIN reasoning_layers AS l ON l.bucket = s.bucket AND l.session_id = s.session_id AND l.layer_id = c.layer_id
WHERE s.bucket = $1 AND s.session_id = $2
ORDER BY c.name
