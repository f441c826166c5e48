-- Triggers that update the vectors of facts when facts change. They are written at each layout, so
-- that a database has the triggers of its version.
--
-- Facts are written by commits, requests and imports. Their statements must not name a table that
-- most databases do not have. The functions do nothing if the table is missing, because a database
-- restored without the extension still has them.
CREATE OR REPLACE FUNCTION antiphon_fact_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('fact_vectors') IS NOT NULL THEN
        INSERT INTO fact_vectors (bucket, agent_id, fact_id, scope)
        SELECT a.bucket, a.agent_id, a.fact_id, a.scope FROM added AS a WHERE a.superseded_by IS NULL
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION antiphon_fact_superseded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('fact_vectors') IS NOT NULL THEN
        IF NEW.superseded_by IS NOT NULL THEN
            DELETE FROM fact_vectors AS v WHERE v.bucket = NEW.bucket AND v.agent_id = NEW.agent_id AND v.fact_id = NEW.fact_id;
        ELSE
            -- The fact is no longer superseded.
            INSERT INTO fact_vectors (bucket, agent_id, fact_id, scope) VALUES (NEW.bucket, NEW.agent_id, NEW.fact_id, NEW.scope)
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER fact_added AFTER INSERT ON facts
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION antiphon_fact_added();
CREATE OR REPLACE TRIGGER fact_superseded AFTER UPDATE OF superseded_by ON facts
    FOR EACH ROW WHEN (OLD.superseded_by IS DISTINCT FROM NEW.superseded_by) EXECUTE FUNCTION antiphon_fact_superseded();
