-- Tasks that enter queues.
, queued AS MATERIALIZED (
    SELECT i.*
    FROM task_rows AS i
    -- An id becomes free seven days after it was used, once its task is completed. Operators name
    -- pending and failed tasks by their ids. The check is repeated here so that a row whose id is
    -- not free is not touched, because another part of this statement may change that row.
    WHERE (i.source_id IS NULL OR NOT EXISTS (
        -- The thread was erased after the owner had checked it.
        SELECT FROM erased_threads AS e
        WHERE e.bucket = i.source_bucket AND e.thread_id = i.source_id AND e.recreated_at IS NULL
        OFFSET 0
    ))
    -- The same for the agent's own thread: the owner adds tasks of schedules and continuations
    -- without a check.
    AND NOT EXISTS (
        SELECT FROM erased_threads AS e
        WHERE e.bucket = i.bucket AND e.thread_id = i.agent_id AND e.recreated_at IS NULL
        OFFSET 0
    )
    AND NOT EXISTS (
        SELECT FROM task_ids AS t
        WHERE t.bucket = i.bucket AND t.agent_id = i.agent_id AND t.task_id = i.task_id
          AND CASE WHEN t.created_at >= clock_timestamp() - interval '7 days' THEN true
                   ELSE NOT EXISTS (SELECT FROM agents AS a
                                    WHERE a.bucket = t.bucket AND a.agent_id = t.agent_id
                                      AND a.head_position >= t.position
                                    OFFSET 0)
                        OR EXISTS (SELECT FROM failed_tasks AS f
                                   WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position
                                   OFFSET 0) END
        OFFSET 0
    )
)
, named AS (
    -- Only the task that has claimed its id enters the queue.
    INSERT INTO task_ids AS t (bucket, agent_id, task_id, position, digest)
    SELECT q.bucket, q.agent_id, q.task_id, q.position, q.digest
    FROM queued AS q
    ON CONFLICT (bucket, agent_id, task_id) DO UPDATE
    SET position = excluded.position, digest = excluded.digest, created_at = excluded.created_at
    WHERE t.created_at < clock_timestamp() - interval '7 days'
    RETURNING t.position
)
, entered AS (
    INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content, metadata, origin)
    SELECT q.bucket, q.agent_id, q.position, q.task_id, q.kind, q.content, q.metadata::jsonb, q.origin::jsonb
    FROM queued AS q
    -- IS TRUE: without it the planner would make a join and compare each task with every other.
    WHERE (q.position IN (SELECT n.position FROM named AS n)) IS TRUE
)
