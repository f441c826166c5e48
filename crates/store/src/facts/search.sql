-- The facts whose words fit best.
SELECT f.fact_id, f.scope, f.thread_id, f.assistant_message_id, f.text, f.kind, f.confidence, f.superseded_by,
       (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms,
       row_number() OVER (ORDER BY b.rank DESC, f.created_at DESC, f.fact_id) AS place_by_words, NULL::bigint AS place_by_vector
FROM best AS b
JOIN facts AS f ON f.bucket = $1 AND f.agent_id = $2 AND f.fact_id = b.fact_id
ORDER BY b.rank DESC, f.created_at DESC, f.fact_id
