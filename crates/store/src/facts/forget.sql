-- A tool of an agent forgets a fact that applies to a thread, with its history. $1 bucket, $2
-- agent, $3 fact, $4 thread, $5 bucket of the thread, $6 bucket of the agent, $7 command, $8 actor.
-- A command is applied once.
WITH RECURSIVE scope AS MATERIALIZED (
    -- The scope is determined as in `note.sql`.
    SELECT coalesce((SELECT 'user:' || (t.metadata ->> 'user_id') FROM threads AS t
                     WHERE t.bucket = $5 AND t.thread_id = $4 AND octet_length(t.metadata ->> 'user_id') <= 256), 'thread:' || $4) AS scope
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $5 AND e.thread_id = $4 AND e.recreated_at IS NULL)
)
, before AS MATERIALIZED (
    SELECT a.target FROM audit_log AS a WHERE a.bucket = $6 AND a.subject_id = $2 AND a.command_id = $7
)
, history AS (
    SELECT f.fact_id
    FROM scope AS s
    JOIN facts AS f ON f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = $3 AND f.scope = s.scope AND f.superseded_by IS NULL
    WHERE NOT EXISTS (SELECT FROM before)
    UNION
    SELECT f.fact_id FROM history AS h
    JOIN facts AS f ON f.bucket = $1 AND f.agent_id = $2 AND f.superseded_by = h.fact_id
)
, gone AS (
    DELETE FROM facts AS f USING history AS h
    WHERE f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = h.fact_id
    RETURNING f.scope
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, about)
    SELECT $6, $2, $7, $8, 'delete_fact', $3, antiphon_audit_about(antiphon_tenant_of($2), g.scope) FROM gone AS g LIMIT 1
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT EXISTS (SELECT FROM scope) AS has_thread, (SELECT coalesce(b.target, '') FROM before AS b) AS before,
       NULL::text AS known, EXISTS (SELECT FROM gone) AS is_done
