-- $1 bucket, $2 thread. Oldest first.
SELECT compaction_id, through, kept, summary, strategy, provenance, previous_id, counts_from, undone_at, actor, pending_task,
       (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
FROM compactions
WHERE bucket = $1 AND thread_id = $2
ORDER BY compaction_id
