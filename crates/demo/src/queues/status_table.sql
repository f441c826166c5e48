-- The state of the queues, from the tables. $1, $2: buckets and ids of the agents; $3: partitions.
SELECT w.agent_id,
       coalesce(q.pending, 0) AS pending,
       coalesce(q.completed, 0) AS completed,
       coalesce(q.failed, 0) AS failed,
       q.head,
       coalesce(a.paused, false) AS paused,
       greatest(0, (extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000))::bigint AS backoff_ms,
       a.error_text,
       coalesce(h.numbers, '{}') AS numbers,
       p.owner,
       greatest(0, (extract(epoch FROM p.lease_until - clock_timestamp()) * 1000))::bigint AS lease_ms
FROM unnest($1::smallint[], $2::text[]) WITH ORDINALITY AS w (bucket, agent_id, place)
LEFT JOIN agents AS a ON a.bucket = w.bucket AND a.agent_id = w.agent_id
LEFT JOIN partitions AS p ON p.partition_id = w.bucket % $3
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE t.status = 'pending') AS pending,
           count(*) FILTER (WHERE t.status = 'completed') AS completed,
           count(*) FILTER (WHERE t.status = 'failed') AS failed,
           (array_agg(t.task_id ORDER BY t.position) FILTER (WHERE t.status = 'pending'))[1] AS head
    FROM agent_tasks AS t WHERE t.bucket = w.bucket AND t.agent_id = w.agent_id
) AS q ON true
-- The inputs in the history, in the order of the history.
LEFT JOIN LATERAL (
    SELECT array_agg((m.metadata->>'number')::integer ORDER BY m.position) AS numbers
    FROM messages AS m WHERE m.bucket = w.bucket AND m.thread_id = w.agent_id AND m.role = 'user'
) AS h ON true
ORDER BY w.place
