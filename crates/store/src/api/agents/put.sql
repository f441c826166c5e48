-- $1 bucket, $2 agent, $3 workflow, $4 settings, $5 act, $6 actor, $7 aliases. Writes nothing when
-- the agent's own thread is being erased, or when an alias belongs to another agent.
WITH mark AS MATERIALIZED (
    SELECT erasing FROM erased_threads WHERE bucket = $1 AND thread_id = $2 FOR UPDATE
), taken AS MATERIALIZED (
    SELECT a.alias, a.agent_id FROM agent_aliases AS a
    WHERE a.tenant = antiphon_tenant_of($2) AND a.alias = ANY ($7) AND a.agent_id <> $2
    ORDER BY a.alias
    LIMIT 1
), put AS (
    INSERT INTO agent_settings AS s (bucket, agent_id, workflow, settings)
    SELECT $1, $2, $3, $4
    WHERE NOT EXISTS (SELECT FROM mark WHERE erasing IS NOT NULL) AND NOT EXISTS (SELECT FROM taken)
    ON CONFLICT (bucket, agent_id) DO UPDATE
    SET workflow = excluded.workflow, settings = excluded.settings, version = s.version + 1,
        updated_at = clock_timestamp()
    RETURNING version
), dropped AS (
    DELETE FROM agent_aliases AS a
    WHERE a.agent_id = $2 AND a.alias <> ALL ($7) AND EXISTS (SELECT FROM put)
), added AS (
    -- Concurrent settings of two agents with the same alias violate the key: one of them fails.
    INSERT INTO agent_aliases (tenant, alias, agent_bucket, agent_id)
    SELECT antiphon_tenant_of($2), n.alias, $1, $2
    FROM unnest($7::text[]) AS n (alias)
    WHERE EXISTS (SELECT FROM put)
      AND NOT EXISTS (SELECT FROM agent_aliases AS a WHERE a.tenant = antiphon_tenant_of($2) AND a.alias = n.alias)
    -- In one order, so that two agents with the same aliases do not wait for each other.
    ORDER BY n.alias
), named AS (
    -- If the agent's own thread was erased, it accepts messages again.
    UPDATE erased_threads SET recreated_at = clock_timestamp()
    WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL AND EXISTS (SELECT FROM put)
), audited AS (
    INSERT INTO audit_log (bucket, subject_id, command_id, actor, action)
    SELECT $1, $2, $5, $6, 'put_settings' FROM put
)
SELECT (SELECT version FROM put) AS version, (SELECT alias FROM taken) AS alias, (SELECT agent_id FROM taken) AS alias_of
