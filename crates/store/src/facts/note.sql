-- A tool of an agent remembers or corrects a fact. $1 bucket, $2 agent, $3 fact, $4 thread, $5
-- bucket of the thread, $6 text, $7 kind, $8 confidence, $9 the answer of the current turn (NULL:
-- not known), $10 bucket of the agent, $11 command, $12 actor, $13 how many facts of a scope are
-- kept, $14 the fact that it supersedes (NULL: none). A command is applied once.
WITH scope AS MATERIALIZED (
    -- The scope is determined as in `commit/facts.sql`, but is never 'agent': a statement in one
    -- thread does not apply to all threads. For an erased thread, nothing is remembered.
    SELECT $4::text AS thread_id,
           coalesce((SELECT 'user:' || (t.metadata ->> 'user_id') FROM threads AS t
                     WHERE t.bucket = $5 AND t.thread_id = $4 AND octet_length(t.metadata ->> 'user_id') <= 256), 'thread:' || $4) AS scope
    WHERE NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $5 AND e.thread_id = $4 AND e.recreated_at IS NULL)
)
, before AS MATERIALIZED (
    SELECT a.target FROM audit_log AS a WHERE a.bucket = $10 AND a.subject_id = $2 AND a.command_id = $11
)
-- A fact that is already stored in the same words is not stored again.
, known AS MATERIALIZED (
    SELECT k.fact_id
    FROM scope AS s
    JOIN facts AS k ON k.bucket = $1 AND k.agent_id = $2 AND k.scope = s.scope AND k.superseded_by IS NULL AND lower(k.text) = lower($6)
    WHERE $14::text IS NULL AND NOT EXISTS (SELECT FROM before)
    ORDER BY k.fact_id LIMIT 1
)
, replaced AS (
    UPDATE facts AS f SET superseded_by = $3
    FROM scope AS s
    WHERE f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = $14 AND f.scope = s.scope AND f.superseded_by IS NULL
      AND NOT EXISTS (SELECT FROM before)
    RETURNING f.kind, f.confidence
)
, added AS (
    INSERT INTO facts (bucket, agent_id, fact_id, scope, thread_id, assistant_message_id, text, kind, confidence)
    -- The fact is stored with the current thread, so that both are erased together.
    SELECT $1, $2, $3, s.scope, s.thread_id, $9, $6, coalesce($7::text, r.kind, 'note'), coalesce($8::real, r.confidence, 1)
    FROM scope AS s LEFT JOIN replaced AS r ON true
    WHERE NOT EXISTS (SELECT FROM before) AND NOT EXISTS (SELECT FROM known) AND ($14::text IS NULL OR r.kind IS NOT NULL)
    ON CONFLICT (bucket, agent_id, fact_id) DO NOTHING
    RETURNING bucket, agent_id, fact_id, scope
)
, forgotten AS (
    DELETE FROM facts AS f
    USING added AS a
    CROSS JOIN LATERAL (
        SELECT o.fact_id FROM facts AS o
        WHERE o.bucket = a.bucket AND o.agent_id = a.agent_id AND o.scope = a.scope
        -- This SELECT does not see the added fact.
        ORDER BY o.created_at DESC OFFSET $13 - 1
    ) AS o
    WHERE f.bucket = a.bucket AND f.agent_id = a.agent_id AND f.fact_id = o.fact_id
)
, audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, about)
    SELECT $10, $2, $11, $12, CASE WHEN $14::text IS NULL THEN 'add_fact' ELSE 'change_fact' END, a.fact_id,
           antiphon_audit_about(antiphon_tenant_of($2), a.scope)
    FROM added AS a
    ON CONFLICT (bucket, subject_id, command_id) DO NOTHING
)
SELECT EXISTS (SELECT FROM scope) AS has_thread, (SELECT coalesce(b.target, '') FROM before AS b) AS before,
       (SELECT k.fact_id FROM known AS k) AS known, EXISTS (SELECT FROM added) AS is_done
