-- $1 bucket, $2 agent, $3 facts, $4 vector, $5 most rows. Returns the nearest of these facts. Each
-- fact is compared: that is exact, while a vector index would first find facts of other users.
--
-- Vectors have length 1. Vectors with another dimension belong to an earlier version of the model.
-- The CTE is materialized because otherwise the literal of the vector would be parsed for each
-- fact.
WITH wanted AS MATERIALIZED (
    SELECT $4::text::halfvec AS vector
)
SELECT v.fact_id
FROM wanted AS q
CROSS JOIN unnest($3::text[]) AS w (fact_id)
JOIN fact_vectors AS v ON v.bucket = $1 AND v.agent_id = $2 AND v.fact_id = w.fact_id AND vector_dims(v.vector) = vector_dims(q.vector)
ORDER BY v.vector <#> q.vector, v.fact_id
LIMIT $5
