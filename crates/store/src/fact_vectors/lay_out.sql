-- Vectors of facts, in a separate table that exists only in a database with the extension `vector`.
-- Runs in one transaction.
DROP TABLE IF EXISTS fact_vectors;

-- The table is created from `facts` to get its collations, which differ between databases: an index
-- only serves comparisons in its own sort order. `scope` is the scope of the fact, so that a search
-- reads the vectors of a scope with one index.
CREATE TABLE fact_vectors AS SELECT bucket, agent_id, fact_id, scope FROM facts WITH NO DATA;
ALTER TABLE fact_vectors
    -- A vector of length 1; NULL: the fact waits for its vector. No fixed dimension, because only
    -- the model knows it. halfvec needs half the bytes of single precision, with the same search
    -- results.
    ADD COLUMN vector halfvec,
    ALTER COLUMN scope SET NOT NULL,
    ADD PRIMARY KEY (bucket, agent_id, fact_id),
    -- A vector is deleted with its fact, whatever deletes the fact. No vector is written for a fact
    -- that has just been deleted.
    ADD FOREIGN KEY (bucket, agent_id, fact_id) REFERENCES facts ON DELETE CASCADE;

-- A search reads all vectors of a scope. Vectors stored in the row need no second look-up.
ALTER TABLE fact_vectors ALTER COLUMN vector SET STORAGE MAIN;
CREATE INDEX fact_vectors_scope ON fact_vectors (bucket, agent_id, scope);
-- Created last: while the table is nearly empty, all indexes have the same cost for the planner,
-- and it chooses the newest one.
CREATE INDEX fact_vectors_waiting ON fact_vectors (bucket) WHERE vector IS NULL;

ALTER TABLE fact_vectors ENABLE ROW LEVEL SECURITY;
ALTER TABLE fact_vectors FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_isolation ON fact_vectors
    -- As for facts, the tenant of the session is read once per statement, not once per vector.
    USING (CASE (SELECT antiphon_scope())
        WHEN '*' THEN true
        ELSE (SELECT antiphon_scope()) = antiphon_tenant_of(agent_id)
    END)
    WITH CHECK (antiphon_tenant_visible(agent_id));
