-- Keys are ids, which no language sorts. In a database whose locale is not C, every comparison in an index would go through the rules of a
-- language, which takes a commit three tenths more processor time, and an operating system with other rules would corrupt the unique keys that keep
-- everything exactly once. All text that an index has is compared by its bytes.
--
-- Only in a database that is new: where rows are, it would build all indexes anew, and sessions that run beside it could not go on with
-- what they have prepared.

DO $$
DECLARE
    own regclass[];
    -- Statements, in the order in which they are run.
    before_change text[];
    change text[];
    after_change text[];
    statement text;
BEGIN
    IF EXISTS (SELECT FROM installation) THEN
        RETURN;
    END IF;
    -- Another application may have tables beside these.
    own := ARRAY(
        SELECT p.polrelid::regclass
        FROM pg_policy AS p
        JOIN pg_class AS c ON c.oid = p.polrelid
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE p.polname = 'tenant_isolation' AND n.nspname = current_schema()
    );
    change := ARRAY(
        SELECT format('ALTER TABLE %s %s', o.name, string_agg(DISTINCT format('ALTER COLUMN %I TYPE %s COLLATE "C"', a.attname, a.atttypid::regtype), ', '))
        FROM unnest(own) AS o (name)
        JOIN pg_index AS i ON i.indrelid = o.name
        JOIN pg_attribute AS a ON a.attrelid = o.name AND a.attnum = ANY (i.indkey)
        WHERE a.atttypid IN ('text'::regtype, 'text[]'::regtype)
        GROUP BY o.name
    );
    -- A column cannot be changed while a view shows it, another column is generated from it, or a policy names it. Indexes are made anew in their
    -- order: of two that look the same to the planner it takes the younger one.
    SELECT array_agg(drops ORDER BY step, number DESC), array_agg(creates ORDER BY step DESC, number)
    INTO STRICT before_change, after_change
    FROM (
        SELECT 1 AS step, 1 AS number, 'DROP VIEW agent_tasks' AS drops,
               'CREATE VIEW agent_tasks WITH (security_invoker = true) AS ' || pg_get_viewdef('agent_tasks'::regclass) AS creates
        UNION ALL
        SELECT 2, c.oid::bigint, format('ALTER TABLE %s DROP CONSTRAINT %I', o.name, c.conname),
               format('ALTER TABLE %s ADD CONSTRAINT %I %s', o.name, c.conname, pg_get_constraintdef(c.oid))
        FROM unnest(own) AS o (name)
        JOIN pg_constraint AS c ON c.conrelid = o.name AND c.contype = 'f'
        UNION ALL
        SELECT 3, i.indexrelid::bigint,
               CASE WHEN c.oid IS NULL THEN format('DROP INDEX %s', i.indexrelid::regclass)
                    ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', o.name, c.conname) END,
               CASE WHEN c.oid IS NULL THEN pg_get_indexdef(i.indexrelid)
                    ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', o.name, c.conname, pg_get_constraintdef(c.oid)) END
        FROM unnest(own) AS o (name)
        JOIN pg_index AS i ON i.indrelid = o.name
        LEFT JOIN pg_constraint AS c ON c.conindid = i.indexrelid AND c.contype IN ('p', 'u')
        UNION ALL
        SELECT 4, p.oid::bigint, format('DROP POLICY %I ON %s', p.polname, o.name),
               format('CREATE POLICY %I ON %s USING (%s) WITH CHECK (%s)', p.polname, o.name,
                      pg_get_expr(p.polqual, o.name), pg_get_expr(p.polwithcheck, o.name))
        FROM unnest(own) AS o (name)
        JOIN pg_policy AS p ON p.polrelid = o.name
        UNION ALL
        SELECT 5, 1, 'ALTER TABLE facts DROP COLUMN words',
               'ALTER TABLE facts ADD COLUMN words tsvector GENERATED ALWAYS AS (
                    CASE WHEN octet_length(scope) + octet_length(strip(to_tsvector(language, text))::text) <= 1500
                         THEN strip(to_tsvector(language, text)) END
                ) STORED'
    ) AS parts;
    FOREACH statement IN ARRAY before_change || change || after_change LOOP
        EXECUTE statement;
    END LOOP;
END
$$;
