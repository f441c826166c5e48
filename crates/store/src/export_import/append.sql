-- Appends whole batches in sequence after all messages of the thread. Writes all batches, or no row
-- if they cannot be appended. $1 bucket, $2 thread; arrays: $3 position, $4 message, $5 batch, $6
-- number, $7 batch type, $8 role, $9 content, $10 tool_calls, $11 tool_call_id, $12 metadata, $13
-- token_count, $14 created_ms, $15 parent; $16 the first position, $17 the last; $18 their original
-- rising numbers, or empty; $19 started_after_ms.
WITH behind AS MATERIALIZED (
    SELECT t.bucket, t.thread_id, t.head_position, t.last_number,
           -- A thread must not assign a number twice.
           coalesce(($18::bigint[])[1] > t.last_number, false) AS keeps_numbers
    FROM threads AS t
    WHERE t.bucket = $1 AND t.thread_id = $2 AND coalesce(t.head_position, 0) < $16
      AND NOT EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
      -- A position contains milliseconds since the beginning of 2024.
      AND ($17 >> 22) + 1704067200000 <= extract(epoch FROM clock_timestamp()) * 1000
    FOR NO KEY UPDATE
)
, written AS (
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                          tool_calls, tool_call_id, metadata, token_count, parent_id, created_at, started_after_ms,
                          imported_at, parent_batch)
    SELECT $1, $2, i.position, i.message_id, i.batch_id,
           CASE WHEN b.keeps_numbers THEN i.number ELSE b.last_number + i.place END, i.sequence_num, i.batch_type, i.role, i.content,
           i.tool_calls::jsonb, i.tool_call_id, i.metadata::jsonb, i.token_count, coalesce(i.parent_id, b.head_position),
           to_timestamp(0) + i.created_ms * interval '1 millisecond', i.started_after_ms, clock_timestamp(), antiphon_parent_batch(i.metadata::jsonb)
    FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::text[],
                $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[], $18::bigint[], $19::integer[]) WITH ORDINALITY
         AS i (position, message_id, batch_id, sequence_num, batch_type, role, content, tool_calls, tool_call_id, metadata,
               token_count, created_ms, parent_id, number, started_after_ms, place),
         behind AS b
    RETURNING number, metadata -> 'synthetic' IS NOT DISTINCT FROM 'true'::jsonb AS is_hidden
)
UPDATE threads AS t
SET head_position = $17, message_count = t.message_count + (SELECT count(*) FROM written),
    hidden_count = t.hidden_count + (SELECT count(*) FROM written WHERE is_hidden),
    last_number = (SELECT max(number) FROM written)
FROM behind AS b
WHERE t.bucket = b.bucket AND t.thread_id = b.thread_id
RETURNING (SELECT count(*) FROM written) AS count
