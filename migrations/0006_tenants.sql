-- Tenants: whose a row is stands in its id (`<tenant>~<name>`, or `<name>` of the default tenant), so that nothing but the id has to be
-- carried through streams, subjects and tables. This is the second wall behind the gateway's own: a session sees what its setting
-- `antiphon.tenant` names, and nothing when it names nothing.
--
--   '*'        everything: workers, operators
--   '-'        what belongs to the default tenant
--   '<tenant>' what belongs to that tenant
--
-- FORCE, because the owner of the tables is the role that the fleet signs in with; superusers and roles with BYPASSRLS pass every
-- wall, so gateways warn when they are one.

CREATE FUNCTION antiphon_tenant_of(id text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE strpos(id, '~') WHEN 0 THEN '-' ELSE split_part(id, '~', 1) END;

CREATE FUNCTION antiphon_sees(id text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN current_setting('antiphon.tenant', true) = '*'
        OR current_setting('antiphon.tenant', true)
           = CASE strpos(id, '~') WHEN 0 THEN '-' ELSE split_part(id, '~', 1) END;

-- Credentials of services and people. The secret itself is nowhere: a digest of 256 random bits needs no salt and no slow hash.
CREATE TABLE api_keys (
    -- Part of the key's text, and public.
    key_id      text        PRIMARY KEY CHECK (key_id ~ '^[0-9a-f]{16}$'),
    digest      bytea       NOT NULL CHECK (length(digest) = 32),
    -- NULL: the default tenant.
    tenant      text        CHECK (tenant ~ '^[a-z0-9][a-z0-9-]{0,31}$'),
    role        text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    -- NULL: all that the role may.
    scopes      text[],
    -- For people.
    name        text        NOT NULL,
    created_by  text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    revoked_by  text,
    -- To the hour or so: nobody waits for it.
    last_used_at timestamptz
);

CREATE INDEX api_keys_tenant ON api_keys (tenant, created_at);

DO $$
DECLARE
    walled CONSTANT text[][] := ARRAY[
        ['threads', 'antiphon_sees(thread_id)'],
        ['messages', 'antiphon_sees(thread_id)'],
        ['stragglers', 'antiphon_sees(thread_id)'],
        ['straggler_chunks', 'antiphon_sees(thread_id)'],
        ['failed_turns', 'antiphon_sees(thread_id)'],
        ['open_turns', 'antiphon_sees(thread_id)'],
        ['idempotency_keys', 'antiphon_sees(thread_id)'],
        ['compactions', 'antiphon_sees(thread_id)'],
        ['erased_threads', 'antiphon_sees(thread_id)'],
        ['agents', 'antiphon_sees(agent_id)'],
        ['agent_settings', 'antiphon_sees(agent_id)'],
        ['tasks', 'antiphon_sees(agent_id)'],
        ['task_ids', 'antiphon_sees(agent_id)'],
        ['failed_tasks', 'antiphon_sees(agent_id)'],
        ['audit', 'antiphon_sees(subject_id)'],
        ['api_keys', 'antiphon_sees(coalesce(tenant || ''~'', ''''))'],
        -- A letter that could not be read has no thread, and so no tenant.
        ['dead_letters', 'CASE WHEN thread_id IS NULL THEN current_setting(''antiphon.tenant'', true) = ''*'' ELSE antiphon_sees(thread_id) END'],
        -- What no tenant has any business with.
        ['fleet', 'current_setting(''antiphon.tenant'', true) = ''*'''],
        ['workers', 'current_setting(''antiphon.tenant'', true) = ''*'''],
        ['partitions', 'current_setting(''antiphon.tenant'', true) = ''*'''],
        ['outbox', 'current_setting(''antiphon.tenant'', true) = ''*''']
    ];
    wall text[];
BEGIN
    FOREACH wall SLICE 1 IN ARRAY walled LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', wall[1]);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', wall[1]);
        EXECUTE format('CREATE POLICY tenants ON %I USING (%s) WITH CHECK (%s)', wall[1], wall[2], wall[2]);
    END LOOP;
END
$$;

-- As whoever asks, and not as its owner.
ALTER VIEW agent_tasks SET (security_invoker = true);
