-- $1 bucket, $2 thread. Oldest first.
SELECT compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id, valid_from_position, undone_at_position, actor, pending_task,
       (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
FROM compactions
WHERE bucket = $1 AND thread_id = $2
ORDER BY compaction_id
