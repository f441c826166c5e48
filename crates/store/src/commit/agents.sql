-- Queues of agents. Of each agent one row: CTEs of a statement do not see what the others write.
, wanted AS MATERIALIZED (
    -- `is_same`: the row already has all these values, so no new version of it is written.
    SELECT i.*, a.agent_id IS NULL AS is_absent,
           a.head_position < i.guard
           AND (a.head_position >= i.head AND a.head_run = i.run AND a.backoff_attempt_count = i.failures
                AND a.paused = i.paused)
           AND CASE i.wait WHEN 'keep' THEN true
                           WHEN 'clear' THEN a.backoff_next_run_at IS NULL
                                             AND (a.error_code IS NULL OR i.error_code IS NOT NULL)
                           ELSE false END
           AND (i.error_code IS NULL
                OR (a.error_code IS NOT DISTINCT FROM i.error_code AND a.error_text IS NOT DISTINCT FROM i.error_text))
           AS is_same
    FROM agent_rows AS i
    LEFT JOIN agents AS a ON a.bucket = i.bucket AND a.agent_id = i.agent_id
)
, moved AS (
    -- The guard is compared with the current row: if the UPDATE had to wait for the row, READ
    -- COMMITTED reads it again. An upsert would do the same but would also write a WAL record for
    -- the lock.
    UPDATE agents AS a
    SET head_position = greatest(a.head_position, w.head),
        head_run = w.run,
        backoff_attempt_count = w.failures,
        backoff_next_run_at = CASE w.wait WHEN 'keep' THEN a.backoff_next_run_at
                                          WHEN 'start' THEN clock_timestamp() + w.wait_ms * interval '1 ms' END,
        paused = w.paused,
        error_code = CASE WHEN w.error_code IS NOT NULL THEN w.error_code WHEN w.wait <> 'clear' THEN a.error_code END,
        error_text = CASE WHEN w.error_code IS NOT NULL THEN w.error_text WHEN w.wait <> 'clear' THEN a.error_text END,
        error_at = CASE WHEN w.error_code IS NOT NULL THEN clock_timestamp() WHEN w.wait <> 'clear' THEN a.error_at END
    FROM wanted AS w
    WHERE a.bucket = w.bucket AND a.agent_id = w.agent_id AND a.head_position < w.guard
      AND NOT w.is_absent AND NOT w.is_same
    RETURNING w.item
)
, created AS (
    INSERT INTO agents (bucket, agent_id, head_position, head_run, backoff_attempt_count, backoff_next_run_at, paused,
                        error_code, error_text, error_at)
    SELECT w.bucket, w.agent_id, greatest(w.head, 0), w.run, w.failures,
           CASE w.wait WHEN 'start' THEN clock_timestamp() + w.wait_ms * interval '1 ms' END, w.paused,
           w.error_code, w.error_text, CASE WHEN w.error_code IS NOT NULL THEN clock_timestamp() END
    FROM wanted AS w
    WHERE w.is_absent AND w.guard > 0
    ON CONFLICT (bucket, agent_id) DO NOTHING
    RETURNING bucket, agent_id
)
, won AS MATERIALIZED (
    SELECT item FROM moved
    UNION ALL
    SELECT item FROM wanted WHERE is_same
    UNION ALL
    -- IS TRUE: without it the planner would make a join and compare each agent with every other.
    SELECT item FROM wanted WHERE is_absent AND ((bucket, agent_id) IN (SELECT bucket, agent_id FROM created)) IS TRUE
)
