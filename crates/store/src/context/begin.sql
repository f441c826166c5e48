-- Arrays: $1 bucket, $2 agent, $3 bucket of the thread, $4 thread. A row for each: settings of the agent, and the compaction
-- that counts in the thread, without its provenance: that names every batch that left, and no turn needs to know.
SELECT k.number, s.workflow, s.settings, c.*, p.*
FROM unnest($1::smallint[], $2::text[], $3::smallint[], $4::text[])
     WITH ORDINALITY AS k (bucket, agent_id, thread_bucket, thread_id, number)
LEFT JOIN LATERAL (
    SELECT s.workflow, s.settings FROM agent_settings AS s
    WHERE s.bucket = k.bucket AND s.agent_id = k.agent_id
    OFFSET 0
) AS s ON true
LEFT JOIN LATERAL (
    SELECT c.compaction_id, c.through, c.kept, c.summary, c.strategy, c.previous_id, c.counts_from, c.undone_at
    FROM compactions AS c
    WHERE c.bucket = k.thread_bucket AND c.thread_id = k.thread_id AND c.undone_at IS NULL AND c.pending_task IS NULL
    ORDER BY c.compaction_id DESC
    LIMIT 1
) AS c ON true
LEFT JOIN LATERAL (
    -- One that waits for its summary.
    SELECT p.compaction_id AS pending_id, p.pending_agent, p.pending_task,
           (extract(epoch FROM clock_timestamp() - p.created_at) * 1000)::bigint AS pending_ms
    FROM compactions AS p
    WHERE p.bucket = k.thread_bucket AND p.thread_id = k.thread_id AND p.undone_at IS NULL
      AND p.pending_task IS NOT NULL AND p.compaction_id > coalesce(c.compaction_id, 0)
    ORDER BY p.compaction_id DESC
    LIMIT 1
) AS p ON true
