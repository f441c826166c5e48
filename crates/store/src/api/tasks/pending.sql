-- $1 bucket, $2 agent, $3 after, $4 limit. Starts at the head, because very many completed tasks
-- may precede it.
SELECT t.*, (extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM t.failed_at) * 1000)::bigint AS failed_ms
FROM agent_tasks AS t
WHERE t.bucket = $1 AND t.agent_id = $2
  AND t.position > greatest($3, (SELECT head_position FROM agents WHERE bucket = $1 AND agent_id = $2))
  AND t.status = 'pending'
ORDER BY t.position
LIMIT $4
