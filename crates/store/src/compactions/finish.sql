-- $1 bucket, $2 thread, $3 id, $4 summary. If it is NULL, there will be no summary, and the
-- compaction never takes effect.
UPDATE compactions AS c
SET summary = $4, valid_from_position = greatest(c.valid_from_position, t.head_position + 1), pending_agent = NULL, pending_task = NULL,
    undone_at_position = CASE WHEN $4 IS NULL THEN c.compaction_id ELSE c.undone_at_position END
FROM threads AS t
WHERE t.bucket = $1 AND t.thread_id = $2
  AND c.bucket = $1 AND c.thread_id = $2 AND c.compaction_id = $3 AND c.pending_task IS NOT NULL
RETURNING true
