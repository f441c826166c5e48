-- $1 bucket, $2 thread, $3 number of turns, $4 number of messages to look at. Returns the median
-- duration of the thread's last turns in ms, from the beginning of the run that answered to the end
-- of the answer; NULL if there is none.
SELECT (percentile_cont(0.5) WITHIN GROUP (ORDER BY greatest(extract(epoch FROM e.created_at - q.began_at), 0)) * 1000)::bigint AS usual_ms
FROM (
    SELECT m.batch_id, m.created_at + m.started_after_ms * interval '1 millisecond' AS began_at
    FROM (
        SELECT * FROM messages AS o WHERE o.bucket = $1 AND o.thread_id = $2 ORDER BY o.position DESC LIMIT $4
    ) AS m
    WHERE m.sequence_num = 0 AND m.role = 'user' AND m.started_after_ms IS NOT NULL
    ORDER BY m.position DESC
    LIMIT $3
) AS q
CROSS JOIN LATERAL (
    SELECT m.created_at FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.batch_id = q.batch_id AND m.position >= q.batch_id AND m.role <> 'user'
      -- Continuations come later.
      AND NOT m.out_of_range
    ORDER BY m.position DESC
    LIMIT 1
) AS e
