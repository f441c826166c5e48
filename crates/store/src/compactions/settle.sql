-- $1 bucket, $2 thread, $3 id, $4 summary; NULL: there will be none, and it never counts.
UPDATE compactions
SET summary = $4, pending_agent = NULL, pending_task = NULL,
    undone_at = CASE WHEN $4 IS NULL THEN compaction_id ELSE undone_at END
WHERE bucket = $1 AND thread_id = $2 AND compaction_id = $3 AND pending_task IS NOT NULL
RETURNING true
