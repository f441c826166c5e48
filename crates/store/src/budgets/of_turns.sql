-- Turns that would begin: $6 bucket of the thread, $7 thread, $8 agent, $9 user of a thread that
-- has none. A turn counts in several scopes. For each turn and scope, returns the exhausted budget
-- whose period ends last, with the index of the turn. Also returns each budget of these scopes
-- whose period has ended, once.
WITH asked AS MATERIALIZED (
    SELECT k.place, antiphon_tenant_of(k.thread_id) AS tenant, v.scope
    FROM unnest($6::smallint[], $7::text[], $8::text[], $9::text[]) WITH ORDINALITY AS k (bucket, thread_id, agent_id, user_id, place)
    LEFT JOIN threads AS t ON t.bucket = k.bucket AND t.thread_id = k.thread_id
    CROSS JOIN LATERAL (VALUES ('tenant'), ('agent:' || k.agent_id), ('user:' || coalesce(t.metadata ->> 'user_id', k.user_id))) AS v (scope)
)
, counted AS MATERIALIZED (
    SELECT b.*, b.period_end AS counts_before
    FROM budgets AS b
    WHERE (b.tenant, b.scope) IN (SELECT a.tenant, a.scope FROM asked AS a)
)
{sums}
, deciding AS (
    (SELECT DISTINCT ON (s.tenant, s.scope) s.*, true AS is_spent
     FROM summed AS s
     WHERE s.amount >= s.amount_left
     ORDER BY s.tenant, s.scope, s.period_end DESC, s.name)
    UNION ALL
    SELECT s.*, false FROM summed AS s WHERE s.period_end <= clock_timestamp()
)
SELECT a.place, c.*, {columns}
FROM deciding AS s
JOIN budgets AS c ON c.tenant = s.tenant AND c.name = s.name
CROSS JOIN LATERAL (
    SELECT a.place FROM asked AS a WHERE a.tenant = s.tenant AND a.scope = s.scope
    LIMIT CASE WHEN s.is_spent THEN NULL ELSE 1 END
) AS a
