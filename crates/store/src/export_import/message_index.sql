-- $1 bucket, $2 thread, $3 after, $4 up to, $5 how many. Returns the positions and batches of
-- messages without their text, ordered by position. octet_length and pg_column_size do not read
-- values that are stored out of line.
SELECT o.position, o.batch_id, o.out_of_range, o.bytes,
       o.is_apart AND NOT EXISTS (SELECT FROM messages AS f
                                  WHERE f.bucket = $1 AND f.thread_id = $2 AND f.position = o.batch_id
                                  OFFSET 0) AS is_headless
FROM (
    SELECT m.position, m.batch_id, m.out_of_range,
           (octet_length(m.content) + coalesce(pg_column_size(m.tool_calls), 0) + pg_column_size(m.metadata))::bigint AS bytes,
           m.position <> m.batch_id AND lag(m.batch_id) OVER (ORDER BY m.position) IS DISTINCT FROM m.batch_id AS is_apart
    FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > $3 AND m.position <= $4
    ORDER BY m.position
    LIMIT $5
) AS o
ORDER BY o.position
