-- $1 bucket, $2 thread, $3 actor. Undoes the newest effective compaction and those planned after
-- it. Returns the id of the newest effective one.
WITH newest AS (
    SELECT compaction_id FROM compactions
    WHERE bucket = $1 AND thread_id = $2 AND undone_at_position IS NULL AND pending_task IS NULL
    ORDER BY compaction_id DESC
    LIMIT 1
)
, undone AS (
    UPDATE compactions AS c
    SET undone_at_position = greatest(c.compaction_id, t.head_position) + 1, undone_by = $3, pending_agent = NULL, pending_task = NULL
    FROM threads AS t, newest AS n
    WHERE t.bucket = $1 AND t.thread_id = $2 AND c.bucket = $1 AND c.thread_id = $2
      AND c.compaction_id >= n.compaction_id AND c.undone_at_position IS NULL
    RETURNING c.compaction_id
)
SELECT min(compaction_id) AS compaction_id FROM undone
