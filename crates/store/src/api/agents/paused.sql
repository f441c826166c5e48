-- $1, $2 after this bucket and agent, $3 limit. Without an index: the owners' updates must stay heap-only.
SELECT bucket, agent_id FROM agents
WHERE (bucket, agent_id) > ($1, $2) AND paused
ORDER BY bucket, agent_id
LIMIT $3
