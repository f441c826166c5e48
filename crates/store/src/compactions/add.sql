-- $1 bucket, $2 thread, $3 id, $4 through, $5 kept (array), $6 summary, $7 strategy, $8 provenance,
-- $9 previous, $10 actor, $11 agent and $12 task that write the summary; $13 created_us and $14
-- revision of the thread for which it was planned. Applies only while the previous compaction is
-- still the newest.
--
-- Two compactions planned from the same state have the same id, so only one is written. Even if
-- both were written, each would be complete, and the newer one would take effect.
INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id,
                         valid_from_position, actor, pending_agent, pending_task)
-- A turn that is running now began without this compaction.
SELECT $1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, greatest($3, t.head_position + 1), $10, $11, $12
FROM threads AS t
WHERE t.bucket = $1 AND t.thread_id = $2
-- The summary may contain messages that were deleted or changed in the meantime.
AND t.revision = $14 AND (extract(epoch FROM t.created_at) * 1000000)::bigint = $13
AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
AND NOT EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of($2))
-- The id follows the newest message for which the compaction was planned. In a store that has gone
-- back in time, the batch of that message may be unfinished again.
AND EXISTS (SELECT FROM messages AS m WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position = $3 - 1)
AND NOT EXISTS (
    SELECT FROM compactions AS c
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.undone_at_position IS NULL AND c.compaction_id > CASE WHEN $9::bigint IS NULL THEN 0 ELSE $9 END
)
AND ($9 IS NULL OR EXISTS (
    SELECT FROM compactions AS c
    WHERE c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id = $9 AND c.undone_at_position IS NULL
))
ON CONFLICT DO NOTHING
RETURNING true
