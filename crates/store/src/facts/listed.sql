-- $1 bucket, $2 agent.
SELECT f.fact_id, f.scope, f.thread_id, f.assistant_message_id, f.text, f.kind, f.confidence, f.superseded_by,
       (extract(epoch FROM f.created_at) * 1000)::bigint AS created_ms
FROM facts AS f
WHERE f.bucket = $1 AND f.agent_id = $2
