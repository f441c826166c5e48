-- Of turns that would begin: $6 bucket of the thread, $7 thread, $8 agent. A row for each budget that concerns one of them, with the turn's place.
WITH asked AS MATERIALIZED (
    SELECT k.place, antiphon_tenant_of(k.thread_id) AS tenant, v.scope
    FROM unnest($6::smallint[], $7::text[], $8::text[]) WITH ORDINALITY AS k (bucket, thread_id, agent_id, place)
    LEFT JOIN threads AS t ON t.bucket = k.bucket AND t.thread_id = k.thread_id
    CROSS JOIN LATERAL (VALUES ('tenant'), ('agent:' || k.agent_id), ('user:' || (t.metadata ->> 'user_id'))) AS v (scope)
)
, counted AS MATERIALIZED (
    SELECT b.*, b.period_end AS counts_before
    FROM budgets AS b
    WHERE (b.tenant, b.scope) IN (SELECT a.tenant, a.scope FROM asked AS a)
)
{sums}
SELECT a.place, c.*, {columns}
FROM asked AS a
JOIN counted AS c ON c.tenant = a.tenant AND c.scope = a.scope
LEFT JOIN summed AS s ON s.tenant = c.tenant AND s.name = c.name
