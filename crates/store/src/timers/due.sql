-- $1 buckets, $2 timers, $3 partition, $4 epoch of the asking owner. Returns a row for each timer
-- with all current values that the rules need.
SELECT k.place, t.timer_id, t.kind, t.thread_id, t.agent_id, t.state, t.body,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms,
       floor(extract(epoch FROM t.due_at) * 1000)::bigint AS due_ms,
       t.due_at <= clock_timestamp() AS is_due,
       s.settings, coalesce(a.paused, false) AS paused, a.until_ms,
       r.position AS real_position, r.created_ms AS real_ms, r.metadata AS real_metadata,
       coalesce(f.fired_since, 0) AS fired_since, f.fired_ms,
       -- Retention deletes the oldest messages first. So if the answer that armed the timer is
       -- deleted, a later message may be deleted too.
       t.kind = 'follow_up' AND EXISTS (
           SELECT FROM threads AS h
           WHERE h.bucket = t.bucket AND h.thread_id = t.thread_id AND h.head_position > (t.body ->> 'armed_position')::bigint
             AND NOT EXISTS (SELECT FROM messages AS m
                             WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id
                               AND m.position = (t.body ->> 'armed_position')::bigint
                             OFFSET 0)
           OFFSET 0) AS is_history_gone,
       t.thread_id IS NOT NULL AND EXISTS (
           SELECT FROM erased_threads AS e
           WHERE e.bucket = t.bucket AND e.thread_id = t.thread_id AND e.recreated_at IS NULL
           OFFSET 0)
       OR EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(t.agent_id) OFFSET 0) AS is_erased,
       t.kind = 'task' AND EXISTS (SELECT FROM task_ids AS d
                                   WHERE d.bucket = t.agent_bucket AND d.agent_id = t.agent_id
                                     AND d.task_id = t.body -> 'task' ->> 'id'
                                     -- As in commit/tasks.sql: an id becomes free.
                                     AND (d.created_at >= clock_timestamp() - interval '7 days'
                                          OR NOT EXISTS (SELECT FROM agents AS h
                                                         WHERE h.bucket = d.bucket AND h.agent_id = d.agent_id
                                                           AND h.head_position >= d.position
                                                         OFFSET 0)
                                          OR EXISTS (SELECT FROM failed_tasks AS f
                                                     WHERE f.bucket = d.bucket AND f.agent_id = d.agent_id
                                                       AND f.position = d.position
                                                     OFFSET 0))
                                   OFFSET 0) AS is_taken,
       w.cron, w.at, w.time_zone, w.overlap, w.missed, w.content, w.metadata, coalesce(u.unfinished, 0) AS unfinished,
       EXISTS (SELECT FROM partitions AS p WHERE p.partition_id = $3 AND p.epoch = $4 AND p.owner IS NOT NULL) AS is_owner
FROM unnest($1::smallint[], $2::text[]) WITH ORDINALITY AS k (bucket, timer_id, place)
LEFT JOIN timers AS t ON t.bucket = k.bucket AND t.timer_id = k.timer_id
LEFT JOIN LATERAL (
    SELECT s.settings FROM agent_settings AS s WHERE s.bucket = t.agent_bucket AND s.agent_id = t.agent_id OFFSET 0
) AS s ON true
LEFT JOIN LATERAL (
    SELECT a.paused, floor(extract(epoch FROM a.backoff_next_run_at) * 1000)::bigint AS until_ms
    FROM agents AS a WHERE a.bucket = t.agent_bucket AND a.agent_id = t.agent_id OFFSET 0
) AS a ON true
LEFT JOIN LATERAL (
    -- Searches backwards from the end and skips synthetic messages. A real input is near the end,
    -- because its answer has armed the follow-up.
    SELECT m.position, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms, m.metadata
    FROM (
        SELECT m.position, m.created_at, m.metadata, m.role, m.batch_type, m.message_id FROM messages AS m
        WHERE m.bucket = t.bucket AND m.thread_id = t.thread_id
        ORDER BY m.position DESC
        LIMIT 2000
    ) AS m
    -- Tasks are not messages of a person: their turns have ids of another form, and so do their
    -- messages.
    WHERE m.role = 'user' AND m.batch_type NOT IN ('agent_to_agent', 'system_trigger') AND m.message_id !~ '^t[0-9a-f]{4}-[0-9]+-q$'
      AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb
    ORDER BY m.position DESC
    LIMIT 1
) AS r ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE (o.body ->> 'armed_position')::bigint > coalesce(r.position, 0)) AS fired_since,
           array_agg((extract(epoch FROM o.ended_at) * 1000)::bigint ORDER BY o.ended_at DESC) AS fired_ms
    FROM (
        SELECT o.body, o.ended_at FROM timers AS o
        WHERE o.bucket = t.bucket AND o.thread_id = t.thread_id AND o.kind = 'follow_up' AND o.state = 'fired'
        ORDER BY o.created_at DESC
        LIMIT 256
    ) AS o
) AS f ON t.kind = 'follow_up'
LEFT JOIN LATERAL (
    SELECT w.cron, to_char(w.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS at, w.time_zone, w.overlap, w.missed,
           w.content, w.metadata
    FROM schedules AS w
    WHERE w.bucket = t.bucket AND w.agent_id = t.agent_id AND w.name = t.body ->> 'schedule' AND w.timer_id = t.timer_id AND w.enabled
    OFFSET 0
) AS w ON t.kind = 'schedule'
LEFT JOIN LATERAL (
    -- Counts tasks of earlier occurrences that are neither completed nor failed for good; see
    -- TimerId::series.
    SELECT count(*) AS unfinished
    FROM (
        -- A sub-query with a row: with row security, a plain expression could not bound the index
        -- scan.
        SELECT FROM (
            SELECT coalesce((SELECT h.head_position FROM agents AS h
                             WHERE h.bucket = t.bucket AND h.agent_id = t.agent_id), 0) AS position
            OFFSET 0
        ) AS b
        JOIN tasks AS q ON q.bucket = t.bucket AND q.agent_id = t.agent_id AND q.position > b.position
        WHERE starts_with(q.task_id, split_part(t.timer_id, '-', 1) || '-' || split_part(t.timer_id, '-', 2) || '-')
          AND NOT EXISTS (SELECT FROM failed_tasks AS x
                          WHERE x.bucket = q.bucket AND x.agent_id = q.agent_id AND x.position = q.position OFFSET 0)
        LIMIT 1000
    ) AS q
) AS u ON t.kind = 'schedule'
ORDER BY k.place
