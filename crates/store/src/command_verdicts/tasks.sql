-- Arrays: $1 bucket, $2 agent, $3 after, $4 limit; $5 partition and $6 epoch of the asking owner.
-- Returns the tasks of each agent that are not marked failed, in queue order. If there are no such
-- tasks, returns one row that shows only whether the asker is the owner.
SELECT o.is_owner, k.place, k.position, k.task_id, k.kind, k.content, k.metadata, k.origin
FROM (SELECT EXISTS (SELECT FROM partitions AS p WHERE p.partition_id = $5 AND p.epoch = $6 AND p.owner IS NOT NULL) AS is_owner) AS o
LEFT JOIN LATERAL (
    SELECT k.place, t.*
    FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS k (bucket, agent_id, after, most, place)
    CROSS JOIN LATERAL (
        SELECT t.position, t.task_id, t.kind, t.content, t.metadata, t.origin
        FROM tasks AS t
        WHERE t.bucket = k.bucket AND t.agent_id = k.agent_id AND t.position > k.after
          AND NOT EXISTS (SELECT FROM failed_tasks AS f
                          WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position
                          OFFSET 0)
        ORDER BY t.position
        LIMIT k.most
    ) AS t
) AS k ON true
ORDER BY k.place, k.position
