-- Tenants that were erased: nothing can be written for one until an operator reopens its name or the mark is deleted by age.

CREATE TABLE erased_tenants (
    -- '-': the default one.
    tenant    text        COLLATE "C" PRIMARY KEY,
    erased_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    -- The run of the command that erases the tenant, until nothing of it is left. NULL: all of it is gone.
    erasing   text
);

-- Deleted by age.
CREATE INDEX erased_tenants_erased_at ON erased_tenants (erased_at);

ALTER TABLE erased_tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE erased_tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON erased_tenants
    USING (antiphon_tenant_visible(CASE tenant WHEN '-' THEN '' ELSE tenant || '~' END))
    WITH CHECK (antiphon_tenant_visible(CASE tenant WHEN '-' THEN '' ELSE tenant || '~' END));

-- Begins a transaction in the scope of a tenant; false: the tenant is erased, and nothing may be done. The lock is shared by all transactions
-- of the tenant, and taken alone by the one that writes the mark: so each of them has either ended before the mark, or finds it.
-- PL/pgSQL, because each of its statements sees what was committed before it began, and is planned once in a session.
CREATE FUNCTION antiphon_enter_tenant(of_tenant text) RETURNS boolean
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('antiphon.tenant', of_tenant, true);
    PERFORM pg_advisory_xact_lock_shared(1634628720, hashtext(of_tenant));
    RETURN NOT EXISTS (SELECT FROM erased_tenants AS e WHERE e.tenant = of_tenant);
END
$$;

-- Marks a tenant as erased, once no transaction in its scope is under way.
CREATE FUNCTION antiphon_mark_tenant_erased(of_tenant text, of_actor text, of_run text) RETURNS void
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1634628720, hashtext(of_tenant));
    INSERT INTO erased_tenants AS e (tenant, actor, erasing) VALUES (of_tenant, of_actor, of_run)
    ON CONFLICT (tenant) DO UPDATE SET erased_at = clock_timestamp(), actor = excluded.actor, erasing = excluded.erasing;
END
$$;

-- Entries of the audit that are about something of one user, agent or thread, and may name it though their subject does not: a budget, a fact.
-- The hash of tenant and scope (`user:…`, `agent:…`, `thread:…`), by which erasing finds them. NULL: about nothing of that kind.
ALTER TABLE audit_log ADD COLUMN about bytea;
CREATE INDEX audit_log_about ON audit_log (about) WHERE about IS NOT NULL;

CREATE FUNCTION antiphon_audit_about(tenant text, scope text) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN strpos(scope, ':') > 0 THEN sha256(convert_to(tenant || '~' || scope, 'UTF8')) END;
