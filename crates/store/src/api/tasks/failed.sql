-- $1 bucket, $2 agent, $3 after, $4 limit. Starts from the failure marks, because there are few.
SELECT t.*, (extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM t.failed_at) * 1000)::bigint AS failed_ms
FROM agent_tasks AS t
WHERE t.bucket = $1 AND t.agent_id = $2
  AND t.position = ANY (ARRAY(SELECT f.position FROM failed_tasks AS f
                              WHERE f.bucket = $1 AND f.agent_id = $2 AND f.position > $3
                              ORDER BY f.position
                              LIMIT $4))
ORDER BY t.position
