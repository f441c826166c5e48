-- Arrays: $1 bucket, $2 agent, $3 bucket of the thread, $4 thread, $5 true for a foreground turn,
-- $6 true for a task of the agent's own queue, $7 bucket and $8 thread whose text the input
-- carries, if any.
--
-- Returns a row for each turn. It has the agent's settings, its backoff and pause where they apply,
-- and whether its tenant has budgets. It also has whether one of the two threads was erased, the
-- version of the thread, whether it is temporary, and its effective compaction. The provenance of
-- the compaction is left out, because it names every compacted batch, and no turn needs it.
SELECT k.place, s.workflow, s.settings, a.paused, a.wait_ms, c.*, p.*, t.is_temporary, t.head_position, t.revision, t.message_count,
       (extract(epoch FROM t.created_at) * 1000000)::bigint AS created_us,
       EXISTS (SELECT FROM budgets AS b WHERE b.tenant = antiphon_tenant_of(k.thread_id) OFFSET 0) AS has_budgets,
       EXISTS (SELECT FROM erased_threads AS e
               WHERE e.bucket = k.thread_bucket AND e.thread_id = k.thread_id AND e.recreated_at IS NULL
               OFFSET 0)
       OR EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of(k.thread_id) OFFSET 0)
       OR k.origin_id IS NOT NULL AND EXISTS (SELECT FROM erased_threads AS e
                                              WHERE e.bucket = k.origin_bucket AND e.thread_id = k.origin_id
                                                AND e.recreated_at IS NULL
                                              OFFSET 0) AS is_erased
FROM unnest($1::smallint[], $2::text[], $3::smallint[], $4::text[], $5::boolean[], $6::boolean[], $7::smallint[], $8::text[])
     WITH ORDINALITY
     AS k (bucket, agent_id, thread_bucket, thread_id, is_foreground, is_queued, origin_bucket, origin_id, place)
LEFT JOIN LATERAL (
    SELECT s.workflow, s.settings FROM agent_settings AS s
    WHERE s.bucket = k.bucket AND s.agent_id = k.agent_id
    OFFSET 0
) AS s ON true
LEFT JOIN LATERAL (
    SELECT a.paused AND NOT k.is_foreground AS paused,
           ceil(extract(epoch FROM a.backoff_next_run_at - clock_timestamp()) * 1000)::bigint AS wait_ms
    FROM agents AS a
    WHERE a.bucket = k.bucket AND a.agent_id = k.agent_id AND NOT k.is_queued
      AND (NOT k.is_foreground OR s.settings ->> 'foreground_during_backoff' = 'refuse')
    OFFSET 0
) AS a ON true
LEFT JOIN LATERAL (
    SELECT c.compaction_id, c.through_position, c.kept_positions, c.summary, c.strategy, c.previous_id, c.valid_from_position, c.undone_at_position
    FROM compactions AS c
    WHERE c.bucket = k.thread_bucket AND c.thread_id = k.thread_id AND c.undone_at_position IS NULL AND c.pending_task IS NULL
    ORDER BY c.compaction_id DESC
    LIMIT 1
) AS c ON true
LEFT JOIN LATERAL (
    -- A compaction that waits for its summary. No coalesce: row security would not allow the index
    -- look-up.
    SELECT p.compaction_id AS pending_id, p.pending_agent, p.pending_task,
           (extract(epoch FROM clock_timestamp() - p.created_at) * 1000)::bigint AS pending_ms
    FROM compactions AS p
    WHERE p.bucket = k.thread_bucket AND p.thread_id = k.thread_id AND p.undone_at_position IS NULL
      AND p.pending_task IS NOT NULL AND p.compaction_id > CASE WHEN c.compaction_id IS NULL THEN 0 ELSE c.compaction_id END
    ORDER BY p.compaction_id DESC
    LIMIT 1
) AS p ON true
LEFT JOIN LATERAL (
    SELECT t.is_temporary, t.created_at, t.head_position, t.revision, t.message_count FROM threads AS t
    WHERE t.bucket = k.thread_bucket AND t.thread_id = k.thread_id
    OFFSET 0
) AS t ON true
