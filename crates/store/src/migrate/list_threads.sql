-- $1 how many. Lists threads that are not listed: those of earlier builds. Returns how many were
-- listed; 0 when none is left.
WITH part AS MATERIALIZED (
    SELECT t.bucket, t.thread_id FROM threads AS t
    WHERE strpos(t.thread_id, '+') = 0 AND NOT t.is_temporary
      AND NOT EXISTS (SELECT FROM thread_list AS l WHERE l.bucket = t.bucket AND l.thread_id = t.thread_id)
      AND NOT EXISTS (SELECT FROM erased_threads AS e
                      WHERE e.bucket = t.bucket AND e.thread_id = t.thread_id AND e.recreated_at IS NULL)
    LIMIT $1
)
SELECT count(antiphon_list_thread(bucket, thread_id, NULL, NULL, false)) AS count FROM part
