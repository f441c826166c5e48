-- $1 buckets, $2 how many tasks of each agent at most. Returns one row per task. An agent without a
-- pending task has one row if it is backing off, is paused or has failed before.
SELECT a.agent_id, a.head_position, a.head_run, a.backoff_attempt_count, a.paused,
       CASE WHEN a.backoff_next_run_at > clock_timestamp()
            THEN ceil(extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000)::bigint END AS wait_ms,
       t.position, t.task_id, t.kind, t.content, t.metadata, t.origin
FROM unnest($1::smallint[]) AS b (bucket)
JOIN agents AS a ON a.bucket = b.bucket
-- Only the primary keys are used: a few look-ups for each agent, however many tasks it has
-- completed.
LEFT JOIN LATERAL (
    SELECT t.position, t.task_id, t.kind, t.content, t.metadata, t.origin
    FROM tasks AS t
    WHERE t.bucket = a.bucket AND t.agent_id = a.agent_id AND t.position > a.head_position
      AND NOT EXISTS (SELECT FROM failed_tasks AS f
                      WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position
                      OFFSET 0)
    ORDER BY t.position
    LIMIT $2
) AS t ON true
WHERE t.position IS NOT NULL OR a.paused OR a.backoff_attempt_count > 0 OR a.backoff_next_run_at IS NOT NULL
ORDER BY a.bucket, a.agent_id, t.position
