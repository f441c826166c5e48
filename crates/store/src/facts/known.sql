-- $1 bucket, $2 agent, $3 bucket of the thread, $4 thread, $5 bucket of the agent's settings, $6
-- maximum number of facts per scope. Returns the facts that apply to the thread, for ranking. The
-- user is determined as in `commit/facts.sql`.
WITH scopes AS MATERIALIZED (
    SELECT 'agent' AS scope
    UNION ALL
    SELECT coalesce('user:' || (SELECT t.metadata ->> 'user_id' FROM threads AS t
                                WHERE t.bucket = $3 AND t.thread_id = $4 AND octet_length(t.metadata ->> 'user_id') <= 256),
                    'thread:' || $4)
)
SELECT f.fact_id, f.text, f.confidence, s.scope = 'agent' AS is_of_all, (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms,
       (SELECT g.settings ->> 'memory_language' FROM agent_settings AS g WHERE g.bucket = $5 AND g.agent_id = $2) AS memory_language
FROM scopes AS s
CROSS JOIN LATERAL (
    SELECT o.fact_id, o.short_text AS text, o.confidence, o.created_at
    FROM facts AS o
    WHERE o.bucket = $1 AND o.agent_id = $2 AND o.scope = s.scope AND o.superseded_by IS NULL AND o.short_text IS NOT NULL
    UNION ALL
    -- Facts whose texts are too long for the index.
    SELECT o.fact_id, o.text, o.confidence, o.created_at
    FROM facts AS o
    WHERE o.bucket = $1 AND o.agent_id = $2 AND o.scope = s.scope AND o.superseded_by IS NULL AND o.short_text IS NULL
    LIMIT $6
) AS f
