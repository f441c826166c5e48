-- $1 bucket, $2 thread, $3 its head when these batches were read; arrays: $4 batch, $5 its last
-- message. Deletes all of them. Deletes none if the thread has new messages, because these may
-- belong to one of the batches.
WITH still AS MATERIALIZED (
    SELECT t.bucket, t.thread_id FROM threads AS t
    WHERE t.bucket = $1 AND t.thread_id = $2 AND t.head_position IS NOT DISTINCT FROM $3
    FOR NO KEY UPDATE
)
, gone AS (
    DELETE FROM messages AS m
    USING unnest($4::bigint[], $5::bigint[]) AS k (first, last), still AS s
    WHERE m.bucket = s.bucket AND m.thread_id = s.thread_id
      AND m.bucket = $1 AND m.thread_id = $2 AND m.position BETWEEN k.first AND k.last AND m.batch_id = k.first
    RETURNING m.bucket, m.message_id, m.thread_id, m.role, m.metadata -> 'synthetic' IS NOT DISTINCT FROM 'true'::jsonb AS is_hidden
)
-- The stream may still have their entries, which are read again after a takeover.
, remembered AS (
    INSERT INTO expired_messages (bucket, message_id, thread_id)
    SELECT bucket, message_id, thread_id FROM gone
    ON CONFLICT DO NOTHING
)
, counted AS (
    UPDATE threads AS t
    SET message_count = greatest(t.message_count - (SELECT count(*) FROM gone), 0),
        hidden_count = greatest(t.hidden_count - (SELECT count(*) FROM gone WHERE is_hidden), 0),
        revision = t.revision + 1
    FROM still AS s
    WHERE t.bucket = s.bucket AND t.thread_id = s.thread_id AND EXISTS (SELECT FROM gone)
)
, gone_feedback AS (
    DELETE FROM feedback AS f USING gone AS g
    WHERE f.bucket = g.bucket AND f.thread_id = g.thread_id AND f.message_id = g.message_id
)
-- A title is a copy of the first message, or made from the messages by the workflow.
, untitled AS (
    UPDATE thread_list AS l SET title = NULL, title_by = NULL
    FROM still AS s
    WHERE l.bucket = s.bucket AND l.thread_id = s.thread_id
      AND CASE l.title_by WHEN 'input' THEN EXISTS (SELECT FROM gone WHERE role = 'user')
                          WHEN 'workflow' THEN (SELECT count(*) FROM gone) > 0
                               AND (SELECT count(*) FROM gone) >= (SELECT t.message_count FROM threads AS t
                                                                   WHERE t.bucket = s.bucket AND t.thread_id = s.thread_id) END
)
-- Sessions with copies of the messages are deleted: a copy must not outlive its original.
, copies AS (
    DELETE FROM reasoning_sessions AS r
    WHERE r.source_threads @> ARRAY[$2] AND EXISTS (SELECT FROM gone)
      AND EXISTS (
          SELECT FROM reasoning_messages AS c JOIN unnest($4::bigint[], $5::bigint[]) AS k (first, last)
              ON c.source_position BETWEEN k.first AND k.last
          WHERE c.bucket = r.bucket AND c.session_id = r.session_id AND c.source_thread = $2
      )
    RETURNING r.bucket, r.session_id
)
, audited AS (
    -- Arrays, because with them the planner always uses the index.
    DELETE FROM audit_log WHERE bucket = ANY (ARRAY(SELECT bucket FROM copies))
      AND subject_id = ANY (ARRAY(SELECT session_id || '+reasoning' FROM copies))
)
SELECT (SELECT count(*) FROM gone) AS count FROM still
