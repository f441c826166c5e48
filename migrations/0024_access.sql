-- More about an entry of the audit log: what a key grants.
ALTER TABLE audit_log ADD COLUMN detail text;

-- The keys of turn tokens and of tickets can be rotated: the key before counts for some time. `token_key_version` rises with each rotation, so
-- that an owner never takes older keys for newer ones.
ALTER TABLE installation
    ADD COLUMN previous_token_key    bytea CHECK (length(previous_token_key) = 32),
    ADD COLUMN token_key_version     integer NOT NULL DEFAULT 0,
    ADD COLUMN token_key_changed_at  timestamptz,
    ADD COLUMN ticket_key            bytea CHECK (length(ticket_key) = 32),
    ADD COLUMN previous_ticket_key   bytea CHECK (length(previous_ticket_key) = 32),
    ADD COLUMN ticket_key_changed_at timestamptz;

-- Tickets of gateways of an earlier version go on.
UPDATE installation SET ticket_key = sha256(token_key || convert_to('gateway', 'UTF8'));

ALTER TABLE installation
    ALTER COLUMN ticket_key SET NOT NULL,
    ALTER COLUMN ticket_key SET DEFAULT
        sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));

-- Who may see all tenants. The setting `antiphon.tenant` names what a session sees, but any role may set it: `*` counts only for the owner of the
-- tables, and for roles that may execute this function. The function itself is never called.
CREATE FUNCTION antiphon_all_tenants() RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN true;
REVOKE EXECUTE ON FUNCTION antiphon_all_tenants() FROM PUBLIC;

-- What the session sees: `*`, a tenant (`-`: the default one), `@` for what gateways need of the installation itself, or nothing.
CREATE FUNCTION antiphon_scope() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE current_setting('antiphon.tenant', true)
        WHEN '*' THEN CASE WHEN has_function_privilege('antiphon_all_tenants()'::regprocedure, 'EXECUTE') THEN '*' END
        ELSE current_setting('antiphon.tenant', true)
    END;

CREATE OR REPLACE FUNCTION antiphon_tenant_visible(id text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    -- A case, as before: see the migration that made it. Written out, so that the setting is read once a row where a tenant is named.
    RETURN CASE current_setting('antiphon.tenant', true)
        WHEN '*' THEN has_function_privilege('antiphon_all_tenants()'::regprocedure, 'EXECUTE')
        ELSE current_setting('antiphon.tenant', true) = CASE strpos(id, '~') WHEN 0 THEN '-' ELSE split_part(id, '~', 1) END
    END;

-- A search reads all facts of a scope, and as many vectors: their policies read the scope of the session once a statement instead of once a row.
-- They say what `antiphon_tenant_visible` says; a function with a subquery would not be inlined, and called for each row.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['facts', 'fact_vectors'] LOOP
        -- Only databases with the extension `vector` have the second one.
        CONTINUE WHEN to_regclass(name) IS NULL;
        EXECUTE format(
            'ALTER POLICY tenant_isolation ON %I
                 USING (CASE (SELECT antiphon_scope())
                     WHEN ''*'' THEN true
                     ELSE (SELECT antiphon_scope()) = antiphon_tenant_of(agent_id)
                 END)',
            name
        );
    END LOOP;
    FOREACH name IN ARRAY ARRAY['installation', 'workers', 'partitions', 'partition_saves', 'partition_change', 'incidents', 'outbox',
                                'turn_limits', 'turn_limit_turns', 'turn_limit_workers'] LOOP
        EXECUTE format('ALTER POLICY tenant_isolation ON %I USING (antiphon_scope() = ''*'') WITH CHECK (antiphon_scope() = ''*'')', name);
    END LOOP;
END
$$;

-- Gateways read the number of partitions, the keys of tickets and the marks of erased tenants, and find API keys of all tenants by their ids.
CREATE POLICY of_gateways ON installation USING (antiphon_scope() = '@') WITH CHECK (false);
CREATE POLICY of_gateways ON partition_change USING (antiphon_scope() = '@') WITH CHECK (false);
CREATE POLICY of_gateways ON erased_tenants USING (antiphon_scope() = '@') WITH CHECK (false);
CREATE POLICY of_gateways ON api_keys USING (antiphon_scope() = '@') WITH CHECK (antiphon_scope() = '@');

-- A page of agents: of all tenants, or of one. `which`: `all`, `backoff` or `paused`. With the rights of the owner, because the loose scan
-- goes from agent to agent of all tenants; row security would read the tasks of the others one by one. An agent without settings may have
-- tasks only, and there is no index for those that wait: the owners' updates must stay heap-only.
CREATE FUNCTION antiphon_agents_page(which text, after_bucket smallint, after_agent text, most bigint, of_tenant text)
    RETURNS TABLE (bucket smallint, agent_id text)
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
#variable_conflict use_column
DECLARE
    -- Only a superuser could make it a setting of the function.
    seen CONSTANT text := current_setting('antiphon.tenant', true);
BEGIN
    IF of_tenant IS NULL AND NOT has_function_privilege(session_user, 'antiphon_all_tenants()'::regprocedure, 'EXECUTE') THEN
        RETURN;
    END IF;
    PERFORM set_config('antiphon.tenant', '*', true);
    IF which <> 'all' THEN
        RETURN QUERY
        SELECT a.bucket, a.agent_id FROM agents AS a
        WHERE (a.bucket, a.agent_id) > (after_bucket, after_agent)
          AND CASE which WHEN 'paused' THEN a.paused ELSE a.backoff_next_run_at > clock_timestamp() END
          AND (of_tenant IS NULL OR antiphon_tenant_of(a.agent_id) = of_tenant)
        ORDER BY a.bucket, a.agent_id
        LIMIT most;
        PERFORM set_config('antiphon.tenant', coalesce(seen, ''), true);
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE busy AS (
        (SELECT t.bucket, t.agent_id FROM tasks AS t
         WHERE (t.bucket, t.agent_id) > (after_bucket, after_agent) ORDER BY t.bucket, t.agent_id LIMIT 1)
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
        (SELECT b.bucket, b.agent_id FROM busy AS b WHERE of_tenant IS NULL OR antiphon_tenant_of(b.agent_id) = of_tenant LIMIT most)
        UNION
        (SELECT s.bucket, s.agent_id FROM agent_settings AS s
         WHERE (s.bucket, s.agent_id) > (after_bucket, after_agent) AND (of_tenant IS NULL OR antiphon_tenant_of(s.agent_id) = of_tenant)
         ORDER BY s.bucket, s.agent_id LIMIT most)
        UNION
        (SELECT a.bucket, a.agent_id FROM agents AS a
         WHERE (a.bucket, a.agent_id) > (after_bucket, after_agent) AND (of_tenant IS NULL OR antiphon_tenant_of(a.agent_id) = of_tenant)
         ORDER BY a.bucket, a.agent_id LIMIT most)
    ) AS u
    ORDER BY u.bucket, u.agent_id
    LIMIT most;
    PERFORM set_config('antiphon.tenant', coalesce(seen, ''), true);
END
$$;
REVOKE EXECUTE ON FUNCTION antiphon_agents_page(text, smallint, text, bigint, text) FROM PUBLIC;
-- Temporary tables are found last: a caller's own table `tasks` must not be read with the rights of the owner.
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION antiphon_agents_page(text, smallint, text, bigint, text) SET search_path = %I, pg_temp',
        current_schema()
    );
END
$$;
