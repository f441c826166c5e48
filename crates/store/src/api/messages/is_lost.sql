-- $1 bucket, $2 thread, $3 a position at which nothing is stored, $4 its time in ms. Retention
-- deletes the oldest messages of a thread. So if it deleted the message at $3, no earlier message
-- exists, and the deletion is later than $4. Failures are kept for thirty days.
SELECT $4 > extract(epoch FROM clock_timestamp() - interval '30 days') * 1000
   AND (EXISTS (SELECT FROM messages AS m WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < $3)
        OR NOT EXISTS (SELECT FROM expired_messages AS e
                       WHERE e.bucket = $1 AND e.thread_id = $2
                         AND e.expired_at > to_timestamp($4::float8 / 1000) - interval '1 minute')) AS is_lost
