-- $1 bucket, $2 agent, $3 fact, $4 bucket of the agent, $5 command, $6 actor, $7 true if the facts
-- that it superseded become current again. Otherwise these facts are deleted too, because
-- forgetting a fact includes its earlier versions.
WITH RECURSIVE history AS (
    SELECT fact_id FROM facts WHERE bucket = $1 AND agent_id = $2 AND fact_id = $3
    UNION
    SELECT f.fact_id FROM history AS h
    JOIN facts AS f ON f.bucket = $1 AND f.agent_id = $2 AND f.superseded_by = h.fact_id
    WHERE NOT $7::boolean
)
, restored AS (
    -- Restored facts are now superseded by the fact that superseded the deleted one, or by none
    -- (NULL).
    UPDATE facts AS f SET superseded_by = u.superseded_by
    FROM facts AS u
    WHERE $7 AND u.bucket = $1 AND u.agent_id = $2 AND u.fact_id = $3 AND f.bucket = $1 AND f.agent_id = $2 AND f.superseded_by = $3
)
, gone AS (
    DELETE FROM facts AS f USING history AS h
    WHERE f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = h.fact_id
    RETURNING f.fact_id, f.scope
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, about)
    SELECT $4, $2, $5, $6, 'delete_fact', $3, antiphon_audit_about(antiphon_tenant_of($2), g.scope) FROM gone AS g LIMIT 1
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT count(*) AS count FROM gone
