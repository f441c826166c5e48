-- $1, $2 after this bucket and agent, $3 limit, $4 of this tenant only ('-': the default tenant) or NULL. An agent without settings may have tasks only: the loose scan goes
-- from agent to agent by the index.
WITH RECURSIVE busy AS (
    (SELECT t.bucket, t.agent_id FROM tasks AS t
     WHERE (t.bucket, t.agent_id) > ($1, $2) ORDER BY t.bucket, t.agent_id LIMIT 1)
    UNION ALL
    SELECT n.bucket, n.agent_id
    FROM busy AS b
    CROSS JOIN LATERAL (
        SELECT t.bucket, t.agent_id FROM tasks AS t
        WHERE (t.bucket, t.agent_id) > (b.bucket, b.agent_id) ORDER BY t.bucket, t.agent_id LIMIT 1
    ) AS n
)
SELECT u.bucket, u.agent_id
FROM (
    (SELECT bucket, agent_id FROM busy WHERE $4 IS NULL OR antiphon_tenant_of(agent_id) = $4 LIMIT $3)
    UNION
    (SELECT bucket, agent_id FROM agent_settings
     WHERE (bucket, agent_id) > ($1, $2) AND ($4 IS NULL OR antiphon_tenant_of(agent_id) = $4)
     ORDER BY bucket, agent_id LIMIT $3)
    UNION
    (SELECT bucket, agent_id FROM agents
     WHERE (bucket, agent_id) > ($1, $2) AND ($4 IS NULL OR antiphon_tenant_of(agent_id) = $4)
     ORDER BY bucket, agent_id LIMIT $3)
) AS u
ORDER BY u.bucket, u.agent_id
LIMIT $3
