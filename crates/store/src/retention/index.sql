-- $1 bucket, $2 thread, $3 before, $4 how many. Newest first. octet_length and pg_column_size do
-- not read values that are stored out of line.
--
-- The age of an imported message counts at most from its import. Times of messages come from other
-- machines, whose clocks may be behind. So the age also counts at most from the time in the
-- position, whose milliseconds start in 2024.
SELECT m.position, m.batch_id, (extract(epoch FROM greatest(m.created_at, m.imported_at, to_timestamp((m.position >> 22) / 1000.0 + 1704067200))) * 1000)::bigint AS created_ms,
       (octet_length(m.content) + coalesce(pg_column_size(m.tool_calls), 0) + pg_column_size(m.metadata))::bigint AS bytes
FROM messages AS m
WHERE m.bucket = $1 AND m.thread_id = $2 AND m.position < $3
ORDER BY m.position DESC
LIMIT $4
