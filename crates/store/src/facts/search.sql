-- $1 bucket, $2 agent, $3 bucket of the thread, $4 thread, $5 bucket of the agent's settings, $6 text, $7 most rows. Any word of the text may fit.
WITH asked AS MATERIALIZED (
    SELECT string_agg('''' || replace(replace(w.lexeme, '\', '\\'), '''', '''''') || '''', ' | ')::tsquery AS words
    FROM unnest(to_tsvector(
        coalesce((SELECT c.oid::regconfig FROM pg_ts_config AS c
                 JOIN agent_settings AS s ON c.cfgname = s.settings ->> 'memory_language'
                 WHERE s.bucket = $5 AND s.agent_id = $2 LIMIT 1), 'simple'::regconfig),
        $6)) AS w
)
, scopes AS MATERIALIZED (
    SELECT 'agent' AS scope
    UNION ALL
    SELECT coalesce('user:' || (SELECT t.metadata ->> 'user_id' FROM threads AS t WHERE t.bucket = $3 AND t.thread_id = $4),
                    'thread:' || $4)
)
SELECT f.*, (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms
FROM scopes AS s
CROSS JOIN asked AS a
CROSS JOIN LATERAL (
    SELECT o.*, ts_rank(o.search, a.words) AS rank
    FROM facts AS o
    WHERE o.bucket = $1 AND o.agent_id = $2 AND o.scope = s.scope AND o.superseded_by IS NULL AND o.search @@ a.words
    OFFSET 0
) AS f
ORDER BY f.rank * f.confidence DESC, f.created_at DESC, f.fact_id
LIMIT $7
