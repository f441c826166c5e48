-- API keys, the audit log, and what each tenant sees.

-- Credentials of services and people. The secret itself is nowhere: a digest of 256 random bits needs no salt and no slow hash.
CREATE TABLE api_keys (
    -- Part of the key's text, and public.
    key_id       text        PRIMARY KEY CHECK (key_id ~ '^[0-9a-f]{16}$'),
    digest       bytea       NOT NULL CHECK (length(digest) = 32),
    -- NULL: the default tenant.
    tenant       text        CHECK (tenant ~ '^[a-z0-9][a-z0-9-]{0,31}$'),
    role         text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    -- NULL: all scopes of the role.
    scopes       text[],
    -- For people.
    name         text        NOT NULL,
    created_by   text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    revoked_by   text,
    -- To the hour or so: no request waits for it.
    last_used_at timestamptz
);

CREATE INDEX api_keys_tenant ON api_keys (tenant, created_at);

-- Control commands to agents, tasks, turns and threads, and who gave them.
CREATE TABLE audit_log (
    bucket     smallint    NOT NULL,
    -- The agent or thread.
    subject_id text        NOT NULL,
    command_id text        NOT NULL,
    actor      text        NOT NULL,
    action     text        NOT NULL,
    target     text,
    -- Why it was rejected. NULL: done.
    error      text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX audit_log_created_at ON audit_log (bucket, subject_id, created_at);

-- After the other index: while the table is nearly empty both look the same to the planner, and it takes the younger one.
ALTER TABLE audit_log ADD PRIMARY KEY (bucket, subject_id, command_id);

-- Deleted by age. Written in the order of time, so that a BRIN index costs next to nothing.
CREATE INDEX audit_log_created_at_brin ON audit_log USING brin (created_at);

-- Row-level security by tenant. The tenant of a row is in its id (`<tenant>~<name>`, or `<name>` of the default tenant), so that nothing
-- but the id has to be carried through streams, subjects and tables. This is the second check behind the gateway's own: a session
-- sees what its setting `antiphon.tenant` names, and nothing when it names nothing.
--
--   '*'        everything: workers, operators
--   '-'        what belongs to the default tenant
--   '<tenant>' what belongs to that tenant
--
-- FORCE, because the tables belong to the role that the processes sign in with; superusers and roles with BYPASSRLS bypass it all the
-- same, so gateways warn when they are one.

CREATE FUNCTION antiphon_tenant_of(id text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE strpos(id, '~') WHEN 0 THEN '-' ELSE split_part(id, '~', 1) END;

CREATE FUNCTION antiphon_tenant_visible(id text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    -- As a case the planner takes it to be true of half of the rows, with "or" of one in a hundred: then it sorts all messages of a thread
    -- for the newest one, instead of reading an index backwards.
    RETURN CASE current_setting('antiphon.tenant', true)
        WHEN '*' THEN true
        ELSE current_setting('antiphon.tenant', true) = CASE strpos(id, '~') WHEN 0 THEN '-' ELSE split_part(id, '~', 1) END
    END;

DO $$
DECLARE
    everything CONSTANT text := 'current_setting(''antiphon.tenant'', true) = ''*''';
    policies CONSTANT text[][] := ARRAY[
        ['threads', 'antiphon_tenant_visible(thread_id)'],
        ['messages', 'antiphon_tenant_visible(thread_id)'],
        ['failed_messages', 'antiphon_tenant_visible(thread_id)'],
        ['expired_messages', 'antiphon_tenant_visible(thread_id)'],
        ['compactions', 'antiphon_tenant_visible(thread_id)'],
        ['erased_threads', 'antiphon_tenant_visible(thread_id)'],
        ['failed_turns', 'antiphon_tenant_visible(thread_id)'],
        ['idempotency_keys', 'antiphon_tenant_visible(thread_id)'],
        ['responses', 'antiphon_tenant_visible(thread_id)'],
        ['usage', 'antiphon_tenant_visible(thread_id)'],
        ['usage_days', 'antiphon_tenant_visible(CASE tenant WHEN ''-'' THEN '''' ELSE tenant || ''~'' END)'],
        ['spilled_messages', 'antiphon_tenant_visible(thread_id)'],
        ['spilled_turns', 'antiphon_tenant_visible(thread_id)'],
        ['agents', 'antiphon_tenant_visible(agent_id)'],
        ['agent_settings', 'antiphon_tenant_visible(agent_id)'],
        ['tasks', 'antiphon_tenant_visible(agent_id)'],
        ['task_ids', 'antiphon_tenant_visible(agent_id)'],
        ['failed_tasks', 'antiphon_tenant_visible(agent_id)'],
        ['dead_letters', 'antiphon_tenant_visible(antiphon_dead_letter_owner(thread_id, subject))'],
        ['audit_log', 'antiphon_tenant_visible(subject_id)'],
        ['api_keys', 'antiphon_tenant_visible(coalesce(tenant || ''~'', ''''))'],
        -- Of the installation, and of no tenant.
        ['installation', everything],
        ['workers', everything],
        ['partitions', everything],
        ['partition_saves', everything],
        ['partition_change', everything],
        ['incidents', everything],
        ['outbox', everything]
    ];
    policy text[];
BEGIN
    FOREACH policy SLICE 1 IN ARRAY policies LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', policy[1]);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', policy[1]);
        EXECUTE format('CREATE POLICY tenant_isolation ON %I USING (%s) WITH CHECK (%s)', policy[1], policy[2], policy[2]);
    END LOOP;
END
$$;
