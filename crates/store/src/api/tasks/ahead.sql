-- $1 bucket, $2 agent, $3 position, $4 limit of the count. Returns the number of pending tasks
-- before that position.
SELECT count(*) AS count FROM (
    SELECT FROM tasks AS t
    WHERE t.bucket = $1 AND t.agent_id = $2 AND t.position < $3
      AND t.position > (SELECT CASE WHEN max(a.head_position) IS NULL THEN 0 ELSE max(a.head_position) END
                        FROM agents AS a WHERE a.bucket = $1 AND a.agent_id = $2)
      AND NOT EXISTS (SELECT FROM failed_tasks AS m
                      WHERE m.bucket = t.bucket AND m.agent_id = t.agent_id AND m.position = t.position OFFSET 0)
    LIMIT $4
) AS waiting
