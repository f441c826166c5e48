-- $1 bucket, $2 thread, $3 after, $4 up to, $5 how many, $6 how many bytes. Ordered by position.
-- Returns at least one message, and no more bytes than $6 except for the last message. octet_length
-- and pg_column_size do not read values that are stored out of line, and messages that are not
-- returned are not read.
SELECT o.position, o.message_id, o.batch_id, o.number, o.sequence_num, o.batch_type, o.role, o.content, o.tool_calls, o.tool_call_id,
       o.metadata, o.token_count, o.parent_id, o.attempt, o.started_after_ms,
       (extract(epoch FROM o.created_at) * 1000)::bigint AS created_ms
FROM (
    SELECT m.*,
           sum(octet_length(m.content) + coalesce(pg_column_size(m.tool_calls), 0) + pg_column_size(m.metadata))
               OVER (ORDER BY m.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM messages AS m
    WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position > $3 AND m.position <= $4
    ORDER BY m.position
    LIMIT $5
) AS o
WHERE coalesce(o.bytes_before, 0) < $6
ORDER BY o.position
