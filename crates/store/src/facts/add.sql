-- $1 bucket, $2 agent, $3 fact, $4 scope, $5 text, $6 kind, $7 confidence, $8 the fact that it
-- supersedes (NULL: none), $9 bucket of the agent, $10 command, $11 actor, $12 how many facts of a
-- scope are kept.
WITH replaced AS (
    UPDATE facts SET superseded_by = $3
    WHERE bucket = $1 AND agent_id = $2 AND fact_id = $8 AND superseded_by IS NULL
    RETURNING scope, thread_id, assistant_message_id, kind, confidence
)
, added AS (
    INSERT INTO facts (bucket, agent_id, fact_id, scope, thread_id, assistant_message_id, text, kind, confidence)
    SELECT $1, $2, $3, coalesce(r.scope, $4),
           CASE WHEN $8::text IS NULL AND $4 LIKE 'thread:%' THEN substr($4, 8) ELSE r.thread_id END, r.assistant_message_id, $5,
           coalesce($6::text, r.kind, 'note'), coalesce($7::real, r.confidence, 1)
    FROM (SELECT) AS one LEFT JOIN replaced AS r ON true
    WHERE $8::text IS NULL OR r.scope IS NOT NULL
    RETURNING *
)
, forgotten AS (
    DELETE FROM facts AS f
    USING added AS a
    CROSS JOIN LATERAL (
        SELECT o.fact_id FROM facts AS o
        WHERE o.bucket = a.bucket AND o.agent_id = a.agent_id AND o.scope = a.scope
        -- This SELECT does not see the added fact.
        ORDER BY o.created_at DESC OFFSET $12 - 1
    ) AS o
    WHERE f.bucket = a.bucket AND f.agent_id = a.agent_id AND f.fact_id = o.fact_id
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, about)
    SELECT $9, $2, $10, $11, CASE WHEN $8::text IS NULL THEN 'add_fact' ELSE 'change_fact' END, a.fact_id,
           antiphon_audit_about(antiphon_tenant_of($2), a.scope)
    FROM added AS a
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT a.*, (extract(epoch FROM a.created_at) * 1000)::bigint AS created_ms FROM added AS a
