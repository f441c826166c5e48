-- Keys are ids, which no language sorts. In a database whose locale is not C, every comparison in an index would go through the rules of a
-- language, which takes a commit two fifths more processor time, and an operating system with other rules would corrupt the unique keys that keep
-- everything exactly once. All text that an index has is compared by its bytes.
--
-- Only in a database that is new: where rows are, it would build all indexes anew, and sessions that run beside it could not go on with
-- what they have prepared.

DO $$
DECLARE
    changed record;
    drop_policies text;
    create_policies text;
    tasks_view text;
BEGIN
    IF EXISTS (SELECT FROM installation) THEN
        RETURN;
    END IF;
    -- A column cannot be changed while a view shows it, another column is generated from it, or a policy names it.
    tasks_view := pg_get_viewdef('agent_tasks'::regclass);
    DROP VIEW agent_tasks;
    ALTER TABLE facts DROP COLUMN words;
    FOR changed IN
        SELECT c.oid::regclass AS name, string_agg(DISTINCT format('ALTER COLUMN %I TYPE %s COLLATE "C"', a.attname, a.atttypid::regtype), ', ') AS columns
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indrelid
        JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relnamespace = current_schema()::regnamespace
          -- The index of `words`, which has gone with it, has the scope as well.
          AND (a.attnum = ANY (i.indkey) OR c.relname = 'facts' AND a.attname = 'scope')
          AND a.atttypid IN ('text'::regtype, 'text[]'::regtype)
          AND a.attcollation <> '"C"'::regcollation
        GROUP BY c.oid
    LOOP
        SELECT string_agg(format('DROP POLICY %I ON %s', p.polname, changed.name), '; '),
               string_agg(format('CREATE POLICY %I ON %s USING (%s) WITH CHECK (%s)', p.polname, changed.name,
                                 pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)), '; ')
        INTO STRICT drop_policies, create_policies
        FROM pg_policy AS p
        WHERE p.polrelid = changed.name;
        EXECUTE drop_policies;
        EXECUTE format('ALTER TABLE %s %s', changed.name, changed.columns);
        EXECUTE create_policies;
    END LOOP;
    ALTER TABLE facts ADD COLUMN words tsvector GENERATED ALWAYS AS (
        CASE WHEN octet_length(scope) + octet_length(strip(to_tsvector(language, text))::text) <= 1500 THEN strip(to_tsvector(language, text)) END
    ) STORED;
    CREATE INDEX facts_words ON facts (bucket, agent_id, scope, created_at DESC) INCLUDE (superseded_by, fact_id, confidence, words);
    CREATE INDEX facts_without_words ON facts (bucket, agent_id, scope) WHERE words IS NULL;
    EXECUTE 'CREATE VIEW agent_tasks WITH (security_invoker = true) AS ' || tasks_view;
END
$$;
