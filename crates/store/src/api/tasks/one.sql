-- $1 bucket, $2 agent, $3 task. Ids are kept for seven days; older tasks are searched in the queue
-- itself.
SELECT t.*, (extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM t.failed_at) * 1000)::bigint AS failed_ms
FROM agent_tasks AS t
WHERE t.bucket = $1 AND t.agent_id = $2
  -- The sub-SELECT keeps this an index look-up under row security, where coalesce is not leakproof.
  AND t.position = (SELECT coalesce(
      (SELECT i.position FROM task_ids AS i WHERE i.bucket = $1 AND i.agent_id = $2 AND i.task_id = $3),
      (SELECT max(o.position) FROM tasks AS o WHERE o.bucket = $1 AND o.agent_id = $2 AND o.task_id = $3)))
