-- $1 bucket, $2 agent, $3 after, $4 limit. Those that are not marked failed.
SELECT t.position, t.task_id, t.kind, t.content, t.metadata
FROM tasks AS t
WHERE t.bucket = $1 AND t.agent_id = $2 AND t.position > $3
  AND NOT EXISTS (SELECT FROM failed_tasks AS f
                  WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position
                  OFFSET 0)
ORDER BY t.position
LIMIT $4
