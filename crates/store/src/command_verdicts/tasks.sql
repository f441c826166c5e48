-- $1 bucket, $2 agent, $3 after, $4 limit, $5 partition and $6 epoch of the owner that asks. Those that are not marked failed; without
-- any there is one row all the same, which says whether it is the owner.
SELECT o.is_owner, t.*
FROM (SELECT EXISTS (SELECT FROM partitions AS p WHERE p.partition_id = $5 AND p.epoch = $6) AS is_owner) AS o
LEFT JOIN LATERAL (
    SELECT t.position, t.task_id, t.kind, t.content, t.metadata
    FROM tasks AS t
    WHERE t.bucket = $1 AND t.agent_id = $2 AND t.position > $3
      AND NOT EXISTS (SELECT FROM failed_tasks AS f
                      WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position
                      OFFSET 0)
    ORDER BY t.position
    LIMIT $4
) AS t ON true
ORDER BY t.position
