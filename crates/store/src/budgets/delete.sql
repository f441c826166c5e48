-- $1 tenant, $2 name, $3 bucket and $4 subject of the audit, $5 command, $6 actor.
WITH gone AS (
    DELETE FROM budgets WHERE tenant = $1 AND name = $2 RETURNING scope
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, about)
    SELECT $3, $4, $5, $6, 'delete_budget', $2, antiphon_audit_about($1, g.scope) FROM gone AS g
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT count(*) AS count FROM gone
