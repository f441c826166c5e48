-- $1 age, $2 how many. Deletes sessions that have not changed for this time. Also deletes their
-- audit entries, because another session may get the same id. A session that is being changed stays
-- for now, and several workers share the work.
WITH old AS MATERIALIZED (
    SELECT s.ctid AS place FROM reasoning_sessions AS s WHERE s.changed_at < now() - $1
    LIMIT $2 FOR UPDATE SKIP LOCKED
)
, gone AS (
    DELETE FROM reasoning_sessions AS s USING old AS o WHERE s.ctid = o.place RETURNING s.bucket, s.session_id
)
, audited AS (
    -- Arrays, because with them the planner always uses the index.
    DELETE FROM audit_log WHERE bucket = ANY (ARRAY(SELECT bucket FROM gone))
      AND subject_id = ANY (ARRAY(SELECT session_id || '+reasoning' FROM gone))
)
SELECT count(*) AS count FROM gone
