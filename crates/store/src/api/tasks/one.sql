-- $1 bucket, $2 agent, $3 task. Ids are known for seven days; afterwards the queue itself is searched.
SELECT t.*, (extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM t.failed_at) * 1000)::bigint AS failed_ms
FROM agent_tasks AS t
WHERE t.bucket = $1 AND t.agent_id = $2
  -- A look-up also with row security, for which coalesce is no value but an expression.
  AND t.position = (SELECT coalesce(
      (SELECT i.position FROM task_ids AS i WHERE i.bucket = $1 AND i.agent_id = $2 AND i.task_id = $3),
      (SELECT max(o.position) FROM tasks AS o WHERE o.bucket = $1 AND o.agent_id = $2 AND o.task_id = $3)))
