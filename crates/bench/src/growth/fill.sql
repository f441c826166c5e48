-- $1 buckets, $2 threads, $3 messages per thread. These messages are older than those that the
-- system writes, because a position contains the time.
WITH chain AS (
    INSERT INTO threads (bucket, thread_id, head_position, message_count, last_number)
    SELECT bucket, thread_id, $3, $3, $3
    FROM unnest($1::smallint[], $2::text[]) AS t (bucket, thread_id)
)
INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content, parent_id)
SELECT t.bucket, t.thread_id, n, 'stored-' || md5(t.thread_id || n), n, n, 0, 'user_request', 'assistant', repeat('x', 256),
       nullif(n - 1, 0)
FROM unnest($1::smallint[], $2::text[]) AS t (bucket, thread_id)
CROSS JOIN generate_series(1, $3::bigint) AS n
