-- $1 bucket, $2 agent, $3 position of the task, $4 run. A task that has failed for good has a mark.
-- A task that is retried is at the head, and its next run has a higher number.
SELECT code, text, false AS is_retryable FROM failed_tasks
WHERE bucket = $1 AND agent_id = $2 AND position = $3
UNION ALL
SELECT coalesce(a.error_code, 'failed'), coalesce(a.error_text, 'this run failed; the task is tried again'), true
FROM agents AS a
WHERE a.bucket = $1 AND a.agent_id = $2 AND a.head_position < $3 AND a.head_run > $4
  AND $3 = (SELECT t.position FROM tasks AS t
            WHERE t.bucket = $1 AND t.agent_id = $2 AND t.position > a.head_position
              AND NOT EXISTS (SELECT FROM failed_tasks AS m
                              WHERE m.bucket = $1 AND m.agent_id = $2 AND m.position = t.position)
            ORDER BY t.position
            LIMIT 1)
LIMIT 1
