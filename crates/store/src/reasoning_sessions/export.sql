-- $1 bucket, $2 session. One statement reads all of it, so that the layers match the head.
SELECT to_jsonb(s) - 'bucket' - 'sealed_number' AS session, s.last_number,
       coalesce((SELECT jsonb_agg(to_jsonb(l) - 'bucket' - 'session_id' ORDER BY l.layer_id) FROM reasoning_layers AS l
                 WHERE l.bucket = s.bucket AND l.session_id = s.session_id), '[]') AS layers,
       coalesce((SELECT jsonb_agg(to_jsonb(c) - 'bucket' - 'session_id' ORDER BY c.name) FROM reasoning_checkpoints AS c
                 WHERE c.bucket = s.bucket AND c.session_id = s.session_id), '[]') AS checkpoints
FROM reasoning_sessions AS s
WHERE s.bucket = $1 AND s.session_id = $2
