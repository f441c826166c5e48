-- Arrays: $1 bucket, $2 agent or queue, $4 bucket and $5 agent whose settings apply; $3 limit of
-- the task counts. Returns a row for each agent or queue that exists, in the order of the arrays.
-- With row security an index look-up may use only leakproof expressions: Postgres regards CASE as
-- leakproof, but not coalesce.
SELECT k.agent_id, s.workflow, s.settings, s.version,
       (extract(epoch FROM s.created_at) * 1000)::bigint AS created_ms,
       (extract(epoch FROM s.updated_at) * 1000)::bigint AS updated_ms,
       coalesce(a.paused, false) AS paused,
       coalesce(a.backoff_attempt_count, 0)::bigint AS attempts,
       (extract(epoch FROM a.backoff_next_run_at) * 1000)::bigint AS next_run_ms,
       ceil(extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000)::bigint AS left_ms,
       a.error_code, a.error_text, (extract(epoch FROM a.error_at) * 1000)::bigint AS error_ms,
       h.position AS next_position, h.task_id AS next_task_id, p.pending, f.failed
FROM unnest($1::smallint[], $2::text[], $4::smallint[], $5::text[])
     WITH ORDINALITY AS k (bucket, agent_id, owner_bucket, owner_id, number)
LEFT JOIN agent_settings AS s ON s.bucket = k.owner_bucket AND s.agent_id = k.owner_id
LEFT JOIN agents AS a ON a.bucket = k.bucket AND a.agent_id = k.agent_id
LEFT JOIN LATERAL (
    SELECT t.position, t.task_id FROM tasks AS t
    WHERE t.bucket = k.bucket AND t.agent_id = k.agent_id AND t.position > CASE WHEN a.head_position IS NULL THEN 0 ELSE a.head_position END
      AND NOT EXISTS (SELECT FROM failed_tasks AS m
                      WHERE m.bucket = t.bucket AND m.agent_id = t.agent_id AND m.position = t.position OFFSET 0)
    ORDER BY t.position
    LIMIT 1
) AS h ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS pending FROM (
        SELECT FROM tasks AS t
        WHERE t.bucket = k.bucket AND t.agent_id = k.agent_id AND t.position > CASE WHEN a.head_position IS NULL THEN 0 ELSE a.head_position END
          AND NOT EXISTS (SELECT FROM failed_tasks AS m
                          WHERE m.bucket = t.bucket AND m.agent_id = t.agent_id AND m.position = t.position OFFSET 0)
        LIMIT $3
    ) AS waiting
) AS p
CROSS JOIN LATERAL (
    SELECT count(*) AS failed FROM (
        SELECT FROM failed_tasks AS m WHERE m.bucket = k.bucket AND m.agent_id = k.agent_id LIMIT $3
    ) AS marked
) AS f
WHERE s.agent_id IS NOT NULL OR a.agent_id IS NOT NULL
   OR EXISTS (SELECT FROM tasks AS t WHERE t.bucket = k.bucket AND t.agent_id = k.agent_id OFFSET 0)
   -- This condition finds an agent that has only answered messages.
   OR EXISTS (SELECT FROM threads AS h WHERE h.bucket = k.bucket AND h.thread_id = k.agent_id AND h.agent_id IS NULL OFFSET 0)
   OR EXISTS (SELECT FROM threads AS h WHERE h.agent_id = k.agent_id OFFSET 0)
ORDER BY k.number
