-- API keys, and the keys with which the fleet itself signs, are rotated over the API; names of erased tenants are reopened over it.

-- A key has one secret, and after a rotation for a while also the one before.
ALTER TABLE api_keys
    ADD COLUMN rotated_at           timestamptz,
    ADD COLUMN previous_digest      bytea CHECK (length(previous_digest) = 32),
    ADD COLUMN previous_valid_until timestamptz,
    ADD CHECK ((previous_digest IS NULL) = (previous_valid_until IS NULL));

-- Gateways can neither read the key of turn tokens nor write a row of the installation. These functions do exactly this, with the rights of the
-- owner, and return no key. Callers see the default tenant or all tenants: a handler that does not check its caller's tenant is refused here.

-- Replaces a key of the installation. Signatures of the key before stay valid for `overlap`; without one they end at once. False, and nothing
-- is done: the overlap of the last rotation lasts, so that a third key would have to be valid.
CREATE FUNCTION antiphon_rotate_signing_key(
    kind text, overlap interval, audit_bucket smallint, command text, of_actor text, of_detail text
) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    seen CONSTANT text := current_setting('antiphon.tenant', true);
    has_overlap CONSTANT boolean := overlap > interval '0';
    secret CONSTANT bytea := sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));
    rotated integer;
BEGIN
    IF coalesce(seen, '') NOT IN ('-', '*') THEN
        RAISE EXCEPTION 'the keys of the installation are rotated by the default tenant' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM set_config('antiphon.tenant', '*', true);
    CASE kind
        WHEN 'turn-tokens' THEN
            UPDATE installation
            SET previous_token_key = CASE WHEN has_overlap THEN token_key END,
                token_key = secret,
                token_key_version = token_key_version + 1,
                token_key_changed_at = clock_timestamp()
            WHERE NOT (has_overlap AND previous_token_key IS NOT NULL AND token_key_changed_at > clock_timestamp() - overlap);
        WHEN 'tickets' THEN
            UPDATE installation
            SET previous_ticket_key = CASE WHEN has_overlap THEN ticket_key END,
                ticket_key = secret,
                -- Without an overlap no previous key is left that could sign in the meantime.
                ticket_key_changed_at = CASE WHEN has_overlap THEN clock_timestamp() END
            WHERE NOT (has_overlap AND previous_ticket_key IS NOT NULL AND ticket_key_changed_at > clock_timestamp() - overlap);
    END CASE;
    GET DIAGNOSTICS rotated = ROW_COUNT;
    IF rotated > 0 THEN
        INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
        VALUES (audit_bucket, kind || '+key', command, of_actor, 'rotate_key', kind, of_detail);
    END IF;
    PERFORM set_config('antiphon.tenant', seen, true);
    RETURN rotated > 0;
END
$$;

-- Deletes the mark of a completely erased tenant ('-': the default one), so that its name can be used again. Returns `reopened`, `being_erased`
-- if something may be left, or `unmarked`. The log is the default tenant's: what is the tenant's own is erased with it.
CREATE FUNCTION antiphon_reopen_tenant(of_tenant text, audit_bucket smallint, command text, of_actor text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    seen CONSTANT text := current_setting('antiphon.tenant', true);
    reopened integer;
    outcome text;
BEGIN
    IF coalesce(seen, '') NOT IN ('-', '*') THEN
        RAISE EXCEPTION 'tenants are reopened by the default tenant' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM set_config('antiphon.tenant', '*', true);
    DELETE FROM erased_tenants WHERE tenant = of_tenant AND erasing IS NULL;
    GET DIAGNOSTICS reopened = ROW_COUNT;
    IF reopened > 0 THEN
        INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target)
        VALUES (audit_bucket, of_tenant || '+tenant', command, of_actor, 'reopen_tenant', of_tenant);
        outcome := 'reopened';
    ELSE
        outcome := CASE WHEN EXISTS (SELECT FROM erased_tenants WHERE tenant = of_tenant) THEN 'being_erased' ELSE 'unmarked' END;
    END IF;
    PERFORM set_config('antiphon.tenant', seen, true);
    RETURN outcome;
END
$$;

-- What the two functions of erasures on keys would change: for dry runs.
CREATE FUNCTION antiphon_keys_of_tenant(of_tenant text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
AS $$
SELECT count(*) FROM api_keys AS k WHERE coalesce(k.tenant, '-') = of_tenant
$$;

CREATE FUNCTION antiphon_actor_in_keys(of_tenant text, of_user text) RETURNS TABLE (made bigint, revoked bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
AS $$
SELECT count(*) FILTER (WHERE k.created_by IN (of_user, 'jwt:' || of_user) OR right(k.created_by, length(of_user) + 1) = '/' || of_user),
       count(*) FILTER (WHERE k.revoked_by IN (of_user, 'jwt:' || of_user) OR right(k.revoked_by, length(of_user) + 1) = '/' || of_user)
FROM api_keys AS k
WHERE coalesce(k.tenant, '-') = of_tenant
$$;

-- The name of a user can be longer than an entry of an index.
DROP INDEX erasures_open;
CREATE UNIQUE INDEX erasures_open ON erasures (tenant, kind, md5(subject), is_preview) WHERE ended_at IS NULL;

REVOKE EXECUTE ON FUNCTION antiphon_keys_of_tenant(text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_actor_in_keys(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_rotate_signing_key(text, interval, smallint, text, text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION antiphon_reopen_tenant(text, smallint, text, text) FROM PUBLIC;
-- Temporary tables are found last: a caller's own table `installation` must not be written with the rights of the owner.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION antiphon_rotate_signing_key(text, interval, smallint, text, text, text) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION antiphon_keys_of_tenant(text) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION antiphon_actor_in_keys(text, text) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION antiphon_reopen_tenant(text, smallint, text, text) SET search_path = %I, pg_temp', current_schema());
END
$$;
