-- Arrays: $1 bucket, $2 thread, $3 message. A row for each that has ended, in their order.
-- LATERAL with OFFSET 0: one look-up by key for each, whatever the planner thinks of the size of the tables.
SELECT k.thread_id, k.message_id, m.position, m.role, m.content, d.reason, d.detail,
       coalesce(m.attempt, d.attempt, 0) AS attempt
FROM unnest($1::smallint[], $2::text[], $3::text[])
     WITH ORDINALITY AS k (bucket, thread_id, message_id, number)
LEFT JOIN LATERAL (
    SELECT m.position, m.role, m.content, m.attempt FROM messages AS m
    WHERE m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.message_id = k.message_id
    OFFSET 0
) AS m ON true
LEFT JOIN LATERAL (
    SELECT d.reason, d.detail, d.attempt FROM dead_letters AS d
    WHERE d.bucket = k.bucket AND d.kind = 'message' AND d.key = k.thread_id || '/' || k.message_id
    OFFSET 0
) AS d ON true
WHERE m.position IS NOT NULL OR d.reason IS NOT NULL
ORDER BY k.number
