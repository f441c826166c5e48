-- $1 thread, $2 answers there, $3 most rows. Returns the current facts found or added with these
-- answers.
SELECT f.agent_id, f.fact_id, f.scope, f.thread_id, f.assistant_message_id, f.text, f.kind, f.confidence, f.superseded_by,
       (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms
FROM facts AS f
WHERE f.thread_id = $1 AND f.assistant_message_id = ANY ($2) AND f.superseded_by IS NULL
ORDER BY f.agent_id, length(f.fact_id), f.fact_id
LIMIT $3
