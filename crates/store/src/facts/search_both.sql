-- The facts whose words fit best and those whose vectors are nearest, by both places: $8 the vector of the text, $9 most rows of both together.
-- A thousand facts of a scope are kept, so that all of their vectors are compared: that is exact, and an index of vectors would first find those of other
-- users. Vectors have length 1; those with another number of numbers are of a model that has changed. Materialized, or the text of the vector would be read
-- anew for each of them.
, wanted AS MATERIALIZED (
    SELECT $8::text::halfvec AS vector
)
, near AS MATERIALIZED (
    SELECT v.fact_id, v.vector <#> q.vector AS distance
    FROM wanted AS q
    CROSS JOIN scopes AS s
    CROSS JOIN LATERAL (
        SELECT o.fact_id, o.vector FROM fact_vectors AS o
        WHERE o.bucket = $1 AND o.agent_id = $2 AND o.scope = s.scope AND vector_dims(o.vector) = vector_dims(q.vector)
        OFFSET 0
    ) AS v
    ORDER BY distance, v.fact_id
    LIMIT $7
)
-- Reciprocal rank fusion: ranks by words and distances have no common measure, places have.
, placed AS MATERIALIZED (
    SELECT b.fact_id, row_number() OVER (ORDER BY b.rank DESC, b.created_at DESC, b.fact_id) AS by_words, NULL::bigint AS by_vector
    FROM best AS b
    UNION ALL
    SELECT n.fact_id, NULL, row_number() OVER (ORDER BY n.distance, n.fact_id) FROM near AS n
)
, fused AS MATERIALIZED (
    SELECT p.fact_id, min(p.by_words) AS by_words, min(p.by_vector) AS by_vector,
           sum(1.0::float8 / (60 + coalesce(p.by_words, p.by_vector))) AS score
    FROM placed AS p
    GROUP BY p.fact_id
    ORDER BY score DESC, p.fact_id
    LIMIT $9
)
SELECT f.fact_id, f.scope, f.thread_id, f.assistant_message_id, f.text, f.kind, f.confidence, f.superseded_by,
       (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms, b.by_words AS place_by_words, b.by_vector AS place_by_vector
FROM fused AS b
JOIN facts AS f ON f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = b.fact_id AND f.superseded_by IS NULL
ORDER BY b.score DESC, f.fact_id
