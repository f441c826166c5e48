-- The vectors of facts, in a table beside them that only a database with the extension `vector` has. All of it in one transaction.
DROP TABLE IF EXISTS fact_vectors;

-- With the collations of the facts, which are not the same in every database: an index serves only what is compared as it is sorted. `scope` is that
-- of the fact, so that a search reads the vectors of a scope by one index.
CREATE TABLE fact_vectors AS SELECT bucket, agent_id, fact_id, scope FROM facts WITH NO DATA;
ALTER TABLE fact_vectors
    -- Of length 1; NULL: the fact waits for it. Without a number of numbers: only the model knows it. Half the bytes of single precision, and no
    -- difference in what is found.
    ADD COLUMN vector halfvec,
    ALTER COLUMN scope SET NOT NULL,
    ADD PRIMARY KEY (bucket, agent_id, fact_id),
    -- A vector goes with its fact, whatever deletes it, and none is written for a fact that has just gone.
    ADD FOREIGN KEY (bucket, agent_id, fact_id) REFERENCES facts ON DELETE CASCADE;

-- A search reads all vectors of a scope: those that lie in the row need no second look-up each.
ALTER TABLE fact_vectors ALTER COLUMN vector SET STORAGE MAIN;
CREATE INDEX fact_vectors_scope ON fact_vectors (bucket, agent_id, scope);
-- The last one: while the table is nearly empty all look the same to the planner, and it takes the youngest.
CREATE INDEX fact_vectors_waiting ON fact_vectors (bucket) WHERE vector IS NULL;

ALTER TABLE fact_vectors ENABLE ROW LEVEL SECURITY;
ALTER TABLE fact_vectors FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON fact_vectors
    -- As for facts: the tenant of the session is read once a statement, not once a vector.
    USING (CASE (SELECT antiphon_scope())
        WHEN '*' THEN true
        ELSE (SELECT antiphon_scope()) = antiphon_tenant_of(agent_id)
    END)
    WITH CHECK (antiphon_tenant_visible(agent_id));
