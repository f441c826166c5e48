-- $1 commit, $2 bucket, $3 thread, $4 position, $5 message, $6 batch_id, $7 sequence_num, $8
-- batch_type, $9 role, $10 content, $11 tool_calls, $12 tool_call_id, $13 metadata, $14
-- token_count, $15 attempt, $16 creation time and $17 start time in ms since 1970 (NULL: not
-- known).
, fresh AS MATERIALIZED (
    -- Messages that are stored already must not become a predecessor, so they are removed before
    -- the chain is built. This check reads the state before the statement. That is enough, because
    -- no other statement writes these threads under this epoch. After an unknown outcome the owner
    -- raises its epoch, and raising it waits for the doubtful statement.
    SELECT i.*
    FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::integer[],
                $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[],
                $16::bigint[], $17::bigint[])
         AS i (number, bucket, thread_id, position, message_id, batch_id, sequence_num,
               batch_type, role, content, tool_calls, tool_call_id, metadata, token_count, attempt, created_ms, started_ms)
    JOIN fence USING (number)
    /*lean*/ /*careful*/
    WHERE NOT EXISTS (
        SELECT FROM messages AS m
        WHERE m.bucket = i.bucket AND m.thread_id = i.thread_id AND m.message_id = i.message_id
    ) /*end*/
)
