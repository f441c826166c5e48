-- $1 bucket, $2 thread, $3 include continuations. Finds the last answer to a client's input by the
-- message id. Turns of tasks have other ids, and ids of follow-ups (f) and continuations (h)
-- contain positions. The CASE hides the selectivity of the condition from the planner, so that the
-- planner reads backwards from the newest message instead of sorting all of them.
SELECT m.message_id, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2
  AND CASE WHEN m.role = 'assistant' THEN m.message_id ~ '^u[0-9a-f]{4}-(?!f[0-9]{1,19}-a).*-a([1-9][0-9]*)?$' ELSE false END
  AND ($3 OR m.message_id !~ '^u[0-9a-f]{4}-h[0-9]{1,19}-a')
ORDER BY m.position DESC
LIMIT 1
