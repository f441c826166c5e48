-- $1 partition or NULL for all, $2 actor; $3 bucket and $4 subject of the audit, $5 act.
WITH done AS (
    UPDATE incidents SET acknowledged_at = clock_timestamp(), acknowledged_by = $2
    WHERE acknowledged_at IS NULL AND ($1::smallint IS NULL OR partition_id = $1)
    RETURNING 1
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
    SELECT $3, $4, $5, $2, 'acknowledge_incidents', coalesce($1::text, 'all'), count(*) || ' incidents'
    FROM done HAVING count(*) > 0
)
SELECT count(*) AS count FROM done
