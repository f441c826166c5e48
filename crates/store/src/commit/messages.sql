, heads AS (
    -- Numbers are assigned while the row of the thread is locked, so that concurrent writers of the
    -- thread get different numbers. An UPDATE, with an INSERT for new threads, would save the WAL
    -- record of the lock. But planned while the table is empty, it would compare all threads with
    -- all of these.
    INSERT INTO threads AS t (bucket, thread_id, agent_id, head_position, message_count, hidden_count, last_number)
    SELECT bucket, thread_id,
           -- The agent of the first turn with a person.
           (array_agg(agent_id ORDER BY position) FILTER (WHERE agent_id IS NOT NULL))[1],
           max(position), count(*),
           -- Few metadata contain the word; only those are parsed.
           count(*) FILTER (WHERE CASE WHEN metadata LIKE '%"synthetic"%'
                                       THEN metadata::jsonb -> 'synthetic' = 'true'::jsonb END),
           count(*)
    FROM fresh
    GROUP BY bucket, thread_id
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET head_position = greatest(t.head_position, excluded.head_position),
        agent_id = coalesce(t.agent_id, excluded.agent_id),
        -- What is said late in a temporary thread is deleted as well.
        emptied_at = NULL,
        message_count = t.message_count + excluded.message_count,
        hidden_count = t.hidden_count + excluded.hidden_count,
        last_number = t.last_number + excluded.last_number
    RETURNING bucket, thread_id, last_number
)
, listed AS (
    -- Row of the list of threads: for a new thread, for one whose last activity was a minute
    -- before, and for a new title or agent. All other threads cost two look-ups and no write.
    INSERT INTO thread_list AS l (bucket, thread_id, tenant, active_at, title, title_by, agent_id, user_id)
    SELECT f.bucket, f.thread_id, antiphon_tenant_of(f.thread_id), f.active_at,
           coalesce(f.title, antiphon_title(f.question)),
           CASE WHEN f.title IS NOT NULL THEN 'workflow' WHEN antiphon_title(f.question) IS NOT NULL THEN 'input' END,
           coalesce(t.agent_id, f.agent_id), antiphon_listed_user(t.metadata)
    FROM (
        SELECT bucket, thread_id,
               (array_agg(agent_id ORDER BY position) FILTER (WHERE agent_id IS NOT NULL))[1] AS agent_id,
               -- The times come from another machine, whose clock may be ahead.
               least(to_timestamp(0) + greatest(max(created_ms), 0) * interval '1 millisecond', clock_timestamp()) AS active_at,
               (array_agg(left(content, 480) ORDER BY position)
                FILTER (WHERE role = 'user' AND CASE WHEN metadata LIKE '%"synthetic"%'
                                                     THEN metadata::jsonb -> 'synthetic' IS DISTINCT FROM 'true' ELSE true END))[1]
               AS question,
               (array_agg(antiphon_workflow_title(metadata::jsonb) ORDER BY position DESC)
                FILTER (WHERE role = 'assistant' AND metadata LIKE '%"thread_title"%'))[1] AS title
        FROM fresh
        -- Threads of background queues are shown to no one.
        WHERE strpos(thread_id, '+') = 0
        GROUP BY bucket, thread_id
    ) AS f
    LEFT JOIN LATERAL (
        SELECT k.active_at, k.title, k.title_by, k.agent_id FROM thread_list AS k
        WHERE k.bucket = f.bucket AND k.thread_id = f.thread_id
        OFFSET 0
    ) AS k ON true
    LEFT JOIN LATERAL (
        SELECT t.agent_id, t.metadata, t.is_temporary FROM threads AS t
        WHERE (k.active_at IS NULL OR f.agent_id IS NOT NULL) AND t.bucket = f.bucket AND t.thread_id = f.thread_id
        OFFSET 0
    ) AS t ON true
    WHERE t.is_temporary IS NOT TRUE
      AND (k.active_at IS NULL OR k.active_at < f.active_at - interval '1 minute'
           OR (k.title IS NULL AND f.question IS NOT NULL)
           OR (f.title IS DISTINCT FROM k.title AND f.title IS NOT NULL AND k.title_by IS DISTINCT FROM 'client')
           OR (f.agent_id IS NOT NULL AND k.agent_id IS DISTINCT FROM coalesce(t.agent_id, f.agent_id)))
    ON CONFLICT (bucket, thread_id) DO UPDATE
    SET active_at = greatest(l.active_at, excluded.active_at),
        -- A message without a turn leaves the agent as it is.
        agent_id = coalesce(excluded.agent_id, l.agent_id),
        title = CASE WHEN antiphon_title_rank(excluded.title_by) > antiphon_title_rank(l.title_by)
                          OR (excluded.title_by = 'workflow' AND l.title_by = 'workflow')
                     THEN excluded.title ELSE l.title END,
        title_by = CASE WHEN antiphon_title_rank(excluded.title_by) > antiphon_title_rank(l.title_by)
                        THEN excluded.title_by ELSE l.title_by END
)
, placed AS (
    SELECT u.*, lag(u.position) OVER w AS before,
           -- The thread's last number minus the count of messages that follow this one.
           first_value(u.last_number) OVER w
           - count(*) OVER (PARTITION BY u.bucket, u.thread_id ORDER BY u.position NULLS FIRST
                            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS given
    FROM (
        SELECT NULL::bigint AS last_number, bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
               tool_calls, tool_call_id, metadata, token_count, attempt, created_ms, started_ms
        FROM fresh
        -- The row of the thread sorts before its messages, so one sort suffices. The planner has no
        -- sizes here and would join the two row by row.
        UNION ALL
        SELECT last_number, bucket, thread_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
               NULL, NULL
        FROM heads
    ) AS u
    WINDOW w AS (PARTITION BY u.bucket, u.thread_id ORDER BY u.position NULLS FIRST)
)
, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, attempt, out_of_range, created_at, started_after_ms,
                          parent_batch)
    SELECT f.bucket, f.thread_id, f.position, f.message_id, f.batch_id, f.given, f.sequence_num, f.batch_type, f.role, f.content,
           f.tool_calls::jsonb, f.tool_call_id, f.metadata::jsonb, f.token_count, coalesce(f.before, t.head_position), f.attempt,
           -- The messages of a continued batch are not adjacent to its first ones.
           f.batch_type = 'continuation',
           -- The time comes from another machine, whose clock may be ahead.
           least(to_timestamp(0) + f.created_ms * interval '1 millisecond', clock_timestamp()),
           CASE WHEN f.started_ms - f.created_ms BETWEEN -2147483648 AND 2147483647 THEN f.started_ms - f.created_ms END,
           antiphon_parent_batch(f.metadata::jsonb)
    FROM placed AS f
    -- OFFSET 0 makes this a look-up by key. A plain join, planned while the table is small, would
    -- read all threads for each message.
    LEFT JOIN LATERAL (
        SELECT t.head_position FROM threads AS t
        WHERE f.before IS NULL AND t.bucket = f.bucket AND t.thread_id = f.thread_id
        OFFSET 0
    ) AS t ON true
    WHERE f.position IS NOT NULL
