-- $1 bucket, $2 thread, $3 batches (array). Returns all messages of each batch: the range from its
-- first message up to the first message of another batch, and the messages marked as out of range.
SELECT m.*, (extract(epoch FROM m.created_at) * 1000)::bigint AS created_ms
FROM unnest($3::bigint[]) AS k (batch_id)
-- A sub-query with a row: with row security, a plain expression could not bound the index scan.
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT o.position FROM messages AS o
                     WHERE o.bucket = $1 AND o.thread_id = $2 AND o.position > k.batch_id AND o.batch_id <> k.batch_id
                     ORDER BY o.position LIMIT 1), 9223372036854775807) AS position
    OFFSET 0
) AS b
CROSS JOIN LATERAL (
    (SELECT m.* FROM messages AS m
     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position >= k.batch_id AND m.batch_id = k.batch_id
       AND NOT m.out_of_range
       AND m.position < b.position)
    UNION ALL
    (SELECT m.* FROM messages AS m
     WHERE m.bucket = $1 AND m.thread_id = $2 AND m.batch_id = k.batch_id AND m.out_of_range)
) AS m
ORDER BY m.position
