-- Arrays: $1 bucket, $2 thread, $3 only after this position, $4 up to this one, $5 how many.
-- Returns the last messages of each thread, newest first. It reads the end of one range of the
-- primary key, however long the thread is.
SELECT k.place, m.*, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
     AS k (bucket, thread_id, after, until, most, place)
CROSS JOIN LATERAL (
    SELECT * FROM messages AS m
    WHERE m.bucket = k.bucket AND m.thread_id = k.thread_id AND m.position > k.after AND m.position <= k.until
    ORDER BY m.position DESC
    LIMIT k.most
) AS m
ORDER BY k.place, m.position DESC
