-- A search reads all facts of a scope, and as many vectors: their policies read the tenant of the session once a statement instead of once a row.
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
                 USING (CASE (SELECT current_setting(''antiphon.tenant'', true))
                     WHEN ''*'' THEN true
                     ELSE (SELECT current_setting(''antiphon.tenant'', true)) = antiphon_tenant_of(agent_id)
                 END)',
            name
        );
    END LOOP;
END
$$;
