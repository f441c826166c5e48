-- $1 bucket, $2 session, $3 the newest layer when the session was read, $4 the layer that becomes
-- the head again (0: none), $5 actor, $6 the action in the audit log, $7 the request id, if the
-- request may be sent twice. Undoes all layers above $4; undoes none if another layer has become
-- the newest in the meantime.
WITH taken AS (
    UPDATE reasoning_sessions SET head_layer = $4, changed_at = clock_timestamp()
    WHERE bucket = $1 AND session_id = $2 AND head_layer = $3
    RETURNING 1
)
, undone AS (
    UPDATE reasoning_layers AS l SET undone_at = clock_timestamp(), undone_by = $5
    FROM taken
    WHERE l.bucket = $1 AND l.session_id = $2 AND l.layer_id > $4 AND l.undone_at IS NULL
    RETURNING l.summary_number
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
    SELECT $1, $2 || '+reasoning', coalesce($7, gen_random_uuid()::text), $5, $6, (SELECT 'rm-' || min(summary_number) FROM undone) FROM taken
)
SELECT (SELECT count(*) FROM undone) AS count FROM taken
