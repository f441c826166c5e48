-- $1 bucket, $2 kind, $3 key of the dead letter; $4 bucket and $5 subject of the audit, $6 act, $7
-- actor, $8 the dead letter's id.
WITH done AS (
    DELETE FROM dead_letters WHERE bucket = $1 AND kind = $2 AND key = $3
    RETURNING 1
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
    SELECT $4, $5, $6, $7, 'drop_dead_letter', $8 FROM done
)
SELECT count(*) AS count FROM done
