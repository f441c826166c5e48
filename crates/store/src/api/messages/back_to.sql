-- $1 bucket, $2 thread, $3 place, $4 place a minute before, $5 the time of the place in ms. Retention deletes the oldest messages of a thread, so
-- where it deleted this one nothing is before it, and what it deleted it did afterwards; failures are kept for thirty days.
SELECT greatest(
    (SELECT m.position
     FROM messages AS m
     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position <= $4
       AND ((m.batch_type = 'system_trigger' AND m.metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb)
            OR (m.role = 'assistant' AND m.message_id ~ '-a([1-9][0-9]*)?$'))
     ORDER BY m.position DESC
     LIMIT 1),
    (SELECT f.position
     FROM failed_messages AS f
     WHERE f.bucket = $1 AND f.thread_id = $2 AND f.position <= $4
     ORDER BY f.position DESC
     LIMIT 1),
    0) AS back_to
WHERE $5 > extract(epoch FROM clock_timestamp() - interval '30 days') * 1000
  AND (EXISTS (SELECT FROM messages AS m WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < $3)
       OR NOT EXISTS (SELECT FROM expired_messages AS e
                      WHERE e.bucket = $1 AND e.thread_id = $2
                        AND e.expired_at > to_timestamp($5::float8 / 1000) - interval '1 minute'))
