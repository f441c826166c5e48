-- Erasures that clients request. Workers do them, and the receipts stay for a while.
CREATE TABLE erasures (
    -- A UUID of version 7 without hyphens: ids rise with time.
    erasure_id text        COLLATE "C" PRIMARY KEY CHECK (erasure_id ~ '^[0-9a-f]{32}$'),
    -- The tenant of the client; '-': the default one.
    tenant     text        COLLATE "C" NOT NULL,
    kind       text        COLLATE "C" NOT NULL CHECK (kind IN ('thread', 'user', 'tenant')),
    -- The id of the thread, the name of the user, or of the tenant. NULL: a user who is erased, name included.
    subject    text        COLLATE "C",
    -- Whether everything is only counted.
    is_preview boolean     NOT NULL,
    actor      text        NOT NULL,
    state      text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed')),
    -- The worker that does it, or did it last.
    worker     text,
    -- How many times a worker has begun it. Each write of a worker names this number, so that one that was paused writes nothing.
    attempts   integer     NOT NULL DEFAULT 0,
    -- When a worker may take it. While one does it, this is the end of that worker's lease.
    due_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What was removed so far, over all attempts.
    counts     jsonb       NOT NULL DEFAULT '{}',
    receipt    jsonb,
    -- Why the last attempt did not end it.
    error      text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    ended_at   timestamptz,
    CHECK (subject IS NOT NULL OR kind = 'user'),
    -- Gateways insert rows as a tenant: none may name what is another's.
    CHECK (kind <> 'tenant' OR tenant = '-'),
    CHECK (kind <> 'thread' OR antiphon_tenant_of(subject) = tenant)
);

-- The same request again finds the one that has not ended.
CREATE UNIQUE INDEX erasures_open ON erasures (tenant, kind, subject, is_preview) WHERE ended_at IS NULL;
CREATE INDEX erasures_due ON erasures (due_at) WHERE ended_at IS NULL;
CREATE INDEX erasures_of_tenant ON erasures (tenant, erasure_id);
-- Deleted by age.
CREATE INDEX erasures_ended_at ON erasures (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE erasures FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON erasures
    USING (antiphon_tenant_visible(CASE tenant WHEN '-' THEN '' ELSE tenant || '~' END))
    WITH CHECK (antiphon_tenant_visible(CASE tenant WHEN '-' THEN '' ELSE tenant || '~' END));

-- Workers erase, and have no access to keys. What an erasure changes there is done by these functions, with the rights of the owner.

-- Deletes the keys of a tenant that is marked as erased.
CREATE FUNCTION antiphon_erase_keys(of_tenant text) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
AS $$
WITH gone AS (
    DELETE FROM api_keys AS k
    WHERE coalesce(k.tenant, '-') = of_tenant AND EXISTS (SELECT FROM erased_tenants AS e WHERE e.tenant = of_tenant)
    RETURNING 1
)
SELECT count(*) FROM gone
$$;

-- Removes the name of a user, as an actor, from the keys of a tenant.
CREATE FUNCTION antiphon_forget_actor_of_keys(of_tenant text, of_user text) RETURNS TABLE (made bigint, revoked bigint)
    LANGUAGE sql SECURITY DEFINER
AS $$
WITH named AS MATERIALIZED (
    SELECT k.key_id,
           k.created_by IN (of_user, 'jwt:' || of_user) OR right(k.created_by, length(of_user) + 1) = '/' || of_user AS is_maker,
           coalesce(k.revoked_by IN (of_user, 'jwt:' || of_user) OR right(k.revoked_by, length(of_user) + 1) = '/' || of_user, false) AS is_revoker
    FROM api_keys AS k
    WHERE coalesce(k.tenant, '-') = of_tenant
)
, forgotten AS (
    UPDATE api_keys AS k
    SET created_by = CASE WHEN n.is_maker THEN 'erased' ELSE k.created_by END,
        revoked_by = CASE WHEN n.is_revoker THEN 'erased' ELSE k.revoked_by END
    FROM named AS n
    WHERE k.key_id = n.key_id AND (n.is_maker OR n.is_revoker)
    RETURNING n.is_maker, n.is_revoker
)
SELECT count(*) FILTER (WHERE is_maker), count(*) FILTER (WHERE is_revoker) FROM forgotten
$$;

REVOKE EXECUTE ON FUNCTION antiphon_erase_keys(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_forget_actor_of_keys(text, text) FROM PUBLIC;
-- Temporary tables are found last: a caller's own table `api_keys` must not be read with the rights of the owner.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION antiphon_erase_keys(text) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION antiphon_forget_actor_of_keys(text, text) SET search_path = %I, pg_temp', current_schema());
END
$$;
