-- $1 bucket, $2 session, $3 name, $4 maximum number of checkpoints. Gives the newest layer this
-- name; if the name exists, it moves to the newest layer.
WITH s AS MATERIALIZED (
    SELECT head_layer FROM reasoning_sessions WHERE bucket = $1 AND session_id = $2 FOR NO KEY UPDATE
)
, others AS (
    SELECT count(*) AS count FROM reasoning_checkpoints WHERE bucket = $1 AND session_id = $2 AND name <> $3
)
, made AS (
    INSERT INTO reasoning_checkpoints (bucket, session_id, name, layer_id)
    SELECT $1, $2, $3, s.head_layer FROM s, others WHERE others.count < $4
    ON CONFLICT (bucket, session_id, name) DO UPDATE SET layer_id = excluded.layer_id, made_at = clock_timestamp()
    RETURNING layer_id
)
SELECT (SELECT layer_id FROM made) AS layer_id, others.count FROM s, others
