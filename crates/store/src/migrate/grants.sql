-- Grants rights to the three roles of deploy/postgres-roles.sql, if they exist. `antiphon migrate`
-- runs this after the migrations, so that new tables are covered. It is one transaction, so that no
-- process loses its rights in between.
DO $$
DECLARE
    name text;
    columns text;
    -- Tables that gateways write. They can read all other tables, within a tenant.
    written CONSTANT text[][] := ARRAY[
        ['threads', 'INSERT, UPDATE'],
        ['thread_list', 'INSERT, UPDATE'],
        ['feedback', 'INSERT, UPDATE, DELETE'],
        ['erased_threads', 'UPDATE'],
        ['erasures', 'INSERT'],
        ['idempotency_keys', 'INSERT, UPDATE'],
        ['responses', 'INSERT, UPDATE'],
        ['compactions', 'INSERT, UPDATE'],
        ['agent_settings', 'INSERT, UPDATE'],
        ['agent_aliases', 'INSERT, DELETE'],
        ['timers', 'INSERT, UPDATE'],
        ['schedules', 'INSERT, UPDATE, DELETE'],
        ['facts', 'INSERT, UPDATE, DELETE'],
        ['fact_vectors', 'INSERT, UPDATE, DELETE'],
        ['budgets', 'INSERT, UPDATE, DELETE'],
        ['api_keys', 'INSERT, UPDATE'],
        ['audit_log', 'INSERT'],
        ['dead_letters', 'UPDATE (claimed_at, replayed_at), DELETE'],
        ['incidents', 'UPDATE (acknowledged_at, acknowledged_by)'],
        ['reasoning_sessions', 'INSERT, UPDATE'],
        ['reasoning_messages', 'INSERT'],
        ['reasoning_blocks', 'INSERT'],
        ['reasoning_layers', 'INSERT, UPDATE'],
        ['reasoning_checkpoints', 'INSERT, UPDATE']
    ];
    entry text[];
BEGIN
    -- Without the lock, two concurrent migrations would change the same catalog rows.
    PERFORM pg_advisory_xact_lock(hashtextextended('antiphon grants', 0));
    FOREACH name IN ARRAY ARRAY['antiphon_gateway', 'antiphon_worker', 'antiphon_operator'] LOOP
        CONTINUE WHEN to_regrole(name) IS NULL;
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), name);
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', current_schema(), name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_agents_page(text, smallint, text, bigint, text) TO %I', name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_fork_thread(smallint, text, smallint, text, bigint, text, text, text) TO %I', name);
        IF name <> 'antiphon_worker' THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_rotate_signing_key(text, interval, smallint, text, text, text) TO %I', name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_reopen_tenant(text, smallint, text, text) TO %I', name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_import_thread TO %I', name);
        END IF;
        IF name = 'antiphon_gateway' THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION antiphon_all_tenants() FROM %I', name);
            -- Tables of the installation and its workers. Gateways have no access to the keys of
            -- turn tokens.
            EXECUTE format('REVOKE ALL ON installation, workers, partitions, partition_saves, outbox, turn_limits, turn_limit_turns, turn_limit_workers FROM %I', name);
            SELECT string_agg(quote_ident(a.attname), ', ') INTO columns FROM pg_attribute AS a
            WHERE a.attrelid = 'installation'::regclass AND a.attnum > 0 AND NOT a.attisdropped
              AND a.attname NOT IN ('token_key', 'previous_token_key');
            EXECUTE format('GRANT SELECT (%s) ON installation TO %I', columns, name);
            FOREACH entry SLICE 1 IN ARRAY written LOOP
                CONTINUE WHEN to_regclass(entry[1]) IS NULL;
                EXECUTE format('GRANT %s ON %I TO %I', entry[2], entry[1], name);
            END LOOP;
        ELSE
            EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_all_tenants() TO %I', name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION antiphon_erase_keys(text), antiphon_forget_actor_of_keys(text, text), antiphon_keys_of_tenant(text), antiphon_actor_in_keys(text, text) TO %I', name);
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO %I', current_schema(), name);
            EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON _sqlx_migrations FROM %I', name);
        END IF;
        IF name = 'antiphon_worker' THEN
            EXECUTE format('REVOKE ALL ON api_keys FROM %I', name);
            EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON installation FROM %I', name);
        END IF;
    END LOOP;
END
$$;
