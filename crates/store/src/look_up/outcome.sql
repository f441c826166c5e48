-- Arrays: $1 bucket, $2 thread, $3 message. A row for each that has ended, in their order.
SELECT k.thread_id, k.message_id, m.position, m.role, m.content, d.reason, d.detail,
       coalesce(m.attempt, d.attempt, 0) AS attempt
FROM unnest($1::smallint[], $2::text[], $3::text[])
     WITH ORDINALITY AS k (bucket, thread_id, message_id, number)
LEFT JOIN messages AS m
    ON m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.message_id = k.message_id
LEFT JOIN dead_letters AS d
    ON d.bucket = k.bucket AND d.kind = 'message' AND d.key = k.thread_id || '/' || k.message_id
WHERE m.position IS NOT NULL OR d.reason IS NOT NULL
ORDER BY k.number
